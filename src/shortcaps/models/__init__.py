"""Networks: the paper's two families, planned for any image size, and others for comparison. `create_model` makes each by name."""

from shortcaps.layers import ClassCapsules
from shortcaps.models.cnn import PlainCNN
from shortcaps.models.compact import COMPACT
from shortcaps.models.headed import HeadNetwork, PlainNetwork
from shortcaps.models.network import CapsuleNetwork, Network, PlannedNetwork, as_probabilities
from shortcaps.models.pairs import PairNetwork
from shortcaps.models.plan import Architecture, Plan, make_plan
from shortcaps.models.presets import PRESETS, build_from_architecture
from shortcaps.models.recommend import recommend_model
from shortcaps.models.registry import MODELS, ModelSpec, create_model, list_models, register_model
from shortcaps.models.sabour import SabourNetwork
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork

__all__ = [
    "COMPACT",
    "MODELS",
    "PRESETS",
    "Architecture",
    "CapsuleNetwork",
    "ClassCapsules",
    "HeadNetwork",
    "ModelSpec",
    "Network",
    "PairNetwork",
    "PlainCNN",
    "PlainNetwork",
    "Plan",
    "PlannedNetwork",
    "SabourNetwork",
    "SequentialNetwork",
    "ShortcutNetwork",
    "as_probabilities",
    "build_from_architecture",
    "create_model",
    "list_models",
    "make_plan",
    "recommend_model",
    "register_model",
]

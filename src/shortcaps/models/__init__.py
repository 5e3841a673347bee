"""Networks: the paper's two families, planned for any image, and some to compare with. Each is made by name, by `create_model`."""

from shortcaps.models.cnn import PlainCNN
from shortcaps.models.network import CapsuleNetwork, ClassCapsules, Network, PlannedNetwork, as_probabilities
from shortcaps.models.plan import Architecture, Plan, make_plan
from shortcaps.models.presets import PRESETS, build_from_architecture
from shortcaps.models.registry import MODELS, ModelSpec, create_model, list_models, register_model
from shortcaps.models.sabour import SabourNetwork
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork

__all__ = [
    "MODELS",
    "PRESETS",
    "Architecture",
    "CapsuleNetwork",
    "ClassCapsules",
    "ModelSpec",
    "Network",
    "PlainCNN",
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
    "register_model",
]

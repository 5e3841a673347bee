"""Networks: the paper's two families, planned for any image, and some to compare with."""

from shortcaps.models.baselines import BASELINES, build_network
from shortcaps.models.cnn import PlainCNN
from shortcaps.models.network import CapsuleNetwork, ClassCapsules, Network, as_probabilities
from shortcaps.models.plan import Architecture, Plan, make_plan
from shortcaps.models.presets import PRESETS, create_model
from shortcaps.models.sabour import SabourNetwork
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork

__all__ = [
    "BASELINES",
    "PRESETS",
    "Architecture",
    "CapsuleNetwork",
    "ClassCapsules",
    "Network",
    "PlainCNN",
    "Plan",
    "SabourNetwork",
    "SequentialNetwork",
    "ShortcutNetwork",
    "as_probabilities",
    "build_network",
    "create_model",
    "make_plan",
]

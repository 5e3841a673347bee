"""Networks: the paper's two families, planned for any image."""

from shortcaps.models.network import CapsuleNetwork, ClassCapsules
from shortcaps.models.plan import Architecture, Plan, make_plan
from shortcaps.models.presets import PRESETS, create_model
from shortcaps.models.sequential import SequentialNetwork
from shortcaps.models.shortcut import ShortcutNetwork

__all__ = [
    "PRESETS",
    "Architecture",
    "CapsuleNetwork",
    "ClassCapsules",
    "Plan",
    "SequentialNetwork",
    "ShortcutNetwork",
    "create_model",
    "make_plan",
]

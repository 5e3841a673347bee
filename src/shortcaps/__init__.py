"""shortcaps: capsule networks with shortcut routing."""

from shortcaps.inference.load import load
from shortcaps.losses import log_probability_loss, margin_loss, spread_loss, spread_margin
from shortcaps.models import PRESETS, Architecture, CapsuleNetwork, ClassCapsules, create_model
from shortcaps.routing import (
    EM,
    ROUTINGS,
    Attention,
    Capsules,
    DenseVotes,
    Dynamic,
    FactoredVotes,
    Fuzzy,
    Routing,
    Votes,
    route,
    squash,
)

__version__ = "0.1.0"

__all__ = [
    "EM",
    "PRESETS",
    "ROUTINGS",
    "Architecture",
    "Attention",
    "CapsuleNetwork",
    "Capsules",
    "ClassCapsules",
    "DenseVotes",
    "Dynamic",
    "FactoredVotes",
    "Fuzzy",
    "Routing",
    "Votes",
    "create_model",
    "load",
    "log_probability_loss",
    "margin_loss",
    "route",
    "spread_loss",
    "spread_margin",
    "squash",
]

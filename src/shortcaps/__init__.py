"""shortcaps: capsule networks with shortcut routing."""

from typing import TYPE_CHECKING

from shortcaps.backbones import create_backbone, list_backbones, register_backbone
from shortcaps.inference.load import load
from shortcaps.layers import CapsuleHead
from shortcaps.losses import (
    list_losses,
    log_probability_loss,
    margin_loss,
    register_loss,
    spread_loss,
    spread_margin,
)
from shortcaps.models import (
    PRESETS,
    Architecture,
    CapsuleNetwork,
    ClassCapsules,
    Network,
    create_model,
    list_models,
    register_model,
)
from shortcaps.plugins import load_plugin
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
    list_routings,
    register_routing,
    route,
    squash,
)
from shortcaps.schedules import list_schedules, register_schedule

if TYPE_CHECKING:
    from shortcaps.data import list_datasets, load_dataset, register_dataset
    from shortcaps.recipes import list_recipes, register_recipe
else:
    # Packages that need more than torch are imported on demand.
    _LAZY = dict.fromkeys(("list_datasets", "load_dataset", "register_dataset"), "shortcaps.data")
    _LAZY |= dict.fromkeys(("list_recipes", "register_recipe"), "shortcaps.recipes")

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.2.0"

__all__ = [
    "EM",
    "PRESETS",
    "ROUTINGS",
    "Architecture",
    "Attention",
    "CapsuleHead",
    "CapsuleNetwork",
    "Capsules",
    "ClassCapsules",
    "DenseVotes",
    "Dynamic",
    "FactoredVotes",
    "Fuzzy",
    "Network",
    "Routing",
    "Votes",
    "create_backbone",
    "create_model",
    "list_backbones",
    "list_datasets",
    "list_losses",
    "list_models",
    "list_recipes",
    "list_routings",
    "list_schedules",
    "load",
    "load_dataset",
    "load_plugin",
    "log_probability_loss",
    "margin_loss",
    "register_backbone",
    "register_dataset",
    "register_loss",
    "register_model",
    "register_recipe",
    "register_routing",
    "register_schedule",
    "route",
    "spread_loss",
    "spread_margin",
    "squash",
]

"""shortcaps: capsule networks with shortcut routing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shortcaps.backbones import create_backbone, list_backbones, register_backbone
    from shortcaps.data import list_augmentations, list_datasets, load_dataset, register_augmentation, register_dataset
    from shortcaps.inference.load import load
    from shortcaps.inference.save import save
    from shortcaps.layers import CapsuleHead
    from shortcaps.losses import (
        list_losses,
        log_odds_loss,
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
    from shortcaps.recipes import list_recipes, register_recipe
    from shortcaps.routing import (
        EM,
        ROUTINGS,
        Attention,
        Capsules,
        DenseVotes,
        Dynamic,
        FactoredVotes,
        Fuzzy,
        Readout,
        Routing,
        Votes,
        list_routings,
        register_routing,
        route,
        squash,
    )
    from shortcaps.schedules import list_schedules, register_schedule
    from shortcaps.training.objects import train
else:
    # Everything is imported on demand: the command line chooses how threads wait before PyTorch is loaded (startup.py), and data sets and
    # recipes need more than PyTorch.
    _MODULES = {
        "backbones": "create_backbone list_backbones register_backbone",
        "data": "list_augmentations list_datasets load_dataset register_augmentation register_dataset",
        "inference.load": "load",
        "inference.save": "save",
        "layers": "CapsuleHead",
        "losses": "list_losses log_odds_loss log_probability_loss margin_loss register_loss spread_loss spread_margin",
        "models": "PRESETS Architecture CapsuleNetwork ClassCapsules Network create_model list_models register_model",
        "plugins": "load_plugin",
        "recipes": "list_recipes register_recipe",
        "routing": "EM ROUTINGS Attention Capsules DenseVotes Dynamic FactoredVotes Fuzzy Readout Routing Votes list_routings register_routing route squash",
        "schedules": "list_schedules register_schedule",
        "training.objects": "train",
    }
    _EXTRAS = {"save": "use", "train": "train"}
    _PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _PLACES:
            try:
                value = getattr(import_module(f"shortcaps.{_PLACES[name]}"), name)
            except ModuleNotFoundError as missing:
                if name not in _EXTRAS:
                    raise
                package, extra = (missing.name or "").partition(".")[0], _EXTRAS[name]
                raise ModuleNotFoundError(
                    f"shortcaps.{name} needs {package}, which is not installed: pip install 'shortcaps[{extra}]'",
                    name=package,
                ) from missing
            globals()[name] = value
            return value
        if not name.startswith("_") and find_spec(f"shortcaps.{name}") is not None:
            return import_module(f"shortcaps.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

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
    "Readout",
    "Routing",
    "Votes",
    "create_backbone",
    "create_model",
    "list_augmentations",
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
    "log_odds_loss",
    "log_probability_loss",
    "margin_loss",
    "register_augmentation",
    "register_backbone",
    "register_dataset",
    "register_loss",
    "register_model",
    "register_recipe",
    "register_routing",
    "register_schedule",
    "route",
    "save",
    "spread_loss",
    "spread_margin",
    "squash",
    "train",
]

"""Which plug-ins the parts of a run come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shortcaps.data import AUGMENTATIONS, DATASETS
from shortcaps.losses import LOSSES
from shortcaps.models.blueprint import blueprint_origins
from shortcaps.recipes import RECIPES, Recipe
from shortcaps.registry import Registry
from shortcaps.runs.config import TrainConfig
from shortcaps.schedules import SCHEDULES


def plugins_of(config: TrainConfig, recipe: Recipe, network: Mapping[str, Any]) -> tuple[str, ...]:
    """The plug-ins that parts of this run come from, as they were named."""
    parts: list[tuple[Registry[Any], str]] = [
        (DATASETS, config.data.name),
        (RECIPES, config.recipe_name),
        (LOSSES, recipe.loss),
        (SCHEDULES, recipe.schedule),
        (AUGMENTATIONS, recipe.augment or ""),
    ]
    origins = (registry.origin(name) for registry, name in parts)
    return tuple(dict.fromkeys((*blueprint_origins(network), *(origin for origin in origins if origin is not None))))

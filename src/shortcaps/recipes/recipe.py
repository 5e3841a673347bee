"""Recipes, and how they are read from TOML files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shortcaps.data import AUGMENTATIONS
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS
from shortcaps.schedules import SCHEDULES
from shortcaps.settings import checked_dataclass, read_toml

log = logging.getLogger(__name__)

OPTIMIZERS = ("adam", "muon")
PLACEMENTS = ("published", "anywhere")
BALANCES = ("none", "weights", "sampling")
_MERGED = ("class_weights", "schedule_settings", "loss_settings", "routing_settings")
"""Tables, to which an override adds entries; it replaces any other setting."""


@checked_dataclass
class Recipe:
    """How to train one network.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images in a step, over all devices.
        lr: Highest learning rate.
        schedule: How the rate changes: one of `list_schedules()`.
        loss: One of `list_losses()`.
        optimizer: `adam`, or `muon`: convolutions learn in orthogonal steps (`training.muon`), all else as before.
        averaging: Decay of the running average of weights that is validated and kept; 0 keeps the weights themselves.
        placement: `published`: training images are shifted as in the paper; `anywhere`: digits on a wide background (affNIST) are
            placed anywhere on it, as in the test. Only a translation in either case.
        elastic: Size in pixels of a random elastic deformation of training images (`data.augment.Elastic`), which never rotates,
            scales or shears them; 0 for none.
        augment: One of `list_augmentations()`, instead of what the data set, `placement` and `elastic` say; None leaves it to those.
        weight_decay: Decoupled weight decay (AdamW); biases, norms and thresholds are exempt. 0 is plain Adam.
        mixup: Each training image is mixed with another of its batch, in shares drawn from Beta(mixup, mixup), and so are their labels;
            0 for none.
        dropout: Probability of dropping a lower capsule in training, where the network has capsules to drop; None for the network's own.
        drop_last: Whether images that do not fill the last batch of an epoch are left out; otherwise batches are made a little smaller,
            so that one more of them holds every image.
        balance: For classes of different sizes. `weights`: the loss of an image is weighted by how rare its class is; `sampling`: each
            epoch shows equally many images of each class; `none`: neither.
        class_weights: Further weights of the losses of some classes, by their names; 1 for the others.
        patience: Training ends after this many epochs without a lower validation error; None for never.
        schedule_settings: Settings of the schedule that differ from its defaults.
        loss_settings: Settings of the loss that differ from its defaults, e.g. `{"label_smoothing": 0.1}`.
        routing_settings: Settings of the routing that differ from its defaults.
    """

    epochs: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    lr: Annotated[float, Field(gt=0)]
    schedule: str
    loss: str
    optimizer: str = "adam"
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    placement: str = "published"
    elastic: Annotated[float, Field(ge=0)] = 0.0
    augment: str | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    drop_last: bool = True
    balance: str = "none"
    class_weights: dict[str, Annotated[float, Field(ge=0)]] = field(default_factory=dict)
    patience: Annotated[int, Field(ge=1)] | None = None
    schedule_settings: dict[str, float] = field(default_factory=dict)
    loss_settings: dict[str, float] = field(default_factory=dict)
    routing_settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for registry, name in ((SCHEDULES, self.schedule), (LOSSES, self.loss)):
            if name not in registry:
                raise RunError(registry.unknown(name))
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise RunError(AUGMENTATIONS.unknown(self.augment))
        for what, value, choices in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("placement", self.placement, PLACEMENTS),
            ("balance", self.balance, BALANCES),
        ):
            if value not in choices:
                raise RunError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """The same recipe with other settings; entries are added to tables, which are not replaced."""
        for name in _MERGED:
            if not isinstance(changes.get(name, {}), Mapping):
                raise RunError(f"{name} {changes[name]!r:.40} should be a table")
        merged = {name: {**getattr(self, name), **changes[name]} for name in _MERGED if name in changes}
        return replace(self, **{**changes, **merged})


@checked_dataclass
class RecipeSpec:
    """A recipe that can be chosen by name: settings for every network and data set, and exceptions for some.

    Attributes:
        recipe: The settings that hold without an exception.
        description: One line for lists and help texts.
        by_data: Exceptions for data sets whose names match this pattern.
        by_routing: Exceptions for networks with this routing; they override those by data set.
        by_model: Exceptions for networks whose names match this pattern, as `MODEL` or `MODEL/ROUTING`; they override all others.
    """

    recipe: Recipe
    description: str = ""
    by_data: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_routing: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_model: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resolve(self, *, data: str, model: str, routing: str | None) -> Recipe:
        """The recipe for one network on one data set.

        Args:
            data: Name of the data set.
            model: Name of the network.
            routing: Name of its routing, or None if it has none.
        """
        changes = [settings for pattern, settings in self.by_data.items() if fnmatchcase(data, pattern)]
        changes += [settings for name, settings in self.by_routing.items() if name == routing]
        names = (model, f"{model}/{routing}")
        changes += [
            settings for pattern, settings in self.by_model.items() if any(fnmatchcase(n, pattern) for n in names)
        ]
        recipe = self.recipe
        for settings in changes:
            recipe = recipe.changed(settings)
        return recipe if routing is not None else replace(recipe, routing_settings={})


RECIPES: Registry[RecipeSpec] = Registry("recipe")


def read_recipe(file: str | Path) -> RecipeSpec:
    """Read a recipe from a TOML file.

    The file holds the settings of a `Recipe` and a `description`; tables `[data.PATTERN]`, `[routing.NAME]` and `[model.PATTERN]` hold the
    exceptions for data sets whose names match, for a routing, and for networks whose names match, e.g. `[model."baseline/attention"]`.

    Raises:
        RunError: The file cannot be read, or a setting is unknown or out of range.
    """
    values = read_toml(Path(file))
    description = values.pop("description", "")
    tables = {f"by_{name}": values.pop(name, {}) for name in ("data", "routing", "model")}
    try:
        spec = RecipeSpec(recipe=Recipe(**values), description=description, **tables)
        for changes in (changes for table in tables.values() for changes in table.values()):
            spec.recipe.changed(changes)
    except RunError as error:
        raise RunError(f"{file}: {error}") from error
    for name in spec.by_routing:
        if name not in ROUTINGS:  # it may be that of a plug-in which is not needed now
            log.warning("%s: %s, so its entry takes no effect", file, ROUTINGS.unknown(name))
    return spec


def find_recipe(name: str) -> RecipeSpec:
    """A recipe by name, or by the path of a TOML file.

    Raises:
        RunError: There is no such recipe, or the file cannot be used.
    """
    if name.endswith(".toml") and name not in RECIPES:
        return read_recipe(Path(name).expanduser())
    if name not in RECIPES:
        raise RunError(f"{RECIPES.unknown(name)}, or give the path of a .toml file")
    return RECIPES[name]


def register_recipe(name: str, recipe: RecipeSpec | Recipe | str | Path) -> RecipeSpec:
    """Register a recipe under a name.

    Args:
        name: The name for `shortcaps train --recipe`.
        recipe: The recipe, or the path of the TOML file that holds it.

    Returns:
        The registered spec.

    Raises:
        ValueError: The name is taken.
        RunError: The file cannot be read, or a setting is unknown or out of range.
    """
    if isinstance(recipe, Recipe):
        recipe = RecipeSpec(recipe)
    spec = recipe if isinstance(recipe, RecipeSpec) else read_recipe(recipe)
    return RECIPES.register(name, spec)


def list_recipes(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered recipes.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> import shortcaps
        >>> shortcaps.list_recipes("f*")
        ['fast']
    """
    return RECIPES.names(pattern, exclude=exclude)

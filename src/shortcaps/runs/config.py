"""What a training run is asked to do: a data set, a network, a recipe with what is to be different from it, and how to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shortcaps.data import DATASETS, PROTOCOLS
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.models import MODELS
from shortcaps.recipes import PLACEMENTS, RECIPES, Recipe, find_recipe
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS
from shortcaps.settings import checked_dataclass, read_toml, unknown_setting

Positive = Annotated[int, Field(ge=1)]
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


def setting(default: Any, help: str, *, flag: str | None = None) -> Any:  # noqa: A002
    """A field of a config.

    Args:
        default: Its value unless given.
        help: What `--help` says of it.
        flag: What it is called on the command line and in `TrainConfig.of`, where that is not the field's own name.
    """
    metadata = {"help": help, "flag": flag}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@checked_dataclass
class DataConfig:
    """What to learn from."""

    name: str = setting(
        "mnist", f"data set ({', '.join(DATASETS.known())}), or the path of a folder of your own images", flag="data"
    )
    protocol: str = setting("default", "default (nothing leaks) or paper (as the authors did)")
    folder: str | None = setting(None, "where the published files of the data set already lie")
    image_size: Positive | None = setting(None, "side of the images of your own folder, 28 unless given")
    colour: bool = setting(False, "keep the colours of your own folder, or make them grey")
    skip_broken: bool = setting(False, "leave out images that cannot be read")
    camera: str | None = setting(None, "left, right or stereo, for smallnorb and solids")
    max_images: Positive | None = setting(None, "train and test on so many images only (a trial run)")
    options: dict[str, Any] = setting({}, "options of a data set of one's own", flag="data_options")

    @property
    def load_options(self) -> dict[str, Any]:
        """What `load_dataset` takes beside name, split and protocol."""
        named = {
            "folder": self.folder,
            "image_size": self.image_size,
            "colour": self.colour or None,
            "skip_broken": self.skip_broken or None,
            "camera": self.camera,
        }
        return {name: value for name, value in named.items() if value is not None} | self.options


@checked_dataclass
class ModelConfig:
    """What is to learn."""

    name: str = setting("baseline", f"network: {', '.join(MODELS.known())}", flag="model")
    routing: str = setting("fuzzy", f"routing: {', '.join(ROUTINGS.known())}")
    shortcut: bool = setting(True, "local capsules vote for the classes directly, or layer by layer")
    settings: dict[str, Any] = setting({}, "changes to the network's architecture", flag="network")


@checked_dataclass
class OptimConfig:
    """How it learns."""

    recipe: str | None = setting(
        None, f"how to train: {', '.join(RECIPES.known())}, or the path of a TOML file; the network's own unless given"
    )
    epochs: Positive | None = setting(None, "instead of the recipe's")
    batch_size: Positive | None = setting(None, "instead of the recipe's; divided among the devices")
    lr: Annotated[float, Field(gt=0)] | None = setting(None, "highest learning rate, instead of the recipe's")
    loss: str | None = setting(None, f"{', '.join(LOSSES.known())}, instead of the recipe's")
    placement: str | None = setting(None, f"{' or '.join(PLACEMENTS)}, instead of the recipe's (affNIST)")

    @property
    def changes(self) -> dict[str, Any]:
        """What is to be different from the recipe."""
        return {name: value for name, value in asdict(self).items() if name != "recipe" and value is not None}


@checked_dataclass
class RunConfig:
    """With what seed and on what machine."""

    seed: int = setting(0, "decides initial weights, order of images, augmentation and dropout")
    precision: str = setting("32-true", ", ".join(PRECISIONS))
    compile: bool = setting(False, "compile the network first: a minute for a faster step")
    devices: Positive = setting(1, "processes, each with its own device")


SECTIONS: dict[str, type[Any]] = {"data": DataConfig, "model": ModelConfig, "optim": OptimConfig, "run": RunConfig}


@dataclass(frozen=True)
class Flag:
    """Where a setting stands that is known by one name on the command line.

    Attributes:
        section: The part of the config.
        field: Its field there, with type, default and help.
    """

    section: str
    field: dataclasses.Field[Any]


def flag_name(field: dataclasses.Field[Any]) -> str:
    """What a setting is called on the command line, with underscores."""
    return str(field.metadata["flag"] or field.name)


FLAGS: dict[str, Flag] = {
    flag_name(field): Flag(section, field) for section, cls in SECTIONS.items() for field in fields(cls)
}
"""Every setting by its name on the command line, which no two share."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run computes. Written to the run as it was asked for.

    Attributes:
        data: What to learn from.
        model: What is to learn.
        optim: How.
        run: With what seed and on what machine.
    """

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check_known(MODELS, self.model.name)
        _check_known(ROUTINGS, self.model.routing)
        if self.optim.loss is not None:
            _check_known(LOSSES, self.optim.loss)
        default = ModelConfig()
        if not self.has_routing and (self.model.routing, self.model.shortcut) != (default.routing, default.shortcut):
            raise RunError(f"{self.model.name} has no routing or shortcut to choose: leave them out")
        for what, value, choices in (
            ("protocol", self.data.protocol, PROTOCOLS),
            ("precision", self.run.precision, PRECISIONS),
        ):
            if value not in choices:
                raise RunError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")
        if self.optim.batch_size and self.optim.batch_size % self.run.devices:
            raise RunError(f"batch_size {self.optim.batch_size} cannot be divided among {self.run.devices} devices")

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """A config from settings by the names they have on the command line.

        >>> config = TrainConfig.of(data="affnist", routing="em", epochs=3)
        >>> config.data.name, config.model.routing, config.optim.epochs
        ('affnist', 'em', 3)
        """
        sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        for name, value in settings.items():
            if name not in FLAGS:
                raise RunError(unknown_setting(name, FLAGS))
            sections[FLAGS[name].section][FLAGS[name].field.name] = value
        return cls.from_dict(sections)

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> TrainConfig:
        """From what `to_dict` gave."""
        for name in values:
            if name not in SECTIONS:
                raise RunError(unknown_setting(name, SECTIONS))
        return cls(**{name: SECTIONS[name](**section) for name, section in values.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values, as config.json holds them."""
        return asdict(self)

    def get(self, flag: str) -> Any:
        """A setting by its name on the command line."""
        return getattr(getattr(self, FLAGS[flag].section), FLAGS[flag].field.name)

    def differences(self, other: TrainConfig) -> list[str]:
        """Names, as on the command line, of the settings in which two configs differ."""
        return [flag for flag in FLAGS if self.get(flag) != other.get(flag)]

    @property
    def has_routing(self) -> bool:
        """Whether the network has a routing to choose."""
        return MODELS[self.model.name].has_routing

    @property
    def recipe_name(self) -> str:
        """The recipe that was asked for, or the network's own."""
        return self.optim.recipe or MODELS[self.model.name].recipe

    def make_recipe(self) -> Recipe:
        """The recipe for this data set, routing and network, with what the config says instead."""
        routing = self.model.routing if self.has_routing else None
        recipe = find_recipe(self.recipe_name).resolve(data=self.data.name, model=self.model.name, routing=routing)
        return recipe.changed(self.optim.changes)

    def changed(self, **settings: Any) -> TrainConfig:
        """The same with other settings, by their names on the command line."""
        return TrainConfig.of(**{flag: self.get(flag) for flag in FLAGS} | settings)


def read_settings(file: Path) -> dict[str, Any]:
    """Settings by their names on the command line, from a TOML file.

    They stand at its top by those names, or in tables `[data]`, `[model]`, `[optim]` and `[run]` by the names of the config's fields.
    """
    settings: dict[str, Any] = {}
    for name, value in read_toml(file).items():
        if name in SECTIONS and isinstance(value, dict):
            names = {field.name: flag_name(field) for field in fields(SECTIONS[name])}
            for own, own_value in value.items():
                own = own.replace("-", "_")
                if own not in names:
                    raise RunError(f"{file}, [{name}]: {unknown_setting(own, names)}")
                settings[names[own]] = own_value
        elif name in FLAGS:
            settings[name] = value
        else:
            raise RunError(f"{file}: {unknown_setting(name, (*FLAGS, *SECTIONS))}")
    return settings


def _check_known(registry: Registry[Any], name: str) -> None:
    if name not in registry:
        raise RunError(registry.unknown(name))

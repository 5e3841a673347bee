"""The configuration of a training run: a data set, a network, a recipe with changes to it, and how to run it."""

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
from shortcaps.runs.bounds import Positive, Side, check_settings
from shortcaps.settings import checked_dataclass, read_toml, unknown_setting

PRECISIONS = ("32-true", "64-true", "bf16-mixed")


def setting(default: Any, help: str, *, flag: str | None = None) -> Any:  # noqa: A002
    """A field of a config.

    Args:
        default: Its default.
        help: Its text in `--help`, without a capital letter and a full stop.
        flag: Its name on the command line and in `TrainConfig.of`, if it differs from the field's.
    """
    metadata = {"help": help, "flag": flag}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@checked_dataclass
class DataConfig:
    """Data.

    Attributes:
        name: A registered data set, or the path of a folder.
        protocol: What training and selection may see, one of `PROTOCOLS`.
        folder: A folder that already has the published files.
        image_size: Side of the images of a folder of your own, in pixels.
        colour: Whether a folder of your own keeps its colours.
        skip_broken: Whether unreadable images are left out.
        camera: For stereo sets, `left`, `right` or `stereo`.
        max_images: Largest number of images in each split.
        options: Further options of the data set.
    """

    name: str = setting(
        "mnist", f"data set ({', '.join(DATASETS.known())}), or the path of a folder of images", flag="data"
    )
    protocol: str = setting("default", "what training may see: default (no leaks) or paper (as the authors did)")
    folder: str | None = setting(None, "folder that already has the published files of the data set")
    image_size: Side | None = setting(None, "side of the images in a folder of your own, in pixels (28 if not given)")
    colour: bool = setting(False, "keep the colours of a folder of your own, or convert it to grey")
    skip_broken: bool = setting(False, "leave out images that cannot be read")
    camera: str | None = setting(None, "camera: left, right or stereo, for smallnorb and solids")
    max_images: Positive | None = setting(None, "use at most this many images of each split, for a trial run")
    options: dict[str, Any] = setting({}, "further options of the data set", flag="data_options")

    @property
    def load_options(self) -> dict[str, Any]:
        """The options of `load_dataset`, besides name, split and protocol."""
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
    """Network.

    Attributes:
        name: A registered network.
        routing: A registered routing.
        shortcut: Whether local capsules vote for the classes directly.
        settings: Further settings of `create_model`.
    """

    name: str = setting("baseline", f"network: {', '.join(MODELS.known())}", flag="model")
    routing: str = setting("fuzzy", f"routing: {', '.join(ROUTINGS.known())}")
    shortcut: bool = setting(True, "let local capsules vote for the classes directly, or route layer by layer")
    settings: dict[str, Any] = setting({}, "changes to the network's architecture", flag="network")


@checked_dataclass
class OptimConfig:
    """Optimisation.

    Attributes:
        recipe: A registered recipe, or the path of a TOML file; None for the network's own.
        epochs: Instead of the recipe's.
        batch_size: Instead of the recipe's.
        lr: Instead of the recipe's.
        loss: Instead of the recipe's.
        placement: Instead of the recipe's.
    """

    recipe: str | None = setting(
        None, f"how to train: {', '.join(RECIPES.known())}, or the path of a TOML file; by default the network's own"
    )
    epochs: Positive | None = setting(None, "number of epochs, instead of the recipe's")
    batch_size: Positive | None = setting(None, "images in a step, over all devices, instead of the recipe's")
    lr: Annotated[float, Field(gt=0)] | None = setting(None, "highest learning rate, instead of the recipe's")
    loss: str | None = setting(None, f"loss ({', '.join(LOSSES.known())}), instead of the recipe's")
    placement: str | None = setting(
        None, f"placement of affNIST digits ({', '.join(PLACEMENTS)}), instead of the recipe's"
    )

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that replace the recipe's."""
        return {name: value for name, value in asdict(self).items() if name != "recipe" and value is not None}


@checked_dataclass
class RunConfig:
    """Execution.

    Attributes:
        seed: Decides initial weights, order of images, augmentation and dropout.
        precision: One of `PRECISIONS`, as Lightning Fabric names them.
        compile: Whether to use `torch.compile`.
        devices: Number of processes, each with a device of its own.
    """

    seed: int = setting(0, "seed of initial weights, order of images, augmentation and dropout")
    precision: str = setting("32-true", f"precision: {', '.join(PRECISIONS)}")
    compile: bool = setting(False, "compile the network first, which takes a minute, for faster steps")
    devices: Positive = setting(1, "number of processes, each with its own device")


SECTIONS: dict[str, type[Any]] = {"data": DataConfig, "model": ModelConfig, "optim": OptimConfig, "run": RunConfig}


@dataclass(frozen=True)
class Flag:
    """Where a setting is found in the config.

    Attributes:
        section: The section: `data`, `model`, `optim` or `run`.
        field: Its field there, with type, default and help.
    """

    section: str
    field: dataclasses.Field[Any]


def _flag_name(field: dataclasses.Field[Any]) -> str:
    """The name of a setting on the command line, with underscores."""
    return str(field.metadata["flag"] or field.name)


FLAGS: dict[str, Flag] = {
    _flag_name(field): Flag(section, field) for section, cls in SECTIONS.items() for field in fields(cls)
}
"""Every setting by its name on the command line; no two share one."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run computes. It is written to the run directory as requested.

    Attributes:
        data: The data set.
        model: The network.
        optim: The recipe, and changes to it.
        run: Seed, precision and devices.

    Raises:
        RunError: A name is unknown, or settings contradict each other.
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
        check_settings(self.model.settings)
        default = ModelConfig()
        if not self.has_routing and (self.model.routing, self.model.shortcut) != (default.routing, default.shortcut):
            raise RunError(f"{self.model.name} has neither routing nor shortcut: leave them out")
        for what, value, choices in (
            ("protocol", self.data.protocol, PROTOCOLS),
            ("precision", self.run.precision, PRECISIONS),
        ):
            if value not in choices:
                raise RunError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")
        if self.optim.batch_size and self.optim.batch_size % self.run.devices:
            raise RunError(f"batch_size {self.optim.batch_size} cannot be divided among {self.run.devices} devices")
        if self.data.max_images is not None and self.data.max_images < self.run.devices:
            raise RunError(
                f"max_images {self.data.max_images} is too small for {self.run.devices} devices: each needs at least one image"
            )

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """Create a config from settings, by their names on the command line.

        Raises:
            RunError: A setting is unknown, of the wrong type or out of range.

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
        """Create a config from the nested values that `to_dict` returns.

        Raises:
            RunError: A setting is unknown, of the wrong type or out of range.
        """
        for name, section in values.items():
            if name not in SECTIONS:
                raise RunError(unknown_setting(name, SECTIONS))
            if not isinstance(section, Mapping):
                raise RunError(f"{name} {section!r:.40} should be a table of settings")
        return cls(**{name: SECTIONS[name](**section) for name, section in values.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Nested plain values, as in config.json."""
        return asdict(self)

    def get(self, flag: str) -> Any:
        """A setting by its name on the command line."""
        return getattr(getattr(self, FLAGS[flag].section), FLAGS[flag].field.name)

    def differences(self, other: TrainConfig) -> list[str]:
        """Names, as on the command line, of the settings in which two configs differ."""
        return [flag for flag in FLAGS if self.get(flag) != other.get(flag)]

    @property
    def has_routing(self) -> bool:
        """Whether the network has a choice of routing."""
        return MODELS[self.model.name].has_routing

    @property
    def recipe_name(self) -> str:
        """Name of the requested recipe, or of the network's own."""
        return self.optim.recipe or MODELS[self.model.name].recipe

    def make_recipe(self) -> Recipe:
        """The recipe for this data set, routing and network, with the changes of this config."""
        routing = self.model.routing if self.has_routing else None
        recipe = find_recipe(self.recipe_name).resolve(data=self.data.name, model=self.model.name, routing=routing)
        return recipe.changed(self.optim.changes)

    def changed(self, **settings: Any) -> TrainConfig:
        """The same config with other settings, by their names on the command line."""
        return TrainConfig.of(**{flag: self.get(flag) for flag in FLAGS} | settings)


def read_settings(file: Path) -> dict[str, Any]:
    """Read settings from a TOML file, by their names on the command line.

    They are at its top level under those names, or in tables `[data]`, `[model]`, `[optim]` and `[run]` under the names of the
    config's fields.

    Raises:
        RunError: The file cannot be read, or a setting is unknown.
    """
    settings: dict[str, Any] = {}
    for name, value in read_toml(file).items():
        if name in SECTIONS and isinstance(value, dict):
            names = {field.name: _flag_name(field) for field in fields(SECTIONS[name])}
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

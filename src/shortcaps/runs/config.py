"""The configuration of a training run: a data set, a network, a recipe with changes to it, and how to run it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shortcaps.data import AUGMENTATIONS, DATASETS, PROTOCOLS
from shortcaps.data.decode import DEFAULT_FIT, FITS
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.models import MODELS
from shortcaps.recipes import BALANCES, PLACEMENTS, RECIPES, Recipe, find_recipe
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS
from shortcaps.runs.bounds import Positive, Side, check_settings
from shortcaps.settings import checked_dataclass, read_toml, unknown_setting

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
FREEZABLE = ("backbone",)
FINE_TUNING_RATE = 0.1
"""Share of the recipe's learning rate with which trained weights are trained on: at the full rate they would soon be forgotten."""


def setting(default: Any, help: str, *, flag: str | None = None, shown: str | None = None) -> Any:  # noqa: A002
    """A field of a config.

    Args:
        default: Its default.
        help: Its text in `--help`, without a capital letter and a full stop.
        flag: Its name on the command line and in `TrainConfig.of`, if it differs from the field's.
        shown: What `--help` says of its default, if that is not the default itself.
    """
    metadata = {"help": help, "flag": flag, "shown": shown}
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
        fit: How a picture that is not square is made so: `stretch`, `pad` or `crop`.
        skip_broken: Whether unreadable images are left out.
        group_by: What pictures of one thing have in common, which keeps them in one split: a column, or a regular expression for a path.
        image_memory: Megabytes of decoded images of your own that are kept in memory; beyond that they are decoded as needed.
        camera: For stereo sets, `left`, `right` or `stereo`.
        max_images: Largest number of images in each split.
        per_class: Number of images of each class that are trained on, and as many others, where a class has them, that are validated on.
        draw: Which of the possible draws of `per_class` images.
        refit: Whether validation images are trained on as well, so that nothing is validated or selected.
        options: Further options of the data set.
    """

    name: str = setting(
        "mnist",
        f"data set ({', '.join(DATASETS.known())}), or the path of a folder of images or of a CSV file",
        flag="data",
    )
    protocol: str = setting("default", "what training may see: default (no leaks) or paper (as the authors did)")
    folder: str | None = setting(None, "folder that already has the published files of the data set")
    image_size: Side | None = setting(None, "side of the images in a folder of your own, in pixels (28 if not given)")
    colour: bool = setting(False, "keep the colours of a folder of your own, or convert it to grey")
    fit: str | None = setting(
        None, f"how images of your own that are not square are made so: {', '.join(FITS)} ({DEFAULT_FIT} if not given)"
    )
    skip_broken: bool = setting(False, "leave out images that cannot be read")
    group_by: str | None = setting(
        None,
        "keep images of your own that show one thing in one split: a column, or a regular expression for their paths",
    )
    image_memory: Annotated[int, Field(ge=0)] | None = setting(
        None,
        "megabytes of decoded images of your own to keep in memory; others are decoded as needed (512 if not given)",
    )
    camera: str | None = setting(None, "camera: left, right or stereo, for smallnorb and solids")
    max_images: Positive | None = setting(None, "use at most this many images of each split, for a trial run")
    per_class: Positive | None = setting(
        None,
        "train on this many images of each class, and validate on as many others, where a class has them; the test stays whole",
    )
    draw: int = setting(0, "which draw of the images that --per-class asks for")
    refit: bool = setting(
        False,
        "train on the validation images as well and keep the last weights: once everything is chosen",
    )
    options: dict[str, Any] = setting({}, "further options of the data set", flag="data_options")

    def __post_init__(self) -> None:
        # As a further option nobody would check its type and bounds.
        own = sorted({field.name for field in fields(DataConfig)} & self.options.keys())
        if own:
            raise RunError(f"{own[0]} is a setting of its own: give it there, not among the further options")
        for name, text in (("data", self.name), ("folder", self.folder or "")):
            if not _is_path(text):
                raise RunError(f"{name} {text!r:.60} cannot be the path of anything")

    @property
    def load_options(self) -> dict[str, Any]:
        """The options of `load_dataset`, besides name, split and protocol."""
        named = {
            "folder": self.folder,
            "image_size": self.image_size,
            "colour": self.colour or None,
            "fit": self.fit,
            "skip_broken": self.skip_broken or None,
            "group_by": self.group_by,
            "image_memory": self.image_memory,
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
        start: A run whose weights training begins with; its network has to be this one.
        freeze: A part that stays as it was there, one of `FREEZABLE`.
        settings: Further settings of `create_model`.
    """

    name: str = setting(
        "baseline",
        f"network: {', '.join(name for name in MODELS.known() if not name.startswith('pairs-'))}; pairs-NAME for pairs of digits (docs/studies.md)",
        flag="model",
        shown="baseline; a compact one for images of your own",
    )
    routing: str = setting("fuzzy", f"routing: {', '.join(ROUTINGS.known())}")
    shortcut: bool = setting(True, "let local capsules vote for the classes directly, or route layer by layer")
    start: str | None = setting(
        None, "run to begin with: its network and weights; the head is made anew for other classes"
    )
    freeze: str | None = setting(None, "part that stays as it was in the run to begin with: backbone")
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
        mixup: Instead of the recipe's.
        balance: Instead of the recipe's.
        patience: Instead of the recipe's.
        adapt: Whether epochs and batches are fitted to a small number of training images, where they are not set here.
        augment: Instead of the recipe's and the data set's own.
    """

    recipe: str | None = setting(
        None, f"how to train: {', '.join(RECIPES.known())}, or the path of a TOML file", shown="the network's own"
    )
    epochs: Positive | None = setting(None, "number of epochs, instead of the recipe's")
    batch_size: Positive | None = setting(None, "images in a step, over all devices, instead of the recipe's")
    lr: Annotated[float, Field(gt=0)] | None = setting(None, "highest learning rate, instead of the recipe's")
    loss: str | None = setting(None, f"loss ({', '.join(LOSSES.known())}), instead of the recipe's")
    placement: str | None = setting(
        None, f"placement of affNIST digits ({', '.join(PLACEMENTS)}), instead of the recipe's"
    )
    mixup: Annotated[float, Field(ge=0)] | None = setting(
        None, "mix training images and their labels, in shares from Beta(mixup, mixup), instead of the recipe's"
    )
    balance: str | None = setting(
        None, f"for classes of different sizes ({', '.join(BALANCES)}), instead of the recipe's"
    )
    patience: Positive | None = setting(
        None, "end after this many epochs without a lower validation error, instead of the recipe's"
    )
    adapt: bool = setting(True, "fit epochs and batch size to a small number of training images")
    augment: str | None = setting(
        None, f"augmentation of training images ({', '.join(AUGMENTATIONS.known())}), instead of the data set's own"
    )

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that replace the recipe's."""
        own = ("recipe", "adapt")
        return {name: value for name, value in asdict(self).items() if name not in own and value is not None}


@checked_dataclass
class RunConfig:
    """Execution.

    Attributes:
        seed: Decides initial weights, order of images, augmentation and dropout.
        precision: One of `PRECISIONS`, as Lightning Fabric names them.
        compile: Whether to use `torch.compile`.
        devices: Number of processes, each with a device of its own.
        keep_epochs: Whether the weights after each epoch are kept, not only the selected ones.
    """

    seed: int = setting(0, "seed of initial weights, order of images, augmentation and dropout")
    precision: str = setting("32-true", f"precision: {', '.join(PRECISIONS)}")
    compile: bool = setting(False, "compile the network first, which takes a minute, for faster steps")
    devices: Positive = setting(1, "number of processes, each with its own device")
    keep_epochs: bool = setting(False, "keep the weights after each epoch, not only the selected ones")


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
        if self.optim.augment is not None:
            _check_known(AUGMENTATIONS, self.optim.augment)
            if self.optim.placement is not None:
                raise RunError(
                    f"augment {self.optim.augment} and placement {self.optim.placement} contradict each other: give one of them"
                )
        check_settings(self.model.settings)
        default = ModelConfig()
        if not self.has_routing and (self.model.routing, self.model.shortcut) != (default.routing, default.shortcut):
            raise RunError(f"{self.model.name} has neither routing nor shortcut: leave them out")
        for what, value, choices in (
            ("protocol", self.data.protocol, PROTOCOLS),
            ("fit", self.data.fit or DEFAULT_FIT, FITS),
            ("precision", self.run.precision, PRECISIONS),
        ):
            if value not in choices:
                raise RunError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")
        if self.data.refit and self.data.protocol != "default":
            raise RunError(
                f"--refit goes with protocol default only: under {self.data.protocol}, validation images may show what the test is like"
            )
        if self.data.refit and self.data.per_class is not None:
            raise RunError(
                f"--per-class {self.data.per_class} says how many images are trained on, and --refit adds to them: leave one of them out"
            )
        if self.model.freeze is not None and self.model.freeze not in FREEZABLE:
            raise RunError(f"--freeze {self.model.freeze} is not known: choose one of {', '.join(FREEZABLE)}")
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

        Examples:
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
        if self.model.start is not None:
            recipe = recipe.changed({"lr": FINE_TUNING_RATE * recipe.lr})
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


def _is_path(text: str) -> bool:
    """Whether the operating system takes a text for a path, whether or not something is there."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_known(registry: Registry[Any], name: str) -> None:
    if name not in registry:
        raise RunError(registry.unknown(name))

"""What a training run is made of: a recipe (how to train) and a config (what to train, on what)."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shortcaps.data import PROTOCOLS
from shortcaps.errors import RunError
from shortcaps.models import MODELS
from shortcaps.routing import ROUTINGS


@dataclass(frozen=True)
class Recipe:
    """How to train. A recipe is a literal whose diff shows the scientific change."""

    epochs: int
    batch_size: int
    lr: float
    schedule: str
    """`one-cycle` rises to `lr` over the first third and falls to nothing; `steps` multiplies by 0.8 every 20 epochs."""
    loss: str
    """`spread` (Eq. 14, margin 0.2 → 0.9 over ten epochs), `margin` (Sabour) or `log-probability`."""
    averaging: float
    """Decay of the running average of weights that is validated and kept; 0 keeps the weights themselves."""
    placement: str
    """`published`: training images are moved as the paper moves them; `anywhere`: digits on a wide background (affNIST) are
    placed anywhere on it, as those of the test are. A translation in both cases, and nothing else."""
    routing_settings: dict[str, dict[str, float]] = field(default_factory=dict)
    """By routing, settings other than its own defaults."""


RECIPES: dict[str, Recipe] = {
    "paper": Recipe(
        epochs=200, batch_size=128, lr=1e-3, schedule="steps", loss="spread", averaging=0.0, placement="published"
    ),
    "fast": Recipe(
        epochs=12,
        batch_size=128,
        lr=2e-2,
        schedule="one-cycle",
        loss="log-probability",
        averaging=0.99,
        placement="anywhere",
        routing_settings={
            "fuzzy": {"sharpness": 4.0},
            "em": {"sharpness": 4.0, "temperature": 16.0},
        },
    ),
}


HIGHEST_LR: dict[str, float] = {"attention": 8e-3, "dynamic": 8e-3, "sabour": 1e-3}
"""By routing or network, the highest learning rate it is given unless somebody asks for more. Where poses are squashed sums of votes,
training at 2e-2 may collapse half-way, all probabilities being 1 (results/LOG.md); Sabour's network has no batch norm either."""
OWN_LOSS: dict[str, str] = {"sabour": "margin"}
"""By network, the loss it was made for."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a run computes. Written to the run as it took effect."""

    data: str = field(default="mnist", metadata={"help": "data set, or the path of a folder of your own images"})
    model: str = field(default="baseline", metadata={"help": f"network: {', '.join(MODELS)}"})
    routing: str = field(default="fuzzy", metadata={"help": f"routing: {', '.join(ROUTINGS)}"})
    shortcut: bool = field(
        default=True, metadata={"help": "local capsules vote for the classes directly, or layer by layer"}
    )
    recipe: str = field(default="fast", metadata={"help": f"how to train: {', '.join(RECIPES)}"})
    protocol: str = field(default="default", metadata={"help": "default (nothing leaks) or paper (as the authors did)"})
    epochs: int | None = field(default=None, metadata={"help": "instead of the recipe's"})
    batch_size: int | None = field(
        default=None, metadata={"help": "instead of the recipe's; divided among the devices"}
    )
    lr: float | None = field(default=None, metadata={"help": "learning rate, instead of the recipe's"})
    loss: str | None = field(
        default=None, metadata={"help": "spread, margin or log-probability, instead of the recipe's"}
    )
    placement: str | None = field(
        default=None, metadata={"help": "published or anywhere, instead of the recipe's (affNIST)"}
    )
    seed: int = field(
        default=0, metadata={"help": "decides initial weights, order of images, augmentation and dropout"}
    )
    precision: str = field(default="32-true", metadata={"help": "32-true, 64-true or bf16-mixed"})
    compile: bool = field(default=False, metadata={"help": "compile the network first: a minute for a faster step"})
    devices: int = field(default=1, metadata={"help": "processes, each with its own device"})
    most_images: int | None = field(
        default=None, metadata={"help": "train and test on so many images only (a trial run)"}
    )
    folder: str | None = field(default=None, metadata={"help": "where the published files of the data set already lie"})
    image_size: int | None = field(
        default=None, metadata={"help": "side of the images of your own folder, 28 unless given"}
    )
    colour: bool = field(default=False, metadata={"help": "keep the colours of your own folder"})
    skip_broken: bool = field(default=False, metadata={"help": "leave out images that cannot be read"})
    camera: str | None = field(default=None, metadata={"help": "left, right or stereo, for smallnorb and solids"})
    network: dict[str, Any] = field(default_factory=dict, metadata={"help": "changes to the network's architecture"})

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise RunError(MODELS.unknown(self.model))
        if self.routing not in ROUTINGS:
            raise RunError(ROUTINGS.unknown(self.routing))
        if not MODELS[self.model].has_routing and (self.routing, self.shortcut) != (
            TrainConfig.routing,
            TrainConfig.shortcut,
        ):
            raise RunError(f"{self.model} has no routing or shortcut to choose: leave them out")
        if self.recipe not in RECIPES:
            raise RunError(f"unknown recipe {self.recipe!r}: choose one of {', '.join(RECIPES)}")
        if self.protocol not in PROTOCOLS:
            raise RunError(f"unknown protocol {self.protocol!r}: choose one of {', '.join(PROTOCOLS)}")
        if self.loss is not None and self.loss not in LOSSES:
            raise RunError(f"unknown loss {self.loss!r}: choose one of {', '.join(LOSSES)}")
        if self.placement is not None and self.placement not in PLACEMENTS:
            raise RunError(f"unknown placement {self.placement!r}: choose one of {', '.join(PLACEMENTS)}")
        if self.precision not in PRECISIONS:
            raise RunError(f"unknown precision {self.precision!r}: choose one of {', '.join(PRECISIONS)}")
        for name in ("epochs", "batch_size", "devices", "most_images", "image_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RunError(f"{name} {value} is too small: it must be at least 1")
        if self.lr is not None and not self.lr > 0:
            raise RunError(f"lr {self.lr} is not a learning rate: it must be above 0")
        if (self.batch_size or 1) % self.devices and self.batch_size:
            raise RunError(f"batch_size {self.batch_size} cannot be divided among {self.devices} devices")

    @property
    def effective_recipe(self) -> Recipe:
        """The recipe for this routing and network, with what the config says instead."""
        recipe = RECIPES[self.recipe]
        what_learns = self.routing if MODELS[self.model].has_routing else self.model
        changes: dict[str, Any] = {
            "lr": min(recipe.lr, HIGHEST_LR.get(what_learns, recipe.lr)),
            "loss": OWN_LOSS.get(self.model, recipe.loss),
        }
        for name in ("epochs", "batch_size", "lr", "loss", "placement"):
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)
        recipe = replace(recipe, **changes)
        settings = recipe.routing_settings if MODELS[self.model].has_routing else {}
        own = {routing: values for routing, values in settings.items() if routing == self.routing}
        return replace(recipe, routing_settings=own)

    @property
    def data_options(self) -> dict[str, Any]:
        """What `load_dataset` takes beside name, split and protocol."""
        options = {
            "folder": self.folder,
            "image_size": self.image_size,
            "colour": self.colour or None,
            "skip_broken": self.skip_broken or None,
            "camera": self.camera,
        }
        return {name: value for name, value in options.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        known = {setting.name for setting in fields(cls)}
        for name in values:
            if name not in known:
                raise RunError(f"unknown setting {name!r}: there are {', '.join(sorted(known))}")
        kinds = {
            "int": int,
            "float": (int, float),
            "str": str,
            "bool": bool,
            "dict[str, Any]": dict,
            "None": type(None),
        }
        for setting in fields(cls):
            allowed = tuple(kinds[kind.strip()] for kind in str(setting.type).split("|"))
            value = values.get(setting.name, setting.default)
            wrong = setting.name in values and not isinstance(value, _flat(allowed))
            if wrong or (isinstance(value, bool) and bool not in _flat(allowed)):
                raise RunError(f"{setting.name} {value!r} is a {type(value).__name__}: it must be {setting.type}")
        return cls(**values)


PLACEMENTS = ("published", "anywhere")
LOSSES = ("spread", "margin", "log-probability")
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


def _flat(kinds: tuple[Any, ...]) -> tuple[type, ...]:
    return tuple(kind for entry in kinds for kind in (entry if isinstance(entry, tuple) else (entry,)))


def read_toml(file: Path) -> dict[str, Any]:
    """Settings from a TOML file; names may be written with dashes, as on the command line."""
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{file} does not exist") from error
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is not a TOML file: {error}") from error
    return {name.replace("-", "_"): value for name, value in values.items()}

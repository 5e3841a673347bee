"""config.json: what was requested of a run, what took effect, and what is needed to use its network."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from shortcaps.data import find_spec
from shortcaps.data.decode import DEFAULT_FIT, FITS
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.recipes import Recipe
from shortcaps.registry import UnknownPart
from shortcaps.runs.bounds import Side
from shortcaps.runs.config import FLAGS, SECTIONS, TrainConfig
from shortcaps.schedules import SCHEDULES
from shortcaps.settings import checked_dataclass

FORMAT = 2
# Names of 0.1 that have changed: of a run's settings, and of a network's.
_OLD_FLAGS = {"most_images": "max_images"}
_OLD_STEM = {"stem_channels": "width", "stem_kernel": "kernel", "stem_stride": "stride"}


@checked_dataclass
class TrainedOn:
    """The images that a network was trained on, as far as using the network requires.

    Attributes:
        name: Name of the data set.
        label: Its name in tables and reports.
        protocol: What training and selection were allowed to see.
        class_names: In the order of the network's outputs.
        stored_size: Height and width of the images before they are shown to the network.
        bright_on_dark: Whether they show light strokes or things on black.
        centred_digits: Whether they show digits centred as MNIST's are.
        view: How images are shown to the network, in words.
        augment: How they are shown in training, in words.
        fingerprints: For each split, a hash of its images and labels.
        fit: How pictures that are not square were made to fit; runs that do not say stretched them.
        paths: Where the folders that the config names were, as absolute paths, by the field of `DataConfig`.
        in_memory: Whether the images were objects in Python, which the run cannot load again by name.
    """

    name: str
    label: str
    protocol: str
    class_names: tuple[str, ...]
    stored_size: tuple[Side, Side]
    bright_on_dark: bool
    centred_digits: bool
    view: str = ""
    augment: str = ""
    fingerprints: dict[str, str] = field(default_factory=dict)
    fit: str = DEFAULT_FIT
    paths: dict[str, str] = field(default_factory=dict)
    in_memory: bool = False

    def __post_init__(self) -> None:
        # Answers are given by name: of two classes that share one, one would be lost.
        twice = [name for name, count in Counter(self.class_names).items() if count > 1]
        if twice:
            raise RunError(f"class_names has {twice[0]!r:.40} more than once")
        if self.fit not in FITS:
            raise RunError(f"unknown fit {self.fit!r:.40}: choose one of {', '.join(FITS)}")


@checked_dataclass
class Origin:
    """The trained weights that a run began with, instead of weights drawn by its seed.

    Attributes:
        run: The run directory that they were in, as an absolute path; empty for a network that was given in Python.
        sha256: Checksum of their file; empty for a network that was given in Python.
        trained_on: What that network was trained on.
        epochs: Epochs that they were trained for there; None if nobody knows.
        kept: Number of tensors that were taken over.
        made_anew: Names of the tensors that were not, as they belong to the classes.
    """

    run: str = ""
    sha256: str = ""
    trained_on: str = ""
    epochs: int | None = None
    kept: int = 0
    made_anew: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = self.run or "a network given in Python"
        after = f", {self.trained_on}" if self.trained_on else ""
        after += f", after {self.epochs} epoch{'' if self.epochs == 1 else 's'}" if self.epochs is not None else ""
        new = f"; made anew: {', '.join(self.made_anew)}" if self.made_anew else ""
        return f"{where}{after}: {self.kept} tensors kept{new}"


@dataclass(frozen=True)
class Manifest:
    """The contents of a run's config.json, whichever version wrote it.

    Config and recipe are parsed on demand, so that a network can be used without the plug-in that its training needed.

    Attributes:
        asked: The requested config, as `TrainConfig.to_dict` returns it; empty for a network that was saved from Python.
        took_effect: The recipe that took effect; empty likewise.
        network: The arguments of `create_model`.
        data: What the network was trained on.
        environment: Versions, commit and machine.
        plugins: Plug-ins that parts of the run come from.
        digest: Identifies config and recipe; runs with the same digest compute the same, wherever they are written.
        origin: The weights that the run began with, if they were trained before.
    """

    asked: Mapping[str, Any]
    took_effect: Mapping[str, Any]
    network: Mapping[str, Any]
    data: TrainedOn
    environment: Mapping[str, str]
    plugins: tuple[str, ...] = ()
    digest: str = ""
    origin: Origin | None = None

    @property
    def was_trained_here(self) -> bool:
        """Whether there is a config and a recipe: not for a network that was trained in a loop of the user's own and saved."""
        return bool(self.asked)

    @property
    def train(self) -> TrainConfig:
        """The requested config.

        Raises:
            RunError: There is none, or a part is unknown; the message names the plug-in it may come from.
        """
        if not self.was_trained_here:
            raise RunError("the network was trained in Python and saved: nothing says on which data, or how")
        with self.naming_plugins():
            return TrainConfig.from_dict(self.asked)

    @property
    def recipe(self) -> Recipe:
        """The recipe that took effect.

        Raises:
            RunError: A part is unknown; the message names the plug-in it may come from.
        """
        with self.naming_plugins():
            return Recipe(**self.took_effect)

    @contextmanager
    def naming_plugins(self) -> Iterator[None]:
        """Within, an error about an unknown part names the plug-ins that it may come from."""
        try:
            yield
        except (RunError, UnknownPart) as error:
            if not self.plugins:
                raise
            flags = " ".join(f"--plugin {plugin}" for plugin in self.plugins)
            raise RunError(
                f"{error}; the run used a plug-in, which is code and is loaded only if you name it: {flags}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "format": FORMAT,
            "train": self.asked,
            "recipe": self.took_effect,
            "network": self.network,
            "data": {
                **asdict(self.data),
                "class_names": list(self.data.class_names),
                "stored_size": list(self.data.stored_size),
            },
            "plugins": list(self.plugins),
            "environment": self.environment,
            **({} if self.origin is None else {"origin": asdict(self.origin)}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Manifest:
        """Create a manifest from the contents of config.json, of this version or an older one.

        Raises:
            RunError: It was written by an unknown version, something is missing from it, or something has the wrong type.
        """
        try:
            values = _Stored(**_upgrade(stored))
            data = dict(values.data)
            for name in ("class_names", "stored_size"):  # JSON has lists only
                if isinstance(data.get(name), list):
                    data[name] = tuple(map(_encodable, data[name]))
            if "label" in data:
                data["label"] = _encodable(data["label"])
            for section, settings in values.train.items():
                SECTIONS[section](**settings)
            if values.train or values.recipe:
                # Names are looked up on demand only, as they may be those of a plug-in.
                named = {"schedule": next(iter(SCHEDULES)), "loss": next(iter(LOSSES)), "augment": None}
                Recipe(**{**values.recipe, **named})
            return cls(
                values.train,
                values.recipe,
                values.network,
                TrainedOn(**data),
                values.environment,
                tuple(values.plugins),
                digest_of(stored["train"], stored["recipe"]),
                None if values.origin is None else Origin(**values.origin),
            )
        except KeyError as error:
            raise RunError(f"it is not the config of a run: {error} is missing, or unknown") from error
        # A folder's name, to which the config of a 0.1 run leads, may be anything.
        except (TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
            raise RunError(f"it is not the config of a run: {type(error).__name__} {error}") from error


def _encodable(value: Any) -> Any:
    """A name that pages, answers and files can hold: JSON has halves of characters, which no encoding has."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


@checked_dataclass
class _Stored:
    """The layout of config.json, in the format of this version."""

    format: int
    train: dict[str, dict[str, Any]]
    recipe: dict[str, Any]
    network: dict[str, Any]
    data: dict[str, Any]
    environment: dict[str, str]
    plugins: list[str] = field(default_factory=list)
    origin: dict[str, Any] | None = None


def digest_of(train: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """SHA-256 of config and recipe as they are stored, so that the digest of an older run does not change."""
    return hashlib.sha256(json.dumps({"train": train, "recipe": recipe}, sort_keys=True).encode()).hexdigest()


def _upgrade(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of config.json in the format of this version.

    Raises:
        RunError: It was written by an unknown version.
    """
    if stored.get("format") == FORMAT:
        return dict(stored)
    if stored.get("format") != 1:
        raise RunError(
            f"it was written by another version of shortcaps (format {stored.get('format')!r}; this one reads 1 to {FORMAT})"
        )
    train: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in stored["train"].items():
        flag = FLAGS[_OLD_FLAGS.get(name, name)]
        train[flag.section][flag.field.name] = _new_network(value) if name == "network" else value
    recipe = dict(stored["recipe"])
    # Format 1 nested these settings under the name of the run's routing.
    recipe["routing_settings"] = next(iter(recipe["routing_settings"].values()), {})
    network, data = _new_network(stored["network"]), dict(stored["data"])
    image_size = network["image_size"]
    data.setdefault("stored_size", [image_size, image_size] if isinstance(image_size, int) else image_size)
    # What 0.1 called solids has another name now, as there are more of them.
    for place in (train["data"], data):
        if place.get("name") in ("solids", "solids-azimuth", "solids-elevation"):
            place["name"] = place["name"].replace("solids", "solids-small", 1)
    spec = find_spec(data["name"])
    facts = data.pop("preparation", {"bright_on_dark": spec.bright_on_dark, "centred_digits": spec.centred_digits})
    return {**stored, "format": FORMAT, "train": train, "recipe": recipe, "network": network, "data": {**data, **facts}}


def _new_network(network: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `create_model` from those of 0.1, which had `preset` and `stem_channels`."""
    settings = dict(network)
    if "preset" in settings:
        settings["name"] = settings.pop("preset")
    stem = {new: settings.pop(old) for old, new in _OLD_STEM.items() if old in settings}
    return settings | ({"backbone_settings": stem} if stem else {})

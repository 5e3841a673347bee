"""Trained weights that a run begins with: those of another run, or of a network given in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shortcaps.data import DATASETS, Dataset
from shortcaps.errors import RunError
from shortcaps.files import read_json
from shortcaps.inference.load import load
from shortcaps.models import Network, create_model
from shortcaps.models.blueprint import plain_blueprint
from shortcaps.models.plan import as_size
from shortcaps.pretrained import find_run
from shortcaps.recipes import RECIPES
from shortcaps.runs.config import FINE_TUNING_RATE, FLAGS, TrainConfig
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.located import is_data_of, locate_data, shown_alike
from shortcaps.runs.manifest import Origin
from shortcaps.runs.weights import read_header

_INHERITED = [flag for flag, place in FLAGS.items() if place.section == "optim" and flag not in ("epochs", "lr")]
_DATA_FLAGS = {flag: place.field.name for flag, place in FLAGS.items() if place.section == "data"}


@dataclass(frozen=True)
class Start:
    """The network that a run begins with.

    Attributes:
        network: The arguments of `create_model` for it.
        weights: Its tensors by name.
        class_names: Of its classes; empty for those of the data.
        origin: Where it comes from, without what is kept of it.
        takes_any_size: Whether no weight depends on the size of the images.
        validation: Fingerprint of the validation images, if it was trained on them as well.
    """

    network: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    class_names: tuple[str, ...]
    origin: Origin
    takes_any_size: bool
    validation: str | None = None

    @classmethod
    def of_config(cls, config: TrainConfig) -> Start | None:
        """The network of the run that a config begins with; None if it begins with none.

        Raises:
            RunError: It is no run, or its network is another than the config's.
        """
        if config.model.start is None:
            return None
        start = cls.of_run(config.model.start)
        for flag, name in (("model", "name"), ("routing", "routing"), ("shortcut", "shortcut")):
            if name in start.network and start.network[name] != config.get(flag):
                raise RunError(
                    f"{config.model.start} holds a network with {flag} {start.network[name]}, not {config.get(flag)}: "
                    f"leave --{flag} out"
                )
        return start

    @classmethod
    def of_run(cls, run: str | Path) -> Start:
        """The network of a run.

        Raises:
            RunError: It is no run, or its training has not finished.
        """
        path = find_run(run)
        manifest, model = read_manifest(path), load(path)
        file = RunDirectory(path).weights_file
        result = path / "result.json"
        try:
            epochs = int(read_json(result)["best_epoch"]) if result.is_file() else None
        except (OSError, ValueError, KeyError, TypeError):
            epochs = None
        origin = Origin(
            run=str(path.resolve()),
            sha256=read_header(file).sha256 or "",
            trained_on=manifest.data.label,
            epochs=epochs,
        )
        refitted = manifest.was_trained_here and manifest.train.data.refit
        validation = manifest.data.fingerprints.get("validation") if refitted else None
        return cls(manifest.network, model.state_dict(), model.class_names, origin, model.takes_any_size, validation)

    def check_validation(self, data: Dataset) -> None:
        """Raise RunError if weights would be selected by images that the network was trained on."""
        if self.validation is not None and data.has_fingerprint(self.validation):
            raise RunError(
                f"{self.origin.run} was trained on the validation images of {data.name} as well (--refit), so that they select nothing: "
                "train on them here too, with --refit"
            )

    @classmethod
    def of_network(cls, model: Network, blueprint: Mapping[str, Any] | None = None) -> Start:
        """A network that was given in Python, with the weights it has.

        Raises:
            RunError: Nothing says how to make it again.
        """
        try:
            network = plain_blueprint(model, blueprint)
        except ValueError as error:
            raise RunError(str(error)) from error
        weights = {name: tensor.detach().clone().cpu() for name, tensor in model.state_dict().items()}
        return cls(network, weights, (), Origin(), model.takes_any_size)

    def network_for(self, data: Dataset) -> dict[str, Any]:
        """The arguments of `create_model` for the images and classes of a data set.

        Raises:
            RunError: The images are of another size or have other channels.
        """
        channels, height, width = data.image_shape
        own = as_size(self.network["image_size"])
        expected = (self.network["channels"], *own)
        fits = channels == expected[0] and (self.takes_any_size or (height, width) == own)
        if not fits:
            where = self.origin.run or "the network"
            raise RunError(
                f"{data.label} has images of {'x'.join(map(str, data.image_shape))}, but {where} takes "
                f"{'x'.join(map(str, expected))} (channels x height x width): choose --image-size and --colour or --grey to match"
            )
        size = height if height == width else [height, width]
        return {**self.network, "image_size": size, "classes": len(data.class_names)}

    def origin_for(self, data: Dataset) -> Origin:
        """Where the weights come from, with what is kept of them for the classes of a data set."""
        anew = [] if self.class_names in ((), data.class_names) else tensors_of_classes(self.network)
        kept = len(self.weights) - len(anew)
        found = self.origin
        return Origin(found.run, found.sha256, found.trained_on, found.epochs, kept, anew)

    def fill(self, model: Network, origin: Origin) -> None:
        """Give a network these weights, but for those that are made anew.

        Raises:
            RunError: They do not fit.
        """
        kept = {name: tensor for name, tensor in self.weights.items() if name not in origin.made_anew}
        try:
            missing, unexpected = model.load_state_dict(kept, strict=False)
        except RuntimeError as error:
            raise RunError(f"the weights to begin with do not fit: {' '.join(str(error).split())[:300]}") from error
        if unexpected or sorted(missing) != sorted(origin.made_anew):
            names = ", ".join([*unexpected, *(set(missing) - set(origin.made_anew))])
            raise RunError(f"the weights to begin with do not fit the network: {names}")


def tensors_of_classes(network: Mapping[str, Any]) -> list[str]:
    """Names of the tensors that belong to the classes: those whose shapes change with their number.

    Args:
        network: The arguments of `create_model`.

    Raises:
        RunError: The network takes no other number of classes.
    """
    shapes = []
    for classes in range(1, 4 * network["classes"] + 4):
        try:
            with torch.device("meta"):
                model = create_model(**{**network, "classes": classes})
        except ValueError:  # a network may take some numbers only, such as those of pairs
            continue
        shapes.append({name: tensor.shape for name, tensor in model.state_dict().items()})
        if len(shapes) == 2:
            return [name for name, shape in shapes[0].items() if shapes[1].get(name) != shape]
    raise RunError(f"a {network['name']} takes no other classes: which of its tensors belong to them cannot be said")


def network_flags(network: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of a network, by the names of the command line; image size, channels and classes are the data's.

    Args:
        network: The arguments of `create_model`.
    """
    rest = {name: value for name, value in network.items() if name not in ("image_size", "channels", "classes")}
    flags = {"model": rest.pop("name")}
    flags |= {name: rest.pop(name) for name in ("routing", "shortcut") if name in rest}
    return {**flags, "network": rest}


def settings_from(run: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that begins with another one: the network is its, and so is all else that is not given.

    Args:
        run: The run to begin with.
        settings: What the user gave, by the names of the command line.

    Raises:
        RunError: It is no run.
    """
    manifest = read_manifest(find_run(run))
    if "network" in settings:
        raise RunError(f"the network is that of {run}, as it was trained: leave [network] out")
    inherited = network_flags(manifest.network)
    named = settings.get("data")
    # Its own folder too: divided otherwise, what it was trained on would be tested with.
    if named is None or (str(named) not in DATASETS and is_data_of(manifest, str(named))):
        data = locate_data(manifest, named)
        inherited |= {flag: getattr(data, field) for flag, field in _DATA_FLAGS.items()}
        if settings.get("protocol", data.protocol) != data.protocol:
            inherited["refit"] = False
    elif str(named) not in DATASETS:
        # Pictures in a folder are shown to it as those that it knows.
        inherited |= shown_alike(manifest)
    return {**inherited, **inherited_training(run, settings), **settings, "start": str(run)}


def inherited_training(run: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """How a run that begins with another one is trained, as far as it is not given: as that was, at a tenth of its rate.

    Args:
        run: The run to begin with.
        settings: What the user gave, by the names of the command line. If a recipe is among it, nothing is inherited.

    Raises:
        RunError: It is no run, or its recipe is a file that is not found from here.
    """
    manifest = read_manifest(find_run(run))
    if "recipe" in settings or not manifest.was_trained_here:
        return {}
    recipe = manifest.train.optim.recipe
    if recipe is not None and recipe not in RECIPES and not Path(recipe).expanduser().is_file():
        raise RunError(f"{run} was trained by the recipe {recipe}, which is not found from here: give it with --recipe")
    # The full rate would soon undo what the weights have learned; that of a run that was fine-tuned itself is low already.
    share = FINE_TUNING_RATE if manifest.train.model.start is None else 1
    return {flag: manifest.train.get(flag) for flag in _INHERITED} | {"lr": share * manifest.recipe.lr}

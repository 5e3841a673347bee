"""`shortcaps.train`: training from Python with objects, a network and data sets, instead of names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shortcaps.data import SPLITS, Dataset
from shortcaps.errors import RunError
from shortcaps.inference.load import load
from shortcaps.models import MODELS, Network
from shortcaps.runs.config import FLAGS, TrainConfig
from shortcaps.runs.directory import read_manifest
from shortcaps.training.display import ConsoleDisplay, Display
from shortcaps.training.run import TrainingResult
from shortcaps.training.run import train as train_config
from shortcaps.training.start import Start, inherited_training, network_flags

HELD_OUT = 10
"""One image in so many becomes a validation image, and one a test image, where none are given."""


def train(
    model: Network | str | Path,
    train_data: Dataset,
    validation_data: Dataset | None = None,
    test_data: Dataset | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    show: bool = True,
    **settings: Any,
) -> TrainingResult | None:
    """Train a network on images in memory, test it once, and leave a run directory that every command takes.

    Args:
        model: A network, which begins with the weights it has and has the selected ones afterwards; the name of one, which is created
            for the images; or a run directory, whose network is trained further (see `shortcaps train --from`).
        train_data: Images to train on, e.g. of `load_dataset`, or a `Dataset` made of tensors.
        validation_data: Images to select weights by; by default a tenth of `train_data` is held out.
        test_data: Images to test with once, at the end; by default another tenth.
        out: The run directory.
        resume: Whether to resume the run in it, with the same images, a network like its own, and the settings it was started with, which
            may be left out.
        show: Whether progress is printed.
        **settings: Settings of `shortcaps train` by their names on the command line, with underscores: `recipe`, `epochs`, `batch_size`, `lr`,
            `loss`, `seed`, `precision`, `freeze`…; those of a network given by name too: `routing`, `network={…}`. Of those of
            the data only `refit`: the images are used as they are.

    Returns:
        The result, with the evaluation on the test images and the directory.

    Raises:
        RunError: The network and the images do not fit each other, a setting makes no sense, or a run to resume was started otherwise.
        RunFault: Something failed while running: a loss that is not finite, a full disk.

    Example:
        model = shortcaps.create_model("compact-23k", image_size=28, classes=10)
        result = shortcaps.train(model, shortcaps.load_dataset("mnist", "train"), out="runs/mine", epochs=1)
        result.test.accuracy
    """
    for name in settings:
        if name in FLAGS and FLAGS[name].section == "data" and name != "refit":
            raise RunError(
                f"{name} goes with data sets by name, but the images were given: leave it out, or give it to load_dataset"
            )
    splits = _splits(train_data, validation_data, test_data)
    network = _find_network(model)
    given = dict(settings)
    start = None
    if isinstance(network, Network):
        if network.classes != len(train_data.class_names):
            raise RunError(
                f"the network has {network.classes} classes, but {train_data.label} has {len(train_data.class_names)}: "
                f"create it with classes={len(train_data.class_names)}"
            )
        start = Start.of_network(network)
    elif isinstance(network, Path):
        start = Start.of_run(network)
        settings = {**inherited_training(network, settings), **settings, "start": str(network)}
    else:
        settings["model"] = given["model"] = network
    if start is not None:
        settings |= _settings_of(start, settings)
    config = TrainConfig.of(data=train_data.name, protocol=train_data.protocol, **settings)
    if resume:
        _check_resumed(Path(out), config, given, start, train_data)
    display: Display | None = None
    if show:
        from rich.console import Console

        display = ConsoleDisplay(Console())
    result = train_config(config, Path(out), resume=resume, display=display, start=start, splits=splits)
    if result is not None and isinstance(network, Network):
        network.load_state_dict(load(result.run).state_dict())
        network.class_names = tuple(train_data.class_names)
    return result


def _find_network(model: Network | str | Path) -> Network | Path | str:
    """The network itself, the path of a run, or the name of a network."""
    if isinstance(model, Network):
        return model
    if isinstance(model, str) and model in MODELS:
        return model
    if isinstance(model, str | Path) and (Path(model).expanduser() / "config.json").is_file():
        return Path(model).expanduser()
    if isinstance(model, str):
        raise RunError(f"{MODELS.unknown(model)}, or give a Network or a run directory")
    raise RunError(f"a {type(model).__name__} is not a Network: give one, its name, or a run directory")


def _settings_of(start: Start, given: dict[str, Any]) -> dict[str, Any]:
    """What a config says of the network to begin with."""
    for name in ("model", "routing", "shortcut", "network"):
        if name in given:
            raise RunError(f"{name} is a setting of the network, which was given: leave it out")
    return network_flags(start.network)


def _check_resumed(
    run: Path, config: TrainConfig, given: Mapping[str, Any], start: Start | None, data: Dataset
) -> None:
    """Raise RunError if settings or network are not those that a run was started with: it would resume with its own, without a word.

    Args:
        run: The run to resume.
        config: The config of what was asked for now.
        given: The settings that the caller gave; the others may differ.
        start: The network that was given, if it was no name.
        data: The training images.
    """
    manifest = read_manifest(run)
    stored, otherwise = manifest.train, "or start another run with another out"
    for name in given:
        value = json.loads(json.dumps(config.get(name), default=repr))  # as config.json holds it
        if value != stored.get(name):
            raise RunError(
                f"{name} {value} is not what {run} was started with ({stored.get(name)}): leave it out, {otherwise}"
            )
    if start is None:
        return
    network = start.network_for(data)
    for name in dict.fromkeys(("name", *network, *manifest.network)):
        if network.get(name) != manifest.network.get(name):
            raise RunError(
                f"the network has {name} {network.get(name)}, but that of {run} has {manifest.network.get(name)}: create it alike, "
                f"{otherwise}"
            )
    before = "" if manifest.origin is None else manifest.origin.sha256
    if start.origin.run and start.origin.sha256 != before:
        raise RunError(
            f"{run} did not begin with the weights of {start.origin.run}: give the run it began with, {otherwise}"
        )


def _splits(training: Dataset, validation: Dataset | None, test: Dataset | None) -> dict[str, Dataset]:
    if not isinstance(training, Dataset):
        raise RunError(
            f"train_data is a {type(training).__name__}: give a Dataset, of load_dataset or made of tensors "
            "(shortcaps.data.Dataset)"
        )
    missing = [split for split, part in (("validation", validation), ("test", test)) if part is None]
    if missing:
        held_out = max(1, len(training) // HELD_OUT)
        if len(training) < HELD_OUT:
            raise RunError(f"{len(training)} images are too few to hold some out: give validation_data and test_data")
        # Images of one original stay together, and so do copies, so that none of them is trained on and tested with.
        groups = torch.arange(len(training))
        if training.originals is not None:
            groups = training.originals
        elif training.hashes is not None:
            groups = training.hashes.unique(dim=0, return_inverse=True)[1]
        names = groups.unique()
        order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(0))]
        share = max(1, held_out * len(names) // len(training))
        parts = {split: order[n * share : (n + 1) * share] for n, split in enumerate(missing)}
        chosen = {split: torch.isin(groups, part).nonzero().squeeze(1) for split, part in parts.items()}
        rest = (~torch.isin(groups, order[: len(missing) * share])).nonzero().squeeze(1)
        if validation is None:
            validation = replace(training.subset(chosen["validation"]), split="validation")
        if test is None:
            test = replace(training.subset(chosen["test"]), split="test")
        training = training.subset(rest)
    assert validation is not None, "it was given, or held out"
    assert test is not None, "it was given, or held out"
    found = dict(zip(SPLITS, (training, validation, test), strict=True))
    for split, part in found.items():
        if not len(part):
            raise RunError(f"there are no images for {split}: give some as {split}_data")
        if part.class_names != training.class_names or part.image_shape != training.image_shape:
            raise RunError(
                f"the images for {split} have other classes or another size than those for training: "
                f"{len(part.class_names)} classes, {'x'.join(map(str, part.image_shape))}"
            )
    return found

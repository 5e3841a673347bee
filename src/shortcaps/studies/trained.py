"""Trained networks of a study: found where other commands have trained them, or trained now; each is an ordinary run directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shortcaps.errors import RunError
from shortcaps.files import sha256_of
from shortcaps.inference.load import load
from shortcaps.models import Network
from shortcaps.reproduce.grid import Job, Launch, check_run, run_jobs
from shortcaps.reproduce.records import differences, settings_by_network, shared_settings
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory, read_manifest, runs_by_name
from shortcaps.runs.manifest import Manifest
from shortcaps.studies.networks import cell_of, name_of
from shortcaps.studies.study import Part, Study

log = logging.getLogger(__name__)

ELSEWHERE = ("compact", "table1", "table1-long")
"""Folders beside that of the studies where `shortcaps reproduce` keeps its runs."""
_MUST_FIT = (
    *("data", "protocol", "max_images", "per_class", "refit", "draw", "data_options", "camera", "image_size", "colour"),
    *("model", "routing", "shortcut", "network", "start", "freeze", "seed", "precision"),
)
"""Settings besides those of the recipe in which a run must be what was asked for."""


@dataclass(frozen=True)
class Trained:
    """A finished run of one network.

    Attributes:
        network: Name of the network in the study.
        seed: Seed of the run.
        part: The part of the study that it was trained for.
        run: Its directory.
    """

    network: str
    seed: int
    part: str
    run: Path

    @cached_property
    def manifest(self) -> Manifest:
        """What the run says of itself."""
        return read_manifest(self.run)

    @cached_property
    def result(self) -> dict[str, Any]:
        """What its result.json holds."""
        return json.loads((self.run / "result.json").read_text())

    def load(self, epoch: int | None = None) -> Network:
        """The network, by default with the selected weights."""
        return load(self.run, epoch=epoch)

    def describe(self) -> dict[str, Any]:
        """What a record keeps of the run, as plain values."""
        manifest = self.manifest
        return {
            "run": str(self.run),
            "weights_sha256": sha256_of(RunDirectory(self.run).weights_file),
            "dataset": manifest.train.data.name,
            "protocol": manifest.data.protocol,
            "recipe": manifest.train.recipe_name,
            "epochs": manifest.recipe.epochs,
            "recipe_epochs": manifest.train.changed(epochs=None).make_recipe().epochs,
            "max_images": manifest.train.data.max_images,
            "conditions": shared_settings(manifest.recipe),
            "by_network": settings_by_network(manifest.recipe),
            "by_hand": {
                name: manifest.train.get(name) for name in ("lr", "loss") if manifest.train.get(name) is not None
            },
            "precision": manifest.train.run.precision,
            "parameters": self.result["parameters"],
            "test_set": self.result["test_set"],
            "test_accuracy": self.result["test"]["accuracy"],
            "validation_error": self.result["validation_error"],
            "best_epoch": self.result["best_epoch"],
            "training_seconds": self.result["training_seconds"],
            "commit": manifest.environment["commit"],
        }


@dataclass(frozen=True)
class Wanted:
    """A run that a study needs.

    Attributes:
        network: Name of the network in the study.
        seed: Its seed.
        part: The part of the study.
        job: How to train it.
    """

    network: str
    seed: int
    part: Part
    job: Job

    def at(self, run: Path) -> Trained:
        """The finished run in a directory."""
        return Trained(self.network, self.seed, self.part.name, run)


def wanted_runs(study: Study, networks: Sequence[str], seeds: int, folder: Path) -> list[Wanted]:
    """All runs that a study needs, one seed of all networks before the next.

    Args:
        study: The study.
        networks: Names of the networks.
        seeds: How many; they are 0, 1, 2 …
        folder: Where the studies' runs are.
    """
    wanted = []
    for seed in range(seeds):
        for network in networks:
            for part in study.parts():
                settings = dict(part.settings) | ({"draw": seed} if part.draws else {})
                cell = cell_of(part.prefix + network, settings.pop("data"))
                config = cell.config(seed=seed, adapt=False, **settings)
                run = folder / part.folder / f"{cell.name.replace('/', '-')}-seed{seed}"
                wanted.append(Wanted(network, seed, part, Job(cell, config, run)))
    return wanted


def is_finished(run: Path) -> bool:
    """Whether a directory holds a run that has ended."""
    return (run / "result.json").is_file() and RunDirectory(run).weights_file.is_file()


class Shelf:
    """Finished runs that other commands have left, so that nothing is trained twice.

    Args:
        folders: Where to look; each holds run directories.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = [file.parent for folder in folders for file in sorted(folder.glob("*/config.json"))]

    @cached_property
    def finished(self) -> list[tuple[Path, Manifest]]:
        """Those that have ended and can be read."""
        found = []
        for run in self.runs:
            if is_finished(run):
                try:
                    found.append((run, read_manifest(run)))
                except RunError as reason:
                    log.warning("%s is left out: %s", run, reason)
        return found

    def find(self, config: TrainConfig) -> Path | None:
        """A run that has computed what this config asks for, whatever its recipe was called."""
        for run, manifest in self.finished:
            keeps = manifest.train.run.keep_epochs or not config.run.keep_epochs
            if keeps and not differences(manifest, config, _MUST_FIT):
                return run
        return None


def find_run(wanted: Wanted, shelf: Shelf) -> Path | None:
    """The finished run in its own place or on the shelf; None if it has to be trained.

    Raises:
        RunError: Its own place holds a run with other settings.
    """
    check_run(wanted.job, "--train-in")
    return wanted.job.run if is_finished(wanted.job.run) else shelf.find(wanted.job.config)


def train_missing(
    wanted: Sequence[Wanted], *, devices: int = 1, launch: Launch | None = None
) -> tuple[dict[str, str], bool]:
    """Train, or resume, runs in their own places.

    Args:
        wanted: The runs.
        devices: How many are trained at the same time.
        launch: Runs a job; in a process of its own if None.

    Returns:
        What went wrong, by run, and whether a signal stopped it all.
    """
    return run_jobs([entry.job for entry in wanted], devices=devices, launch=launch)


def runs_by_pattern(patterns: str, study: Study) -> Iterator[Trained]:
    """Finished runs by the names or patterns of their directories, separated by commas.

    A run belongs to the part of the study whose data it was trained on.

    Raises:
        RunError: A pattern names no finished run, or a run was trained on other data than the study needs.
    """
    for pattern, found in runs_by_name(patterns, is_finished):
        if not found:
            raise RunError(f"--runs {pattern!r} names no finished run: give run directories, or patterns of them")
        for run in found:
            config = read_manifest(run).train
            if config.data.refit:
                raise RunError(
                    f"{run} was trained on the validation images as well (--refit), which studies measure by: give other runs"
                )
            part = _part_of(config, run, study)
            yield Trained(name_of(config).removeprefix(part.prefix), config.run.seed, part.name, run)


def _part_of(config: TrainConfig, run: Path, study: Study) -> Part:
    for part in study.parts():
        fits = config.data.name in (part.settings["data"], *part.accepts)
        if fits and config.data.per_class == part.settings.get("per_class"):
            return part
    needed = " or ".join(dict.fromkeys(str(part.settings["data"]) for part in study.parts()))
    raise RunError(f"{run} was trained on {config.data.name}, but the study {study.name} needs {needed}")

"""Records: what a finished cell leaves under `results/`, one JSON file for each cell and seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from shortcaps.data import DatasetSpec, find_spec
from shortcaps.errors import RunError
from shortcaps.files import atomic_write, read_json, write_json
from shortcaps.recipes import Recipe
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import Cell
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.manifest import Manifest

SETTINGS_BY_NETWORK = ("lr", "loss", "loss_settings", "routing_settings")
"""What a recipe sets for each routing and network: squashed poses need another loss than others do, for example."""

REFITTED = "ᵛ"
"""Marks runs that were trained on the validation images as well."""


def shared_settings(recipe: Recipe) -> dict[str, Any]:
    """What must be equal for two networks to have been trained alike: a recipe but for what it has by network."""
    return {name: value for name, value in asdict(recipe).items() if name not in SETTINGS_BY_NETWORK}


def settings_by_network(recipe: Recipe) -> dict[str, Any]:
    """The rest, which must be equal in two runs of one network."""
    return {name: value for name, value in asdict(recipe).items() if name in SETTINGS_BY_NETWORK}


def completed(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Stored `shared_settings`, with the defaults of settings that recipes did not have yet when these were stored."""
    optional = (f for f in fields(Recipe) if f.default is not MISSING and f.name not in SETTINGS_BY_NETWORK)
    return {**{f.name: f.default for f in optional}, **conditions}


def still_counts(dataset: str) -> bool:
    """Whether a test on this data set counts: one on a replica does only as long as the published images are unavailable."""
    return not find_spec(dataset).original_is_here()


@dataclass(frozen=True)
class Record:
    """One finished run of one cell, as stored in its file.

    Attributes:
        values: The contents of the file.
    """

    values: dict[str, Any]

    @cached_property
    def manifest(self) -> Manifest:
        """The config of its run, whichever version has written it."""
        return Manifest.from_json(self.values["config"])

    @property
    def max_images(self) -> int | None:
        """How many images a trial run was given; None where it had all."""
        return self.manifest.asked["data"]["max_images"]

    @property
    def refitted(self) -> bool:
        """Whether it was trained on the validation images as well."""
        return bool(self.manifest.train.data.refit)

    @property
    def precision(self) -> str:
        """What it was trained in, one of `PRECISIONS`."""
        return self.manifest.train.run.precision

    @property
    def dataset(self) -> DatasetSpec:
        """What it was tested on."""
        return find_spec(self.values["dataset"])

    @property
    def family(self) -> str | None:
        """`shortcut` or `sequential`; None for networks without that choice."""
        shortcut = self.values["shortcut"]
        return None if shortcut is None else "shortcut" if shortcut else "sequential"

    @property
    def cell(self) -> Cell:
        """The cell; a replica is in the column of its original, with a mark."""
        v = self.values
        return Cell(v["network"], self.family, v["routing"], self.dataset.replica_of or v["dataset"])

    @property
    def accuracy(self) -> float:
        """Test accuracy as a fraction."""
        return float(self.values["test_accuracy"])

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return int(self.values["epochs"])

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.manifest.train.recipe_name

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal for two networks to be compared: data, protocol, precision, and the recipe but for what it has by network."""
        shared = shared_settings(self.manifest.recipe)
        data = self.values["dataset"], self.values["protocol"], self.max_images, self.refitted
        return *data, self.precision, self.recipe, json.dumps(shared, sort_keys=True)

    @property
    def repetition(self) -> tuple[object, ...]:
        """What is equal in two runs of one network that differ in nothing but their seed."""
        own = settings_by_network(self.manifest.recipe)
        return self.cell, *self.conditions, json.dumps(own, sort_keys=True)

    @property
    def is_replica(self) -> bool:
        """Whether it was tested on regenerated images, not on the published ones."""
        return self.dataset.replica_of is not None

    @property
    def leaky(self) -> bool:
        """Whether the choice of weights saw what the test is like."""
        return self.values["protocol"] in self.dataset.leaks

    @property
    def as_published(self) -> bool:
        """Trained by the paper's recipe and protocol, in single precision, as long as the paper's, on all images, and tested on the published set."""
        # Where the paper's protocol leaks nothing, the default is the same.
        as_the_authors = self.values["protocol"] == "paper" or "paper" not in self.dataset.leaks
        in_full = self.precision == "32-true" and not self.shortened and not self.refitted
        return self.recipe == "paper" and as_the_authors and in_full and not self.is_replica

    @property
    def commits(self) -> tuple[str, ...]:
        """Of the code that computed it: more than one where the run was resumed after a change."""
        later = (resumed["environment"]["commit"] for resumed in self.values.get("resumed", []))
        return tuple(dict.fromkeys((str(self.values["commit"]), *later)))

    @property
    def shortened(self) -> bool:
        """Whether it had fewer epochs than the paper, or not all images."""
        return self.epochs < published.EPOCHS or self.max_images is not None

    @property
    def trial(self) -> bool:
        """Whether it was cut short even for its own recipe: fewer epochs, or not all images."""
        return self.epochs < self.values["recipe_epochs"] or self.max_images is not None

    @property
    def file_name(self) -> str:
        """The name of its file, without a folder."""
        v = self.values
        parts = [v["network"], self.family, v["routing"], v["dataset"], f"seed{v['seed']}"]
        return "-".join(part for part in parts if part) + ".json"

    @property
    def answers_name(self) -> str:
        """The file beside the record that holds the network's answers to the test images."""
        return self.file_name.removesuffix(".json") + ".npz"


NEEDED = (
    "network shortcut routing dataset protocol seed epochs recipe_epochs parameters test_accuracy test_accuracy_interval_95 "
    "test_images training_seconds commit command config"
)


def record_of_run(cell: Cell, run: Path, command: str) -> Record:
    """From a finished run directory."""
    manifest = read_manifest(run)
    result = read_json(run / "result.json")
    test = result["test"]
    return Record(
        {
            "network": cell.network,
            "shortcut": None if cell.family is None else cell.family == "shortcut",
            "routing": cell.routing,
            "dataset": result["test_set"],
            "protocol": manifest.data.protocol,
            "seed": manifest.train.run.seed,
            "epochs": manifest.recipe.epochs,
            "recipe_epochs": manifest.train.changed(epochs=None).make_recipe().epochs,
            "parameters": result["parameters"],
            "test_accuracy": test["accuracy"],
            "test_accuracy_interval_95": test["interval_95"],
            "test_images": test["images"],
            "test_fingerprint": result.get("test_fingerprint"),
            "validation_error": result["validation_error"],
            "best_epoch": result["best_epoch"],
            "training_seconds": result["training_seconds"],
            "expected_calibration_error": test["expected_calibration_error"],
            "per_class": test["per_class"],
            "command": command,
            "commit": manifest.environment["commit"],
            "versions": manifest.environment,
            "resumed": result.get("resumed", []),
            "config": manifest.to_json(),
        }
    )


def write_record(record: Record, run: Path, folder: Path) -> Path:
    """Write a record into a folder.

    Returns:
        Its file.
    """
    answers = RunDirectory(run).answers_file
    if answers.is_file():  # runs of 0.1 have none
        with atomic_write(folder / record.answers_name) as file:
            file.write(answers.read_bytes())
    target = folder / record.file_name
    write_json(target, record.values)
    return target


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, in the order of their names."""
    records = []
    for file in sorted(folder.glob("*-seed*.json")):
        try:
            record = Record(read_json(file))
            complete = set(NEEDED.split()) <= record.values.keys() and record.file_name == file.name
            complete = complete and 0 <= record.accuracy <= 1 and bool(record.repetition)
        except (RunError, OSError, ValueError, KeyError, TypeError, AttributeError):
            complete = False
        if not complete:
            raise RunError(f"{file} is not a record of a run, or is damaged: move it away")
        records.append(record)
    return records


def worth(group: Sequence[Record]) -> tuple[bool, bool, bool, int, int]:
    """By which of several groups of runs that are alike the best is chosen, the largest.

    Published data is preferred to regenerated, then no leak, then not cut short, then more seeds, then more epochs.
    """
    first = group[0]
    return not first.is_replica, not first.leaky, not first.trial, len(group), first.epochs


def alike(records: Iterable[Record]) -> list[Record]:
    """Of the runs of one network those that differ in nothing but their seed: the best such group, by `worth`."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(record.repetition, []).append(record)
    return max(groups.values(), key=worth, default=[])


def differences(made: Manifest, asked: TrainConfig, flags: Iterable[str]) -> list[str]:
    """Where a stored run differs from what is asked for now: in its recipe, and in these settings.

    Args:
        made: What the run says of itself.
        asked: What is asked for.
        flags: Names of settings, as on the command line; those that a recipe has are compared as they took effect.
    """
    before, now = asdict(made.recipe), asdict(asked.make_recipe())
    if asked.model.start is not None:  # the network is there already: what a recipe has for networks takes no effect
        now |= {"dropout": None, "routing_settings": {}}
    compared = [(name, before[name], now[name]) for name in now]
    # What was adapted to the number of images shows in the recipe that took effect.
    compared += [(name, made.train.get(name), asked.get(name)) for name in flags if name not in (*now, "adapt")]
    return [f"{name} {old} instead of {new}" for name, old, new in compared if old != new]


def find_record(records: list[Record], cell: Cell, config: TrainConfig) -> Record | None:
    """The record of this cell and seed; raises RunError where it was made with other settings."""
    for record in records:
        other = record.cell != cell or record.values["seed"] != config.run.seed
        if other or not still_counts(record.values["dataset"]):
            continue
        differing = differences(record.manifest, config, ("protocol", "max_images", "refit", "precision"))
        if differing:
            raise RunError(
                f"{record.file_name} was made with {', '.join(differing)}: "
                "choose another --out and --runs, or move the record and its run away to run it again"
            )
        return record
    return None

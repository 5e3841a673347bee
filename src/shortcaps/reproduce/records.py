"""Records: what a finished cell leaves under `results/`, one JSON file for each cell and seed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shortcaps.data import DatasetSpec, find_spec
from shortcaps.errors import RunError
from shortcaps.files import write_json
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import Cell
from shortcaps.runs.config import RECIPES, TrainConfig
from shortcaps.runs.directory import read_run_config

SETTINGS_BY_NETWORK = ("lr", "routing_settings")
"""What a recipe sets for each routing and network."""


def still_counts(dataset: str) -> bool:
    """A test on a replica counts only until the published images are here."""
    return not find_spec(dataset).original_is_here()


@dataclass(frozen=True)
class Record:
    """One finished run of one cell, as it stands in its file."""

    values: dict[str, Any]

    @property
    def dataset(self) -> DatasetSpec:
        """What it was tested on."""
        return find_spec(self.values["dataset"])

    @property
    def family(self) -> str | None:
        shortcut = self.values["shortcut"]
        return None if shortcut is None else "shortcut" if shortcut else "sequential"

    @property
    def cell(self) -> Cell:
        """A replica stands in the column of its original, marked as what it is."""
        v = self.values
        return Cell(v["network"], self.family, v["routing"], self.dataset.replica_of or v["dataset"])

    @property
    def accuracy(self) -> float:
        return float(self.values["test_accuracy"])

    @property
    def epochs(self) -> int:
        return int(self.values["epochs"])

    @property
    def recipe(self) -> str:
        return str(self.values["config"]["train"]["recipe"])

    @property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal for two networks to be compared: data, protocol, and the recipe but for what it has by network."""
        recipe = {
            name: value for name, value in self.values["config"]["recipe"].items() if name not in SETTINGS_BY_NETWORK
        }
        trial = self.values["config"]["train"]["most_images"]
        return self.values["dataset"], self.values["protocol"], trial, self.recipe, json.dumps(recipe, sort_keys=True)

    @property
    def repetition(self) -> tuple[object, ...]:
        """What is equal in two runs of one network that differ in nothing but their seed."""
        own = {name: self.values["config"]["recipe"][name] for name in SETTINGS_BY_NETWORK}
        return self.cell, *self.conditions, json.dumps(own, sort_keys=True)

    @property
    def is_replica(self) -> bool:
        """Tested on images that were made anew, not on the published ones."""
        return self.dataset.replica_of is not None

    @property
    def leaky(self) -> bool:
        """The choice of weights saw what the test is like."""
        return self.values["protocol"] in self.dataset.leaks

    @property
    def as_published(self) -> bool:
        """Trained by the paper's recipe and protocol, as long as the paper's, on all images, and tested on the published set."""
        # Where the paper's protocol leaks nothing, the default is the same.
        as_the_authors = self.values["protocol"] == "paper" or "paper" not in self.dataset.leaks
        return self.recipe == "paper" and as_the_authors and not self.shortened and not self.is_replica

    @property
    def commits(self) -> tuple[str, ...]:
        """Of the code that computed it: more than one where the run was resumed after a change."""
        later = (resumed["environment"]["commit"] for resumed in self.values.get("resumed", []))
        return tuple(dict.fromkeys((str(self.values["commit"]), *later)))

    @property
    def shortened(self) -> bool:
        """Fewer epochs than the paper's, or not all images."""
        return self.epochs < published.EPOCHS or self.values["config"]["train"]["most_images"] is not None

    @property
    def trial(self) -> bool:
        """Cut short even for its own recipe: fewer epochs than it has, or not all images."""
        train = self.values["config"]["train"]
        return self.epochs < self.values["recipe_epochs"] or train["most_images"] is not None

    @property
    def file_name(self) -> str:
        v = self.values
        parts = [v["network"], self.family, v["routing"], v["dataset"], f"seed{v['seed']}"]
        return "-".join(part for part in parts if part) + ".json"


NEEDED = (
    "network shortcut routing dataset protocol seed epochs recipe_epochs parameters test_accuracy test_accuracy_interval_95 "
    "test_images training_seconds commit command config"
)


def record_of_run(cell: Cell, run: Path, command: str) -> Record:
    """From a finished run directory."""
    config = read_run_config(run)
    result = json.loads((run / "result.json").read_text())
    train, test = config["train"], result["test"]
    return Record(
        {
            "network": cell.network,
            "shortcut": None if cell.family is None else cell.family == "shortcut",
            "routing": cell.routing,
            "dataset": result["test_set"],
            "protocol": config["data"]["protocol"],
            "seed": train["seed"],
            "epochs": config["recipe"]["epochs"],
            "recipe_epochs": RECIPES[train["recipe"]].epochs,
            "parameters": result["parameters"],
            "test_accuracy": test["accuracy"],
            "test_accuracy_interval_95": test["interval_95"],
            "test_images": test["images"],
            "validation_error": result["validation_error"],
            "best_epoch": result["best_epoch"],
            "training_seconds": result["training_seconds"],
            "expected_calibration_error": test["expected_calibration_error"],
            "per_class": test["per_class"],
            "command": command,
            "commit": config["environment"]["commit"],
            "versions": config["environment"],
            "resumed": result.get("resumed", []),
            "config": config,
        }
    )


def write_record(record: Record, folder: Path) -> Path:
    target = folder / record.file_name
    write_json(target, record.values)
    return target


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, in the order of their names."""
    records = []
    for file in sorted(folder.glob("*-seed*.json")):
        try:
            record = Record(json.loads(file.read_text()))
            complete = set(NEEDED.split()) <= record.values.keys() and record.file_name == file.name
            complete = complete and 0 <= record.accuracy <= 1 and bool(record.repetition)
        except (ValueError, KeyError, TypeError, AttributeError):
            complete = False
        if not complete:
            raise RunError(f"{file} is not a record of Table 1, or is damaged: move it away")
        records.append(record)
    return records


def differences(made: dict[str, Any], asked: TrainConfig, settings: Iterable[str]) -> list[str]:
    """Where a stored config differs from what is asked for now: in its recipe, and in these settings of the run."""
    recipe = asked.effective_recipe
    compared: list[tuple[str, object, str]] = [("recipe", recipe, name) for name in recipe.__dataclass_fields__]
    compared += [("train", asked, name) for name in settings if name not in recipe.__dataclass_fields__]
    return [
        f"{name} {made[part].get(name)} instead of {getattr(wanted, name)}"
        for part, wanted, name in compared
        if made[part].get(name) != getattr(wanted, name)
    ]


def find_record(records: list[Record], cell: Cell, config: TrainConfig) -> Record | None:
    """The record of this cell and seed; raises RunError where it was made with other settings."""
    for record in records:
        other = record.cell != cell or record.values["seed"] != config.seed
        if other or not still_counts(record.values["dataset"]):
            continue
        differing = differences(record.values["config"], config, ("protocol", "most_images"))
        if differing:
            raise RunError(
                f"{record.file_name} was made with {', '.join(differing)}: "
                "choose another --out and --runs, or move the record and its run away to make it again"
            )
        return record
    return None

"""Records: what a finished cell leaves under `results/`, one JSON file for each cell and seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shortcaps.data.cache import written_whole
from shortcaps.reproduce.cells import Cell
from shortcaps.training.config import RECIPES, RunError, TrainConfig
from shortcaps.training.run import read_run_config

TAKEN_FROM_DATA = {"affnist-regenerated": "affnist"}
"""Data sets that stand in a column of another name, marked as what they are."""


@dataclass(frozen=True)
class Record:
    """One finished run of one cell, as it stands in its file."""

    values: dict[str, Any]

    @property
    def cell(self) -> Cell:
        v = self.values
        family = None if v["shortcut"] is None else "shortcut" if v["shortcut"] else "sequential"
        return Cell(v["network"], family, v["routing"], TAKEN_FROM_DATA.get(v["dataset"], v["dataset"]))

    @property
    def accuracy(self) -> float:
        return float(self.values["test_accuracy"])

    @property
    def epochs(self) -> int:
        return int(self.values["epochs"])

    @property
    def regenerated(self) -> bool:
        return self.values["dataset"] in TAKEN_FROM_DATA

    @property
    def shortened(self) -> bool:
        """Fewer epochs or images than the recipe has."""
        config = self.values["config"]["train"]
        return self.epochs < RECIPES[config["recipe"]].epochs or config["most_images"] is not None

    @property
    def file_name(self) -> str:
        v = self.values
        family = None if v["shortcut"] is None else "shortcut" if v["shortcut"] else "sequential"
        parts = [v["network"], family, v["routing"], v["dataset"], f"seed{v['seed']}"]
        return "-".join(part for part in parts if part) + ".json"


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
            "config": config,
        }
    )


def write_record(record: Record, folder: Path) -> Path:
    target = folder / record.file_name
    with written_whole(target) as file:
        file.write((json.dumps(record.values, indent=2) + "\n").encode())
    return target


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, in the order of their names."""
    records = []
    for file in sorted(folder.glob("*-seed*.json")):
        try:
            record = Record(json.loads(file.read_text()))
            assert 0 <= record.accuracy <= 1
            assert record.file_name == file.name
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise RunError(f"{file} is not a record of Table 1, or is damaged: move it away") from error
        records.append(record)
    return records


def find_record(records: list[Record], cell: Cell, config: TrainConfig) -> Record | None:
    """The record of this cell and seed; raises RunError where it was made with other settings."""
    for record in records:
        if record.cell != cell or record.values["seed"] != config.seed:
            continue
        asked, made = config.effective_recipe, record.values["config"]
        differing = [
            f"{name} {made['recipe'].get(name)} instead of {getattr(asked, name)}"
            for name in asked.__dataclass_fields__
            if made["recipe"].get(name) != getattr(asked, name)
        ]
        differing += [
            f"{name} {made['train'].get(name)} instead of {getattr(config, name)}"
            for name in ("protocol", "most_images")
            if made["train"].get(name) != getattr(config, name)
        ]
        if differing:
            raise RunError(
                f"{record.file_name} was made with {', '.join(differing)}: "
                "choose another --out, or move the record away to make it again"
            )
        return record
    return None

"""Does the shortcut cost accuracy, and what does it save: sentences computed from records, answers and Table 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from shortcaps.errors import RunError
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.records import Record, read_records, write_record
from shortcaps.reproduce.shortcuts import shortcut_sentences
from tests.reproduce.test_table1 import made_up

IMAGES = 1000


def record(folder: Path, family: str, routing: str, wrong: int, seed: int, **changes: object) -> Record:
    """A record of a network that answers the first images wrongly, and its answers beside it."""
    run = folder / "runs" / f"{family}-{routing}-{seed}"
    made = made_up(Cell("baseline", family, routing, "mnist"), 1 - wrong / IMAGES, seed, **changes)
    labels = torch.arange(IMAGES) % 10
    predicted = labels.clone()
    predicted[:wrong] = (labels[:wrong] + 1) % 10
    StoredAnswers(predicted, labels).write(run / "answers.npz")
    write_record(made, run, folder)
    return made


def said(folder: Path) -> list[str]:
    return list(shortcut_sentences(read_records(folder), folder, folder / "table2.json"))


def test_a_shortcut_that_costs_accuracy_is_said_to_and_one_that_does_not_is_not(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path, "shortcut", "fuzzy", 10 + seed, seed)
        record(tmp_path, "sequential", "fuzzy", 11 - seed, seed)
        record(tmp_path, "shortcut", "em", 100 + seed, seed)
        record(tmp_path, "sequential", "em", 10 + seed, seed)
    (sentence,) = said(tmp_path)
    assert sentence.startswith(
        "On MNIST the shortcut of the baseline network costs accuracy with em: em 89.90% with and 98.90% without"
    )
    assert "-9.00 points" in sentence
    assert "fuzzy 98.90% with and 99.00% without" in sentence
    for seed in range(3):
        for name in ("json", "npz"):
            (tmp_path / f"baseline-shortcut-em-mnist-seed{seed}.{name}").unlink()
    (sentence,) = said(tmp_path)
    assert "costs no accuracy that the test could show: fuzzy" in sentence


def test_runs_that_were_cut_short_say_nothing(tmp_path: Path) -> None:
    record(tmp_path, "shortcut", "fuzzy", 10, 0)
    record(tmp_path, "sequential", "fuzzy", 10, 0, epochs=3)
    assert said(tmp_path) == []


def test_time_and_memory_are_those_of_table_2(tmp_path: Path) -> None:
    row = {"network": "baseline", "routing": "em"}
    measured = [
        {**row, "family": "shortcut", "step_ms": 10.0, "step_memory": 100},
        {**row, "family": "sequential", "step_ms": 25.0, "step_memory": 300},
    ]
    (tmp_path / "table2.json").write_text(json.dumps({"networks": measured}))
    (sentence,) = said(tmp_path)
    assert "is 2.5 to 2.5 times as fast and needs 3.0 to 3.0 times less memory" in sentence


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"networks": [{"network": NaN}]}', '{"networks": [1]}', "[" * 5000])
def test_a_damaged_table_2_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "table2.json").write_text(text)
    with pytest.raises(RunError, match=r"table2\.json is not a measurement of Table 2, or is damaged"):
        said(tmp_path)

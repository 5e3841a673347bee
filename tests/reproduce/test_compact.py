"""Compact networks beside their twins: comparisons from records and stored answers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.errors import RunError
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.reproduce.cells import Cell, choose_cells
from shortcaps.reproduce.compact import compact_cells, compare, opponents, write_compact
from shortcaps.reproduce.readme import compact_lines
from shortcaps.reproduce.records import Record, read_records, write_record
from tests.reproduce.test_table1 import made_up

IMAGES = 1000


def record(folder: Path, network: str, wrong: int, seed: int, **changes: object) -> Record:
    """A record of a network that answers the first images wrongly, and its answers beside it."""
    run = folder / "runs" / f"{network}-{seed}"
    made = made_up(Cell(network, None, None, "mnist"), 1 - wrong / IMAGES, seed, routing=None, shortcut=None, **changes)
    labels = torch.arange(IMAGES) % 10
    predicted = labels.clone()
    predicted[:wrong] = (labels[:wrong] + 1) % 10
    StoredAnswers(predicted, labels).write(run / "answers.npz")
    write_record(made, run, folder)
    return made


def test_every_network_has_its_twin_and_a_cnn_of_its_size_as_opponents() -> None:
    assert opponents("compact-23k") == ["compact-23k-plain", "cnn-23k"]
    assert [cell.name for cell in choose_cells("compact-23k*/mnist,cnn-23k/mnist", compact_cells())] == [
        "compact-23k/mnist",
        "compact-23k-plain/mnist",
        "cnn-23k/mnist",
    ]
    with pytest.raises(RunError, match=r"no cell is called 'compact-23k/mnits': did you mean compact-23k/mnist"):
        choose_cells("compact-23k/mnits", compact_cells())


def test_a_network_that_makes_a_tenth_of_the_mistakes_is_ahead_and_one_alike_is_not_told_apart(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path, "compact-23k", 10 + seed, seed)
        record(tmp_path, "compact-23k-plain", 100 + seed, seed)
        record(tmp_path, "cnn-23k", 12 - seed, seed)
    twin, cnn = compare(read_records(tmp_path), tmp_path)
    assert (twin.network, twin.twin, twin.dataset, twin.seeds) == ("compact-23k", "compact-23k-plain", "mnist", 3)
    assert twin.difference == pytest.approx(0.09)
    assert twin.accuracy - twin.twin_accuracy == pytest.approx(twin.difference)
    assert twin.verdict == "ahead"
    assert "is ahead of compact-23k-plain" in str(twin)
    assert cnn.twin == "cnn-23k"
    assert cnn.verdict == "not told apart"


def test_runs_that_were_cut_short_or_stand_alone_are_not_compared(tmp_path: Path) -> None:
    record(tmp_path, "compact-23k", 10, 0)
    record(tmp_path, "compact-23k-plain", 100, 1)
    record(tmp_path, "cnn-23k", 50, 0, epochs=1)
    assert compare(read_records(tmp_path), tmp_path) == []


def test_paired_json_and_the_report_are_made_by_one_command(tmp_path: Path) -> None:
    record(tmp_path, "compact-23k", 10, 0)
    record(tmp_path, "compact-23k-plain", 100, 0)
    result = CliRunner().invoke(app, ["reproduce", "compact", "--report-only", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (found,) = json.loads((tmp_path / "paired.json").read_text())
    assert set(found) == {
        "network",
        "twin",
        "dataset",
        "accuracy",
        "twin_accuracy",
        "difference",
        "difference_interval",
        "seeds",
    }
    low, high = found["difference_interval"]
    assert found["difference"] == pytest.approx(0.09)
    assert low < found["difference"] < high
    report = (tmp_path / "report.md").read_text()
    assert "| MNIST | compact-23k | compact-23k-plain | +9.00 |" in report
    assert "99.00" in report


def test_runs_without_stored_answers_are_not_compared(tmp_path: Path) -> None:
    made = record(tmp_path, "compact-23k", 10, 0)
    record(tmp_path, "compact-23k-plain", 100, 0)
    (tmp_path / made.answers_name).unlink()
    assert compare(read_records(tmp_path), tmp_path) == []
    write_compact(read_records(tmp_path), tmp_path)
    assert json.loads((tmp_path / "paired.json").read_text()) == []


def test_answers_to_other_images_are_refused(tmp_path: Path) -> None:
    record(tmp_path, "compact-23k", 10, 0)
    made = record(tmp_path, "compact-23k-plain", 100, 0)
    labels = torch.zeros(IMAGES, dtype=torch.int64)
    StoredAnswers(labels, labels).write(tmp_path / made.answers_name)
    with pytest.raises(RunError, match=f"{made.answers_name} does not hold answers to the images of"):
        compare(read_records(tmp_path), tmp_path)


@pytest.mark.parametrize("changes", [{"recipe": "compact"}, {"precision": "bf16-mixed"}, {"refit": True}])
def test_runs_by_different_recipes_in_different_precisions_or_on_more_images_are_not_compared(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    record(tmp_path, "compact-23k", 10, 0)
    record(tmp_path, "compact-23k-plain", 100, 0, **changes)
    assert compare(read_records(tmp_path), tmp_path) == []


def test_seeds_of_another_precision_are_not_pooled(tmp_path: Path) -> None:
    for seed, precision in enumerate(("32-true", "bf16-mixed", "bf16-mixed")):
        for network, wrong in (("compact-23k", 10), ("compact-23k-plain", 100)):
            record(tmp_path, network, wrong + seed, seed, precision=precision)
    (found,) = compare(read_records(tmp_path), tmp_path)
    assert (found.seeds, found.accuracy) == (2, pytest.approx(1 - 11.5 / IMAGES)), "the two that are alike"
    write_compact(read_records(tmp_path), tmp_path)
    assert "98.85 ± 0.07 (2 seeds)" in (tmp_path / "report.md").read_text()


def test_a_report_says_where_validation_images_were_trained_on(tmp_path: Path) -> None:
    for network, wrong in (("compact-23k", 10), ("compact-23k-plain", 100)):
        record(tmp_path, network, wrong, 0, refit=True)
    write_compact(read_records(tmp_path), tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "ᵛ (where a command says --refit): validation images were trained on as well" in report
    assert "| MNISTᵛ | compact-23k | compact-23k-plain |" in report and "99.00ᵛ" in report
    (comparison,) = compare(read_records(tmp_path), tmp_path)
    assert comparison.refitted and "| MNISTᵛ |" in "\n".join(compact_lines([comparison]))


def test_images_of_the_same_labels_and_another_fingerprint_are_refused(tmp_path: Path) -> None:
    one, other = (record(tmp_path, name, 10, 0, test_fingerprint=name) for name in ("compact-23k", "compact-23k-plain"))
    with pytest.raises(
        RunError, match=f"{one.file_name} and {other.file_name} were tested on different images of the same name"
    ):
        compare(read_records(tmp_path), tmp_path)


@pytest.mark.parametrize("table", ["table1", "compact"])
def test_a_report_without_records_says_so_and_writes_nothing(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", table, "--report-only"])
    assert isinstance(result.exception, RunError)
    assert str(result.exception).startswith(f"results/{table} has no records to report on: train some cells first, or ")
    assert not list(tmp_path.iterdir())

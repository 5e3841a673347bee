"""Table 1: cells by name, a grid that goes on where it was stopped, records, and a report that says nothing they do not."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shortcaps.reproduce import published
from shortcaps.reproduce.cells import PAPER_CELLS, Cell, choose_cells
from shortcaps.reproduce.grid import Job, plan_jobs, run_grid, run_job
from shortcaps.reproduce.records import Record, read_records, record_of_run, write_record
from shortcaps.reproduce.table1 import ours, sentences, write_table1
from shortcaps.training import RECIPES, RunError, TrainConfig, train
from tests.data.fakes import TEST, fake_mnist
from tests.training.support import pictures

FUZZY = Cell("baseline", "shortcut", "fuzzy", "mnist")


def made_up(cell: Cell, accuracy: float, seed: int = 0, **changes: Any) -> Record:
    """A record that no training made, to test what is done with records."""
    config = TrainConfig(data=cell.dataset, seed=seed)
    recipe = {name: getattr(config.effective_recipe, name) for name in config.effective_recipe.__dataclass_fields__}
    values = {
        "network": cell.network,
        "shortcut": None if cell.family is None else cell.family == "shortcut",
        "routing": cell.routing,
        "dataset": cell.dataset,
        "protocol": "default",
        "seed": seed,
        "epochs": RECIPES["fast"].epochs,
        "parameters": 1,
        "test_accuracy": accuracy,
        "test_accuracy_interval_95": [0, 1],
        "test_images": 10,
        "training_seconds": 1,
        "commit": "-",
        "command": "none",
        "config": {"train": config.to_dict(), "recipe": recipe},
    }
    return Record(values | changes)


def test_the_paper_has_48_cells_and_its_best_figures_are_where_the_abstract_says() -> None:
    assert len(published.ACCURACY) == len(PAPER_CELLS) == len(choose_cells(None)) == 48
    assert all(cell.published is not None for cell in PAPER_CELLS)
    best = {
        dataset: max(v for (_, family, _, d), v in published.ACCURACY.items() if d == dataset and family == "shortcut")
        for dataset in published.DATASETS
    }
    assert best == {"mnist": 99.52, "smallnorb": 93.91, "affnist": 89.02}


def test_cells_are_chosen_by_name_and_by_pattern() -> None:
    assert choose_cells("baseline/shortcut/fuzzy/affnist") == [Cell("baseline", "shortcut", "fuzzy", "affnist")]
    assert len(choose_cells("baseline/*/fuzzy/mnist,cnn-23k/mnist,baseline/shortcut/fuzzy/mnist")) == 3
    with pytest.raises(
        RunError, match=r"no cell is called 'baseline/shortcut/fuzy/mnist': did you mean baseline/shortcut/fuzzy/mnist"
    ):
        choose_cells("baseline/shortcut/fuzy/mnist")
    with pytest.raises(RunError, match="names no cell"):
        choose_cells(" , ")


def in_process(job: Job, device: int, devices: int) -> tuple[str | None, bool]:
    train(replace(job.config, network={"capsule_channels": (2, 3, 2), "stem_channels": 4}), job.run)
    return None, False


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    fake_mnist(tmp_path / "mnist", monkeypatch)
    return plan_jobs(choose_cells("baseline/shortcut/*/mnist"), tmp_path / "runs", seeds=1, epochs=1)


def test_a_finished_cell_leaves_a_record_with_everything_a_reader_needs(tmp_path: Path, grid: list[Job]) -> None:
    outcome = run_grid(grid[:1], tmp_path, launch=in_process)
    (record,) = read_records(tmp_path)
    assert [r.values for r in outcome.done] == [record.values]
    assert (tmp_path / "baseline-shortcut-em-mnist-seed0.json").is_file()
    assert record.cell == grid[0].cell
    assert record.values["test_images"] == TEST
    low, high = record.values["test_accuracy_interval_95"]
    assert 0 <= low <= record.accuracy <= high <= 1
    assert record.values["command"].startswith("shortcaps train --data mnist --model baseline --routing em --shortcut")
    assert record.values["config"]["recipe"]["epochs"] == record.epochs == 1
    assert record.shortened
    assert {"protocol", "seed", "parameters", "training_seconds", "versions", "commit"} <= record.values.keys()


def test_a_stopped_grid_goes_on_where_it_was(tmp_path: Path, grid: list[Job]) -> None:
    began: list[str] = []

    def stops_at_the_third(job: Job, device: int, devices: int) -> tuple[str | None, bool]:
        began.append(str(job.cell.name))
        return (None, True) if len(began) == 3 else in_process(job, device, devices)

    assert run_grid(grid, tmp_path, launch=stops_at_the_third).interrupted
    assert len(read_records(tmp_path)) == 2
    outcome = run_grid(grid, tmp_path, launch=stops_at_the_third)
    assert not outcome.interrupted
    assert began[2] == began[3], "the cell that was stopped comes first"
    assert len(began) == 5
    assert len(outcome.done) == len(read_records(tmp_path)) == 4


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path: Path, grid: list[Job]) -> None:
    def fails_once(job: Job, device: int, devices: int) -> tuple[str | None, bool]:
        return ("the cat ate it", False) if job.cell.routing == "em" else in_process(job, device, devices)

    outcome = run_grid(grid[:2], tmp_path, launch=fails_once)
    assert outcome.failed == {"baseline/shortcut/em/mnist, seed 0": "the cat ate it"}
    assert [record.cell.routing for record in outcome.done] == ["fuzzy"]


def test_a_record_made_otherwise_is_not_taken_for_this_one(tmp_path: Path, grid: list[Job]) -> None:
    run_grid(grid[:1], tmp_path, launch=in_process)
    longer = plan_jobs([grid[0].cell], tmp_path / "runs", epochs=2)
    with pytest.raises(RunError, match="was made with epochs 1 instead of 2: choose another --out"):
        run_grid(longer, tmp_path, launch=in_process)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    file = write_record(made_up(FUZZY, 0.9), tmp_path)
    file.write_text(file.read_text()[:40])
    with pytest.raises(RunError, match=f"{file.name} is not a record of Table 1, or is damaged"):
        read_records(tmp_path)


def test_a_job_is_an_ordinary_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=8, size=28)
    job = Job(Cell("cnn-23k", None, None, str(data)), TrainConfig(str(data), "cnn-23k", epochs=1), tmp_path / "run")
    assert run_job(job, 0, 2) == (None, False)
    record = record_of_run(job.cell, job.run, job.command)
    assert record.values["routing"] is None
    assert "test accuracy on pictures" in (job.run / "log.txt").read_text()
    assert run_job(job, 0, 2) == (None, False), "it has ended, and is not begun again"

    missing = Job(Cell("cnn-23k", None, None, "nowhere"), TrainConfig("nowhere", "cnn-23k"), tmp_path / "other")
    problem, interrupted = run_job(missing, 0, 2)
    assert problem is not None
    assert problem.startswith("unknown data set 'nowhere'")
    assert not interrupted


def test_the_report_sets_paper_and_ours_side_by_side_and_marks_what_is_not_the_same(tmp_path: Path) -> None:
    affnist = Cell("baseline", "shortcut", "fuzzy", "affnist")
    records = [
        made_up(FUZZY, 0.9930, 0),
        made_up(FUZZY, 0.9950, 1),
        made_up(affnist, 0.8, dataset="affnist-regenerated"),
        made_up(Cell("cnn-23k", None, None, "affnist"), 0.7, dataset="affnist-regenerated", epochs=1),
    ]
    for record in records:
        write_record(record, tmp_path)
    assert str(ours(records, FUZZY)) == f"99.40 ± 0.14 (2 seeds), {RECIPES['fast'].epochs} ep."
    markdown, page = (file.read_text() for file in write_table1(read_records(tmp_path), tmp_path))
    row = next(line for line in markdown.splitlines() if line.startswith("| affNIST | shortcut |"))
    assert row.split(" | ")[4:6] == ["82.59", f"80.00ʳ, {RECIPES['fast'].epochs} ep."]
    assert row.split(" | ")[2:4] == ["79.27", ""], "what was not run stays empty"
    for text in (markdown, html.unescape(page)):
        assert "70.00ʳˢ, 1 ep." in text
        assert "not on the published set" in text
        assert "2 of the paper's 48 cells were run" in text
        assert "In 1 of these 2 our mean is at least the paper's figure" in text
    assert (
        "On affNIST the best baseline shortcut network is 10.00 points better than cnn-23k (80.00 against 70.00)."
        in sentences(records)
    )
    assert (
        json.loads((tmp_path / "baseline-shortcut-fuzzy-affnist-regenerated-seed0.json").read_text())["dataset"]
        == "affnist-regenerated"
    )

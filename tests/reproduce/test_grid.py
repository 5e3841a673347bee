"""The command of a job trains what the job's config says."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.data import DATASETS
from shortcaps.errors import RunError
from shortcaps.plugins import load_plugin
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.grid import Job
from shortcaps.runs.config import TrainConfig

PLUGIN = """
from shortcaps.data import register_dataset

@register_dataset("of-a-plugin", label="Of a plug-in", description="", image_size=8)
def load(split, protocol):
    raise AssertionError("it is only named")
"""


def job(dataset: str = "mnist", **settings: object) -> Job:
    cell = Cell("cnn-23k", None, None, dataset)
    return Job(cell, cell.config(recipe="compact", adapt=False, **settings), Path("run"))


def test_every_setting_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"lr": 1e-3, "batch_size": 16, "augment": "digits", "mixup": 0.2, "patience": 3, "colour": True}
    asked = job(**settings, keep_epochs=True, epochs=2)
    trained: list[TrainConfig] = []
    monkeypatch.setattr("shortcaps.training.run.train", lambda config, *more, **others: trained.append(config))
    result = CliRunner().invoke(app, ["train", *asked.flags])
    assert result.exit_code == 0, result.output
    assert trained == [asked.config]


def test_what_has_no_option_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(RunError, match=r"network \{'width': 8\} has no option"):
        _ = job(network={"width": 8}).flags


def test_the_plug_in_of_a_data_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    monkeypatch.setattr(DATASETS, "_parts", {**DATASETS._parts})  # so that it is forgotten afterwards
    load_plugin(str(file))
    assert job("of-a-plugin").flags[-2:] == ["--plugin", str(file)]

"""`--refit`: once everything is chosen, the validation images are trained on as well and the last weights are kept."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shortcaps.cli import main
from shortcaps.data import Dataset, join, load_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.weights import read_tensors
from shortcaps.training.display import Display
from shortcaps.training.run import train
from shortcaps.training.setup import load_split
from tests.data.fakes import fake_mnist
from tests.training.support import failing_at

SETTINGS: dict[str, Any] = {"data": "mnist", "model": "cnn-23k", "epochs": 2, "batch_size": 24, "recipe": "fast"}


@pytest.fixture(autouse=True)
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mnist(tmp_path / "mnist", monkeypatch)


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(RunDirectory(run).weights_file)


def test_it_is_training_on_the_union_of_both_splits_to_the_last_epoch(tmp_path: Path) -> None:
    config = TrainConfig.of(**SETTINGS)
    train(config.changed(refit=True), tmp_path / "refitted")
    splits = {split: load_split(config, split, Display()) for split in ("train", "validation", "test")}
    union = join(splits["train"], splits["validation"])
    # Validated on test images, as these cannot have been trained on, and every epoch's weights kept: those of the last one count.
    train(
        config.changed(keep_epochs=True),
        tmp_path / "by-hand",
        splits={**splits, "train": union, "validation": splits["test"]},
    )
    last = read_tensors(RunDirectory(tmp_path / "by-hand").epoch_file(2))
    kept = weights(tmp_path / "refitted")
    assert kept.keys() == last.keys()
    assert all(torch.equal(kept[name], last[name]) for name in last)


def test_nothing_is_validated_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortcaps(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["shortcaps", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code

    run = tmp_path / "run"
    shortcaps("train", *flags(SETTINGS), "--refit", "--out", run)
    said = capsys.readouterr().out
    assert said.count("training accuracy") == 2
    assert "validation" not in said
    with (run / "metrics.csv").open() as file:
        assert [row["validation_error"] for row in csv.DictReader(file)] == ["", ""]
    result = json.loads((run / "result.json").read_text())
    assert (result["validation_error"], result["best_epoch"]) == (None, 2)
    kept = "Kept: epoch 2, the last; the validation images were trained on as well."
    assert kept in (run / "report.html").read_text()
    shortcaps("evaluate", run, "--split", "validation")
    assert "was trained on these images as well (--refit)" in " ".join(capsys.readouterr().err.split())


def test_a_run_cut_off_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    config = TrainConfig.of(**SETTINGS, refit=True)
    train(config, tmp_path / "whole")
    with failing_at(7):
        train(config, tmp_path / "cut")
    train(config, tmp_path / "cut", resume=True)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_what_needs_a_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="patience 3 waits for a lower validation error"):
        train(TrainConfig.of(**SETTINGS, refit=True, patience=3), tmp_path / "run")
    with pytest.raises(RunError, match="--refit goes with protocol default only: under paper"):
        TrainConfig.of(**SETTINGS, refit=True, protocol="paper")


def test_splits_joined_are_the_first_and_then_the_second() -> None:
    first, second = (load_dataset("mnist", split) for split in ("train", "validation"))
    both = join(first, second)
    assert both.split == "train"
    assert torch.equal(both.images, torch.cat([first.images, second.images]))
    assert torch.equal(both.labels, torch.cat([first.labels, second.labels]))
    assert both.originals is None


def test_originals_of_two_splits_stay_apart() -> None:
    data = load_dataset("mnist", "train").subset(slice(0, 4))
    first, second = (replace(data, originals=torch.tensor(numbers)) for numbers in ([0, 0, 1, 2], [0, 1, 1, 3]))
    assert join(first, second).originals.tolist() == [0, 0, 1, 2, 3, 4, 4, 6]  # type: ignore[union-attr]


def test_splits_of_other_classes_are_not_joined() -> None:
    first: Dataset = load_dataset("mnist", "train")
    with pytest.raises(DataError, match="the images or classes of train and train of mnist differ"):
        join(first, replace(first, class_names=tuple("abcdefghij")))

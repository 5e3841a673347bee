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

import shortcaps
from shortcaps.cli import main
from shortcaps.data import Dataset, join, load_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.weights import read_tensors
from shortcaps.studies import STUDIES
from shortcaps.studies.trained import Shelf, runs_by_pattern
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
    def command(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["shortcaps", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code

    run = tmp_path / "run"
    command("train", *flags(SETTINGS), "--refit", "--out", run)
    said = capsys.readouterr().out
    assert said.count("training accuracy") == 2
    assert "validation" not in said
    with (run / "metrics.csv").open() as file:
        assert [row["validation_error"] for row in csv.DictReader(file)] == ["", ""]
    result = json.loads((run / "result.json").read_text())
    assert (result["validation_error"], result["best_epoch"]) == (None, 2)
    kept = "Kept: epoch 2, the last; the validation images were trained on as well."
    assert kept in (run / "report.html").read_text()
    command("evaluate", run, "--split", "validation")
    assert "was trained on these images as well (--refit)" in " ".join(capsys.readouterr().err.split())


def test_a_run_cut_off_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    config = TrainConfig.of(**SETTINGS, refit=True)
    train(config, tmp_path / "whole")
    with failing_at(7):
        train(config, tmp_path / "cut")
    train(config, tmp_path / "cut", resume=True)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_what_contradicts_it_is_refused_and_patience_takes_no_effect(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--refit goes with protocol default only: under paper"):
        TrainConfig.of(**SETTINGS, refit=True, protocol="paper")
    with pytest.raises(RunError, match="--per-class 5 says how many images are trained on, and --refit adds to them"):
        TrainConfig.of(**SETTINGS, refit=True, per_class=5)
    result = train(TrainConfig.of(**SETTINGS, refit=True, patience=1), tmp_path / "run")
    assert result is not None
    assert result.best_epoch == 2
    assert read_manifest(tmp_path / "run").recipe.patience is None


def test_epochs_and_batches_are_fitted_to_the_images_that_they_were_chosen_with(tmp_path: Path) -> None:
    config = TrainConfig.of(data="mnist", model="cnn-23k", recipe="fast", epochs=1)
    train(config, tmp_path / "chosen")
    train(config.changed(refit=True), tmp_path / "refitted")
    chosen, refitted = (read_manifest(tmp_path / name).recipe for name in ("chosen", "refitted"))
    assert (refitted.batch_size, refitted.epochs) == (chosen.batch_size, chosen.epochs)


def test_affnist_digits_that_validation_shifted_are_trained_on_unshifted() -> None:
    train_, validation = (load_dataset("affnist", split) for split in ("train", "validation"))
    mnist = load_dataset("mnist", "validation").images
    both = join(train_, validation)
    assert torch.equal(both.images[len(train_) :, :, 6:-6, 6:-6], mnist)
    assert not torch.equal(validation.images[:, :, 6:-6, 6:-6], mnist)
    few = validation.subset(slice(3, 6))
    assert torch.equal(join(train_, few).images[len(train_) :], both.images[len(train_) + 3 : len(train_) + 6])


def test_weights_are_not_selected_by_images_that_they_were_trained_on(tmp_path: Path) -> None:
    train(TrainConfig.of(**SETTINGS, refit=True), tmp_path / "refitted")
    further = TrainConfig.of(**SETTINGS, start=str(tmp_path / "refitted"))
    with pytest.raises(RunError, match=r"refitted was trained on the validation images of mnist as well \(--refit\)"):
        train(further, tmp_path / "further")
    assert train(further.changed(refit=True), tmp_path / "further-refitted") is not None


def test_studies_take_no_refitted_run(tmp_path: Path) -> None:
    config = TrainConfig.of(**SETTINGS, refit=True, adapt=False)
    train(config, tmp_path / "runs" / "refitted")
    shelf = Shelf([tmp_path / "runs"])
    assert shelf.find(config.changed(refit=False)) is None
    assert shelf.find(config) == tmp_path / "runs" / "refitted"
    with pytest.raises(RunError, match=r"was trained on the validation images as well \(--refit\)"):
        next(runs_by_pattern(str(tmp_path / "runs" / "refitted"), STUDIES["few"]))


def test_images_given_in_python_are_trained_on_as_well(tmp_path: Path) -> None:
    data = load_dataset("mnist", "train")
    result = shortcaps.train("cnn-23k", data, out=tmp_path / "run", show=False, refit=True, epochs=1)
    assert result is not None
    manifest = read_manifest(result.run)
    assert manifest.train.data.refit
    assert json.loads((result.run / "result.json").read_text())["validation_error"] is None


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
    with pytest.raises(
        DataError, match="train of mnist and train of mnist differ in class_names: they cannot be joined"
    ):
        join(first, replace(first, class_names=tuple("abcdefghij")))

"""Training on a few images of each class, and runs that keep the weights after every epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shortcaps.data import Dataset, draw_per_class
from shortcaps.errors import DataError, RunError
from shortcaps.inference.load import load
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.weights import read_tensors
from shortcaps.training.display import Display
from shortcaps.training.run import train
from shortcaps.training.setup import load_split
from tests.data.fakes import TEST, fake_mnist


def made_up(count: int = 60) -> Dataset:
    images = torch.arange(count).to(torch.uint8).reshape(-1, 1, 1, 1).expand(count, 1, 4, 4).contiguous()
    return Dataset("made-up", "made up", "train", "default", images, torch.arange(count) % 3, ("a", "b", "c"))


def test_a_draw_has_as_many_images_of_each_class_and_smaller_draws_are_part_of_larger_ones() -> None:
    data = made_up()
    few, more = draw_per_class(data, 2, seed=1), draw_per_class(data, 5, seed=1)
    assert data.labels[few].bincount().tolist() == [2, 2, 2]
    assert data.labels[more].bincount().tolist() == [5, 5, 5]
    assert set(few.tolist()) <= set(more.tolist())
    assert set(few.tolist()) != set(draw_per_class(data, 2, seed=2).tolist())


def test_a_class_with_too_few_images_is_named() -> None:
    with pytest.raises(DataError, match=r"made-up \(train\) has 20 images of 'a', fewer than the 21 asked for"):
        draw_per_class(made_up(), 21, seed=0)
    assert len(draw_per_class(made_up(), 21, seed=0, at_most=True)) == 60


def test_validation_takes_what_a_class_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's last 10,000 training images, which validate, have 991 zeros: a thousand of each are trained on all the same."""
    fake_mnist(tmp_path, monkeypatch)
    whole = TrainConfig.of(data="mnist", model="cnn-23k")
    has = {
        split: load_split(whole, split, Display()).labels.bincount(minlength=10) for split in ("train", "validation")
    }
    count = int(has["train"].min())
    assert has["validation"].min() < count, "or this test shows nothing"
    few = load_split(whole.changed(per_class=count), "validation", Display())
    assert few.labels.bincount(minlength=10).tolist() == has["validation"].clamp_max(count).tolist()
    assert len(load_split(whole.changed(per_class=count), "train", Display())) == 10 * count


def test_few_images_are_trained_and_validated_on_and_the_test_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mnist(tmp_path, monkeypatch)
    config = TrainConfig.of(data="mnist", model="cnn-23k", per_class=2, draw=3)
    splits = {split: load_split(config, split, Display()) for split in ("train", "validation", "test")}
    assert [len(part) for part in splits.values()] == [20, 20, TEST]
    other = load_split(config.changed(draw=4), "train", Display())
    assert other.fingerprint() != splits["train"].fingerprint()
    again = load_split(config.changed(seed=9), "train", Display())
    assert again.fingerprint() == splits["train"].fingerprint(), "the draw does not depend on the seed"


def test_weights_of_every_epoch_are_kept_and_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mnist(tmp_path / "mnist", monkeypatch)
    settings = {"data": "mnist", "model": "cnn-23k", "epochs": 3, "max_images": 20}
    train(TrainConfig.of(**settings, keep_epochs=True), tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    epochs = [read_tensors(run.epoch_file(epoch)) for epoch in (1, 2, 3)]
    assert not torch.equal(epochs[0]["classify.weight"], epochs[2]["classify.weight"])
    selected = read_tensors(run.weights_file)
    assert any(all(torch.equal(kept[name], selected[name]) for name in selected) for kept in epochs)
    loaded = load(run.path, epoch=1).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in epochs[0].items())
    with pytest.raises(RunError, match=r"has no weights of epoch 4: train with --keep-epochs"):
        load(run.path, epoch=4)

    train(TrainConfig.of(**settings), tmp_path / "other")
    assert not list((tmp_path / "other").glob("epoch-*"))
    assert all(
        torch.equal(selected[name], tensor)
        for name, tensor in read_tensors(RunDirectory(tmp_path / "other").weights_file).items()
    )

"""Training on images of one's own: decoded as needed, augmented, fitted; the same in memory, after a fault, and in predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from shortcaps.data import load_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.inference.predict import Predictor
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import read_manifest
from shortcaps.training import loop
from shortcaps.training.run import train
from tests.data.fakes import fake_mnist
from tests.training.support import pictures

NETWORK = {"capsule_channels": [2, 3, 2], "backbone_settings": {"width": 4}}


def config_of(data: Path, **settings: Any) -> TrainConfig:
    chosen = {"image_size": 20, "batch_size": 24, "epochs": 2, "augment": "photos", "fit": "pad", "colour": True}
    return TrainConfig.of(**{"data": str(data), "network": NETWORK, **chosen, **settings})


@pytest.fixture(scope="module")
def lazy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pictures, and a run on them, decoded as needed, that nobody interrupted."""
    place = tmp_path_factory.mktemp("own")
    data = pictures(place / "pictures")
    train(config_of(data, image_memory=0), place / "lazy")
    return data, place / "lazy"


def assert_same(run: Path, other: Path) -> None:
    for name in ("model.safetensors", "answers.npz", "checkpoint-00000010.safetensors"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def fail_at_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a run ends at a step, with a checkpoint of every step before it."""
    original = loop.Trainer.take_step

    def take_step(self: loop.Trainer) -> tuple[Tensor, Tensor]:
        if self.state.step == number:
            raise RuntimeError("the power has failed")
        return original(self)

    monkeypatch.setattr(loop.Trainer, "take_step", take_step)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)


def test_images_decoded_as_needed_train_the_very_same_network(lazy_run: tuple[Path, Path], tmp_path: Path) -> None:
    data, lazy = lazy_run
    train(config_of(data), tmp_path / "run")
    assert_same(tmp_path / "run", lazy)
    stored = [read_manifest(run).data for run in (tmp_path / "run", lazy)]
    assert stored[0].fingerprints == stored[1].fingerprints
    assert "turned within 10°" in stored[0].augment


def test_a_run_on_lazy_images_resumes_exactly(
    lazy_run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, whole = lazy_run
    with monkeypatch.context() as patched:
        fail_at_step(7, patched)
        with pytest.raises(RuntimeError, match="the power has failed"):
            train(config_of(data, image_memory=0), tmp_path / "run")
    train(TrainConfig(), tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", whole)


def test_a_run_is_not_resumed_with_other_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = pictures(tmp_path / "own", 12), tmp_path / "run"
    with monkeypatch.context() as patched:
        fail_at_step(1, patched)
        with pytest.raises(RuntimeError, match="the power has failed"):
            train(config_of(data, image_memory=0), run)
    Image.new("L", (20, 20), 77).save(data / "train/disc/0.png")
    with pytest.raises(RunError, match=r"\(train\) are not those that .* was started with: restore them"):
        train(TrainConfig(), run, resume=True)


def test_predict_makes_pictures_fit_as_training_did(lazy_run: tuple[Path, Path], tmp_path: Path) -> None:
    _, run = lazy_run
    assert read_manifest(run).data.fit == "pad"
    predictor = Predictor(run)
    assert predictor.preparation.to_dict()["fit"] == "pad"
    wide = np.random.default_rng(0).integers(0, 256, (30, 70, 3)).astype(np.uint8)
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for n in range(2):
                Image.fromarray(wide // (n + 1)).save(tmp_path / split / name / f"{n}.png")
    test = load_dataset(tmp_path, "test", image_size=20, colour=True, fit="pad")
    seen = predictor.read(tmp_path / "test/a/0.png")
    torch.testing.assert_close(seen, test[0][0], rtol=0, atol=1e-6)
    assert seen[:, 0].max() == 0, "black above the wide picture"


def test_an_augmentation_that_leaks_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mnist(tmp_path / "mnist", monkeypatch)
    with pytest.raises(DataError, match="augmentation photos rotates, scales or shears images, which affnist"):
        train(TrainConfig.of(data="affnist-regenerated", augment="photos", epochs=1), tmp_path / "run")

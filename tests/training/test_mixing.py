"""Mixup, and the other settings of a recipe that are off by default."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shortcaps.data import Dataset
from shortcaps.errors import RunError
from shortcaps.models import create_model
from shortcaps.recipes import RECIPES, Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.schedules import SCHEDULES
from shortcaps.training.mixing import mix
from shortcaps.training.setup import check_recipe, network_settings
from tests.training.support import finish, pictures, settings_file, shortcaps
from tests.training.test_resume import AT_STEP

FAST = RECIPES["fast"].recipe


def test_images_and_labels_are_mixed_in_the_same_shares() -> None:
    classes = 5
    labels = torch.arange(classes).repeat(200)
    images = torch.nn.functional.one_hot(labels, classes).float()[:, :, None, None].expand(-1, -1, 2, 2)
    mixed, shares = mix(images, labels, classes, 0.4, seed=1)
    torch.testing.assert_close(mixed[:, :, 0, 1], shares)
    torch.testing.assert_close(shares.sum(1), torch.ones(len(labels)))
    own = shares.gather(1, labels[:, None]).squeeze(1)
    assert ((own > 0.01) & (own < 0.99)).float().mean() > 0.3


def test_a_large_alpha_mixes_halves_and_a_small_one_hardly_mixes() -> None:
    labels = torch.tensor([0, 1] * 500)
    spread = {}
    for alpha in (0.01, 100.0):
        _, shares = mix(torch.rand(1000, 1, 2, 2), labels, 2, alpha, seed=0)
        spread[alpha] = (shares[:, 0] - 0.5).abs()
    assert (spread[0.01] > 0.45).float().mean() > 0.9
    one_of_each = spread[100.0] < 0.49  # the others met an image of their own class
    assert spread[100.0][one_of_each].max() < 0.2


def test_the_same_seed_mixes_the_same() -> None:
    images, labels = torch.rand(16, 1, 3, 3), torch.arange(16) % 3
    first, again, other = (mix(images, labels, 3, 0.5, seed) for seed in (7, 7, 8))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.slow
def test_a_killed_run_with_mixup_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'epochs = 3\nbatch_size = 24\nlr = 1e-2\nschedule = "warmup-cosine"\nloss = "log-probability"\naveraging = 0.9\n'
        "mixup = 0.4\ndropout = 0.5\nschedule_settings = { warmup = 0.3, last = 0.05 }\nloss_settings = { label_smoothing = 0.1 }\n"
    )
    data, settings = pictures(tmp_path / "pictures", per_class=24), settings_file(tmp_path, epochs=3)
    asked: tuple[Any, ...] = ("train", "--data", data, "--config", settings, "--recipe", recipe)
    finish(shortcaps(*asked, "--out", tmp_path / "whole"))
    patch = AT_STEP.format(step=5, signal="SIGKILL")
    finish(shortcaps(*asked, "--out", tmp_path / "killed", patch=patch), expect=-signal.SIGKILL)
    finish(shortcaps("train", "--resume", tmp_path / "killed"))
    finish(shortcaps(*asked, "--mixup", 0, "--out", tmp_path / "unmixed"))
    weights = {run: (tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "killed", "unmixed")}
    assert weights["whole"] == weights["killed"] != weights["unmixed"]
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["network"]["dropout"] == 0.5


def test_settings_that_a_loss_or_schedule_does_not_take_are_named() -> None:
    model = create_model("cnn-23k", image_size=28, channels=1, classes=3)
    check_recipe(FAST, model)
    check_recipe(FAST.changed({"mixup": 0.3}), model)
    wrong = FAST.changed({"loss_settings": {"smoothing": 0.1}})
    with pytest.raises(RunError, match=r"the loss log-probability does not work with .*'smoothing': 0.1"):
        check_recipe(wrong, model)
    with pytest.raises(RunError, match=r"the schedule one-cycle does not work with .*'warmup': 0.1"):
        check_recipe(FAST.changed({"schedule_settings": {"warmup": 0.1}}), model)
    with pytest.raises(RunError, match=r"weights is no setting of a loss.*: use class_weights or balance"):
        check_recipe(FAST.changed({"loss_settings": {"weights": 2.0}}), model)
    with pytest.raises(RunError, match=r"does not work with .*label_smoothing 1.5 is not a share"):
        check_recipe(FAST.changed({"loss_settings": {"label_smoothing": 1.5}}), model)
    sabour = create_model("sabour", image_size=28, channels=1, classes=3)
    with pytest.raises(RunError, match=r"mixup 0.3 does not go with the network of Sabour .*: set mixup = 0"):
        check_recipe(FAST.changed({"mixup": 0.3}), sabour)


@pytest.mark.parametrize(
    ("schedule", "where"),
    [
        (lambda step, steps, per_epoch: 2.0, "step 0 of 300 is 2"),
        (lambda step, steps, per_epoch: 1.0 - 1.5 * step / steps, "step 299 of 300 is -0.495"),
        (lambda step, steps, per_epoch: 4 * step * (steps - step) / steps**2 * 1.1, "step 150 of 300 is 1.1"),
    ],
)
def test_a_schedule_whose_factors_leave_their_bounds_is_refused(
    schedule: Callable[..., float], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCHEDULES._parts, "mine", schedule)
    model = create_model("cnn-23k", image_size=28, channels=1, classes=3)
    with pytest.raises(RunError, match=rf"the schedule mine does not work .*: its factor at {where}, not in 0 to 1"):
        check_recipe(FAST.changed({"schedule": "mine", "epochs": 3}), model)


def _settings(recipe: Recipe, **asked: Any) -> dict[str, Any]:
    labels = torch.zeros(2, dtype=torch.int64)
    data = Dataset("x", "x", "train", "default", torch.zeros(2, 1, 28, 28, dtype=torch.uint8), labels, ("a", "b"))
    return network_settings(TrainConfig.of(**asked), recipe, data)


def test_the_dropout_of_a_recipe_reaches_the_networks_that_have_capsules_to_drop() -> None:
    dropping = FAST.changed({"dropout": 0.3})
    assert "dropout" not in _settings(FAST, model="compact-23k")
    for model in ("compact-23k", "baseline"):
        settings = _settings(dropping, model=model)
        assert settings["dropout"] == 0.3
        assert create_model(**settings).get_submodule("head.dropout" if "compact" in model else "dropout").p == 0.3
    assert _settings(dropping, model="compact-23k", network={"dropout": 0.1})["dropout"] == 0.1
    assert "dropout" not in _settings(dropping, model="compact-23k-plain")

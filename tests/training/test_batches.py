"""Which images a step is shown, how a recipe is fitted to few of them, and classes of different sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shortcaps.data import Dataset
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.recipes import RECIPES, Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.training.adapt import adapt_recipe
from shortcaps.training.batches import Batches
from shortcaps.training.display import Display
from shortcaps.training.run import train
from shortcaps.training.seeds import derive
from shortcaps.training.setup import class_weights
from tests.training.support import pictures

FAST = RECIPES["fast"].recipe


def batches(count: int, processes: int = 1, **changes: Any) -> Batches:
    return Batches(torch.zeros(count, dtype=torch.int64), 1, FAST.changed(changes), 3, processes)


def test_the_rest_of_an_epoch_is_left_out_in_the_order_that_runs_have_always_had() -> None:
    made = batches(50_000)
    assert (made.size, made.per_epoch) == (128, 390)
    order = torch.randperm(50_000, generator=torch.Generator().manual_seed(derive(3, "order", 2)))
    for number in (0, 5, 389):
        assert torch.equal(made.indices(2 * 390 + number), order[number * 128 : (number + 1) * 128])


@pytest.mark.parametrize(
    ("count", "size", "processes"), [(337, 32, 1), (337, 32, 3), (7, 4, 2), (5, 8, 1), (64, 32, 1)]
)
def test_without_drop_last_every_image_is_shown_and_batches_are_even(count: int, size: int, processes: int) -> None:
    made = batches(count, processes, batch_size=size // processes * processes, drop_last=False)
    for epoch in (0, 4):
        shown = torch.cat([made.indices(epoch * made.per_epoch + n) for n in range(made.per_epoch)])
        times = torch.bincount(shown, minlength=count)
        assert set(times.tolist()) <= {1, 2}, "all once, a few twice"
        assert len(shown) == made.per_epoch * made.size < count + made.per_epoch * processes
        assert made.size <= size
        assert made.size % processes == 0


def test_batches_do_not_depend_on_the_steps_before() -> None:
    in_turn, at_once = batches(100, batch_size=32, drop_last=False), batches(100, batch_size=32, drop_last=False)
    for step in range(9):
        last = in_turn.indices(step)
    assert torch.equal(last, at_once.indices(8))


def test_balanced_sampling_shows_equally_many_of_each_class() -> None:
    labels = torch.tensor([0] * 90 + [1] * 6 + [3] * 4)
    made = Batches(labels, 4, FAST.changed({"balance": "sampling", "batch_size": 10}), 0)
    shown = torch.cat([made.indices(step) for step in range(made.per_epoch)])
    counts = torch.bincount(labels[shown], minlength=4).tolist()
    assert counts[2] == 0, "a class without images has none to show"
    assert sorted(counts) == [0, 33, 33, 34]
    frequent = torch.bincount(shown[labels[shown] == 0], minlength=90)
    assert frequent.max() == 1, "none twice while others wait"
    rare = torch.bincount(shown[labels[shown] == 3])[96:]
    assert rare.max() - rare.min() <= 1
    assert not torch.equal(made.order(0), made.order(1))


def test_weights_make_classes_count_equally() -> None:
    data = dataset([0] * 90 + [1] * 10)
    weights = class_weights(FAST.changed({"balance": "weights"}), data)
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([100 / 180, 5.0]))
    assert weights[data.labels].mean() == pytest.approx(1)
    own = class_weights(FAST.changed({"class_weights": {"b": 3.0}}), data)
    assert own is not None
    assert own[1] == pytest.approx(3 * own[0].item())
    assert own[data.labels].mean() == pytest.approx(1)
    sampled = class_weights(FAST.changed({"balance": "sampling", "class_weights": {"b": 3.0}}), data)
    assert sampled is not None
    torch.testing.assert_close(sampled, torch.tensor([0.5, 1.5]))  # as many of either are shown
    assert class_weights(FAST, data) is None
    with pytest.raises(RunError, match="class_weights has 'c', but the classes of x are a, b"):
        class_weights(FAST.changed({"class_weights": {"c": 3.0}}), data)
    with pytest.raises(RunError, match="leave no image with a weight"):
        class_weights(FAST.changed({"class_weights": {"a": 0.0, "b": 0.0}}), data)


@pytest.mark.parametrize("name", ["log-probability", "margin", "spread"])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_weighted_loss_is_the_weighted_mean_of_the_images_losses(name: str, is_mixed: bool) -> None:
    activations, weights = torch.rand(4, 3, dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0, 0.0])
    labels = torch.rand(4, 3, dtype=torch.float64).softmax(1) if is_mixed else torch.tensor([0, 2, 1, 1])
    each = [LOSSES[name](activations[n : n + 1], labels[n : n + 1], epoch=1.0).item() for n in range(4)]
    expected = sum(weight * loss for weight, loss in zip(weights.tolist(), each, strict=True)) / 4
    assert LOSSES[name](activations, labels, epoch=1.0, weights=weights.double()).item() == pytest.approx(expected)


def dataset(labels: list[int]) -> Dataset:
    images = torch.zeros(len(labels), 1, 28, 28, dtype=torch.uint8)
    return Dataset("x", "x", "train", "default", images, torch.tensor(labels), ("a", "b"))


def adapted(images: int, processes: int = 1, **asked: Any) -> tuple[Recipe, str]:
    config = TrainConfig.of(data="photos", **asked)
    return adapt_recipe(config, config.make_recipe(), images, processes)


@pytest.mark.parametrize("images", [50_000, 60_000, 55_000, 45_000, 24_300, 13_000])
def test_sets_that_are_large_enough_are_trained_as_the_recipe_says(images: int) -> None:
    assert adapted(images) == (TrainConfig.of().make_recipe(), "")


@pytest.mark.parametrize("images", [3, 24, 50, 337, 1000, 1025, 3000, 10_000])
@pytest.mark.parametrize("processes", [1, 2])
def test_small_sets_get_a_thousand_updates_and_leave_nearly_nothing_out(images: int, processes: int) -> None:
    recipe, why = adapted(images, processes)
    made = Batches(torch.zeros(images, dtype=torch.int64), 1, recipe, 0, processes)
    assert recipe.epochs * made.per_epoch >= 1000
    assert (recipe.epochs - 1) * made.per_epoch < 1000
    assert made.per_epoch * made.size >= 0.99 * images
    assert "at least 1,000 updates" in why
    assert recipe.batch_size <= 128


def test_what_was_chosen_and_why_is_one_line() -> None:
    recipe, why = adapted(337)
    assert (recipe.epochs, recipe.batch_size, recipe.drop_last) == (91, 32, False)
    assert why == (
        "337 training images: 91 epochs of 11 steps instead of 12 of 2, for at least 1,000 updates, several updates in each "
        "epoch, no image left out (--epochs and --batch-size choose others, --no-adapt keeps the recipe's)"
    )


def test_what_the_user_has_set_stays() -> None:
    recipe, why = adapted(337, epochs=5, batch_size=100)
    assert (recipe.epochs, recipe.batch_size, recipe.drop_last) == (5, 100, False)
    assert "5 epochs of 4 steps instead of 5 of 3, for no image left out" in why
    for asked in ({"adapt": False}, {"max_images": 337}, {"epochs": 4, "batch_size": 24}):
        unchanged = TrainConfig.of(**asked).make_recipe()
        assert adapted(120 if "epochs" in asked else 337, **asked) == (unchanged, "")


class Lines(Display):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def test_a_run_stops_when_patience_is_lost_and_resumes_to_the_same(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=8, size=28)
    # A rate this low changes nothing that counts, so the first epoch stays the best.
    settings: dict[str, Any] = {"data": str(data), "model": "cnn-23k", "batch_size": 9, "lr": 1e-12}
    config = TrainConfig.of(**settings, epochs=9, patience=2)
    shown = Lines()
    result = train(config, tmp_path / "run", display=shown)
    assert result is not None
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 1 + 3
    assert "stopped early: 2 epochs without a lower validation error" in shown.lines
    assert any("for no image left out" in line for line in shown.lines)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    train(config, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["recipe"]["drop_last"] is False


def test_a_run_with_weights_and_mixup_together_trains(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=8, size=28)
    config = TrainConfig.of(data=str(data), model="cnn-23k", batch_size=8, epochs=1, balance="weights", mixup=0.2)
    result = train(config, tmp_path / "run")
    assert result is not None
    assert 0 <= result.test.accuracy <= 1


def test_an_unknown_balance_is_named() -> None:
    with pytest.raises(RunError, match="unknown balance 'both': choose one of none, weights, sampling"):
        TrainConfig.of(balance="both").make_recipe()

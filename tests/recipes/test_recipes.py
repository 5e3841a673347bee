"""Recipes: TOML files with entries for routings and networks, losses and schedules by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import shortcaps
from shortcaps.cli import app
from shortcaps.errors import RunError
from shortcaps.losses import LOSSES
from shortcaps.recipes import FOLDER, RECIPES, find_recipe, read_recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.schedules import SCHEDULES


@pytest.fixture(autouse=True)
def _registries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (RECIPES, LOSSES, SCHEDULES):
        for name in ("_parts", "_places", "_plugins"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def recipe_for(**settings: Any) -> Any:
    return TrainConfig.of(**settings).make_recipe()


def test_the_paper_recipe_is_the_papers() -> None:
    paper = RECIPES["paper"].recipe
    assert (paper.epochs, paper.batch_size, paper.lr, paper.loss) == (200, 128, 1e-3, "spread")
    assert (paper.schedule, paper.placement, paper.averaging) == ("steps", "published", 0.0)


def test_a_routing_or_network_gets_what_the_recipe_has_for_it_unless_somebody_asks_for_another() -> None:
    fast, paper = RECIPES["fast"].recipe, RECIPES["paper"].recipe
    assert recipe_for(routing="fuzzy").lr == recipe_for(model="cnn-23k").lr == fast.lr
    assert recipe_for(routing="attention").lr == recipe_for(routing="dynamic").lr == 8e-3
    assert recipe_for(routing="attention", lr=0.5).lr == 0.5
    assert recipe_for(routing="attention", recipe="paper").lr == paper.lr
    assert (recipe_for(model="sabour").loss, recipe_for(model="sabour").lr) == ("margin", 1e-3)
    assert recipe_for(model="sabour", loss="spread").loss == "spread"
    assert recipe_for(routing="em").routing_settings == {"sharpness": 4.0, "temperature": 16.0}
    assert recipe_for(model="cnn-23k").routing_settings == {}
    assert [recipe_for(model="compact-23k", routing=name).loss for name in ("attention", "dynamic", "fuzzy", "em")] == [
        *("log-odds", "log-odds"),
        *("log-probability", "log-probability"),
    ]
    assert recipe_for(model="compact-23k", routing="attention", loss="spread").loss_settings == {}
    assert [
        recipe_for(model=name, routing="attention", recipe="compact").lr for name in ("compact-23k", "baseline")
    ] == [2e-2, 8e-3]


@pytest.mark.parametrize("data", ["mnist", "affnist", "fashion-mnist", "cifar10", "photos"])
@pytest.mark.parametrize("network", [("compact-23k", "fuzzy"), ("baseline", "attention"), ("cnn-23k", None)])
def test_compact_adam_is_compact_but_for_the_optimizer_and_how_long(data: str, network: tuple[str, str | None]) -> None:
    model, routing = network
    by_muon, by_adam = (
        dataclasses.asdict(RECIPES[name].resolve(data=data, model=model, routing=routing))
        for name in ("compact", "compact-adam")
    )
    assert (by_muon["optimizer"], by_adam["optimizer"]) == ("adam" if data == "mnist" else "muon", "adam")
    differing = {name for name, value in by_muon.items() if value != by_adam[name]}
    assert differing <= {"optimizer", "epochs", "weight_decay"}


def test_entries_add_to_tables_and_replace_all_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    entries = """
[data."*mnist"]
epochs = 7
elastic = 0.5

[model."compact-*"]
epochs = 3
routing_settings = { softness = 3.0 }
"""
    file.write_text((FOLDER / "fast.toml").read_text() + entries)
    spec = find_recipe(str(file))
    compact = spec.resolve(data="mnist", model="compact-23k", routing="fuzzy")
    assert compact.routing_settings == {"sharpness": 4.0, "softness": 3.0}
    assert (compact.epochs, compact.elastic) == (3, 0.5), "the network's entry comes after the data set's"
    baseline = spec.resolve(data="fashion-mnist", model="baseline", routing="fuzzy")
    assert (baseline.epochs, baseline.routing_settings) == (7, {"sharpness": 4.0})
    assert spec.resolve(data="solids", model="baseline", routing="fuzzy").epochs == 12
    assert recipe_for(recipe=str(file), epochs=5).epochs == 5


def test_an_entry_may_be_for_a_network_with_one_routing(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    entries = '[model.baseline]\nlr = 1e-2\n\n[model."baseline/em"]\nepochs = 3\n'
    file.write_text((FOLDER / "fast.toml").read_text() + entries)
    spec = find_recipe(str(file))
    found = [
        spec.resolve(data="mnist", model=model, routing=routing)
        for model, routing in (("baseline", "em"), ("baseline", "fuzzy"), ("expanded", "em"), ("baseline", None))
    ]
    assert [(recipe.lr, recipe.epochs) for recipe in found] == [(1e-2, 3), (1e-2, 12), (2e-2, 12), (1e-2, 12)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epochs = 12", "epochs = 0"), "epochs 0 should be greater than or equal to 1"),
        (("epochs = 12", ""), "epochs is missing: it has no default"),
        (("epochs = 12", "epochs = 12\nepoch = 3"), "unknown setting 'epoch': did you mean epochs?"),
        (
            ('"one-cycle"', '"two-cycle"'),
            "unknown schedule 'two-cycle': choose one of cosine, one-cycle, steps, warmup-cosine",
        ),
        (('"anywhere"', '"nowhere"'), "unknown placement 'nowhere'"),
        (("lr = 8e-3", "rate = 8e-3"), "unknown setting 'rate'"),
        (('loss = "margin"', 'loss = "gap"'), "unknown loss 'gap'"),
        (("lr = 8e-3", "loss_settings = 5"), "loss_settings 5 should be a table"),
        (("[model.sabour]", "[model]\nsabour = 5\n[data.mnist]"), "by_model.sabour 5 should be a valid dictionary"),
    ],
)
def test_mistakes_in_a_recipe_name_the_file_and_the_value(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    file = tmp_path / "mine.toml"
    text = (FOLDER / "fast.toml").read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        read_recipe(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_an_entry_for_a_routing_that_nobody_knows_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine.toml"
    file.write_text((FOLDER / "fast.toml").read_text().replace("[routing.fuzzy]", "[routing.fuzy]"))
    read_recipe(file)
    (said,) = caplog.messages
    assert "unknown routing 'fuzy'" in said
    assert said.endswith("(did you mean fuzzy?), so its entry takes no effect")


def test_a_recipe_loss_and_schedule_of_ones_own_are_used_by_name() -> None:
    @shortcaps.register_loss("squares")
    def squares(activations: torch.Tensor, labels: torch.Tensor, *, epoch: float) -> torch.Tensor:
        return (activations - torch.nn.functional.one_hot(labels, activations.shape[1])).square().mean()

    @shortcaps.register_schedule("flat")
    def flat(step: int, steps: int, steps_per_epoch: int) -> float:
        return 1.0

    base = RECIPES["fast"].recipe
    shortcaps.register_recipe("mine", base.changed({"loss": "squares", "schedule": "flat", "epochs": 2}))
    assert "mine" in shortcaps.list_recipes()
    assert (recipe_for(recipe="mine").loss, recipe_for(recipe="mine").epochs) == ("squares", 2)
    assert "squares" in shortcaps.list_losses()
    assert "flat" in shortcaps.list_schedules("fl*")


def shares(name: str, steps: int, steps_per_epoch: int = 10) -> list[float]:
    return [SCHEDULES[name](step, steps, steps_per_epoch) for step in range(steps)]


def test_schedules_rise_and_fall_as_they_say() -> None:
    one_cycle = shares("one-cycle", 1000)
    assert max(one_cycle) == pytest.approx(1, abs=1e-2)
    assert one_cycle.index(max(one_cycle)) == pytest.approx(300, abs=1)
    assert one_cycle[0] == pytest.approx(0.04)
    assert one_cycle[-1] < 0.01
    cosine = shares("cosine", 1000)
    assert cosine.index(max(cosine)) == pytest.approx(50, abs=1)
    assert cosine[525] == pytest.approx(0.5, abs=1e-2)
    assert cosine[-1] < 1e-4
    warmed = shares("warmup-cosine", 1000)
    assert warmed.index(max(warmed)) == pytest.approx(100, abs=1)
    assert warmed[0] == pytest.approx(0.01)
    assert warmed[550] == pytest.approx(0.5, abs=1e-2)
    assert warmed[-1] < 1e-4
    paper = shares("steps", 2000)
    assert paper[0] == paper[199] == 1
    assert paper[200] == pytest.approx(0.8)
    assert paper[1999] == pytest.approx(0.8**9)


def test_a_warm_up_is_as_long_and_ends_as_low_as_it_is_set() -> None:
    schedule = SCHEDULES["warmup-cosine"]
    longer = [schedule(step, 1000, 10, warmup=0.25, last=0.1) for step in range(1000)]
    assert longer.index(max(longer)) == pytest.approx(250, abs=1)
    assert longer[-1] == pytest.approx(0.1, abs=1e-4)
    assert schedule(0, 1000, 10, warmup=0.0) == 1


@pytest.mark.parametrize("wrong", [{"last": -0.5}, {"last": 5.0}, {"warmup": 10.0}, {"warmup": -0.1}])
def test_a_warm_up_takes_fractions_only(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"(last|warmup) \S+ is not a fraction: give 0 to 1"):
        SCHEDULES["warmup-cosine"](0, 1000, 10, **wrong)


@pytest.mark.parametrize("name", ["one-cycle", "cosine", "warmup-cosine", "steps"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_schedules_take_very_short_runs(name: str, steps: int) -> None:
    assert all(0 <= share <= 1 for share in shares(name, steps, 1))


@pytest.fixture
def cli() -> Iterator[Any]:
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, list(map(str, arguments)), env={"COLUMNS": "100"})


def test_recipes_are_listed_shown_and_copied(cli: Any, tmp_path: Path) -> None:
    listed = cli("recipe", "list").stdout
    assert all(name in listed for name in RECIPES)
    assert cli("recipe", "show", "fast").stdout == (FOLDER / "fast.toml").read_text()
    target = tmp_path / "mine.toml"
    assert "--recipe" in cli("recipe", "copy", "fast", target).stdout
    assert read_recipe(target) == RECIPES["fast"]
    again = cli("recipe", "copy", "fast", target)
    assert "already exists: choose another name" in str(again.exception)
    assert "unknown recipe 'slow'" in str(cli("recipe", "show", "slow").exception)

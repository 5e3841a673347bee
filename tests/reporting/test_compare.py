"""Finished runs side by side: paired on the images that both answered, and honest about what else differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.errors import RunError
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.reporting.compare import compare_runs, find_runs
from shortcaps.runs.config import TrainConfig
from shortcaps.training.run import train
from tests.data.fakes import TEST, fake_mnist

CONFIG = TrainConfig.of(data="mnist", model="cnn-23k", recipe="fast", epochs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds by `fast` and two at another rate, whose stored answers are exchanged for known ones."""
    place = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        fake_mnist(place / "mnist", patch)
        for seed in (0, 1):
            train(CONFIG.changed(seed=seed), place / f"fast-seed{seed}")
            train(CONFIG.changed(seed=seed, lr=0.5), place / f"high-seed{seed}")
        train(CONFIG.changed(max_images=TEST - 1), place / "fewer")
    for name, wrong in (("fast-seed0", 4), ("fast-seed1", 6), ("high-seed0", 10), ("high-seed1", 12)):
        file = place / name / "answers.npz"
        answers = StoredAnswers.read(file)
        predicted = answers.labels.clone()
        predicted[:wrong] = (predicted[:wrong] + 1) % 10
        StoredAnswers(predicted, answers.labels).write(file)
    return place


def test_differences_are_those_of_the_answers(runs: Path) -> None:
    found = compare_runs(find_runs(str(runs / "fast-seed*")), find_runs(f"{runs}/high-seed0,{runs}/high-seed1"))
    assert (found.test, found.images, found.clusters) == ("mnist", TEST, TEST)
    assert found.accuracies == pytest.approx((1 - 4 / TEST, 1 - 6 / TEST))
    assert found.result.difference == pytest.approx(6 / TEST)
    low, high = found.result.interval
    assert low < 6 / TEST < high
    assert (found.only_first, found.only_second) == (6, 0)
    assert found.differing == {"recipe.lr": (0.02, 0.5)}


def test_runs_that_differ_in_their_seed_alone_were_trained_alike(runs: Path) -> None:
    assert compare_runs([runs / "fast-seed0"], [runs / "fast-seed1"]).differing == {}


def test_the_command_says_who_is_ahead_and_what_else_differs(runs: Path) -> None:
    one, other = str(runs / "fast-seed0"), str(runs / "high-seed1")
    printed = CliRunner().invoke(app, ["compare", one, other])
    assert printed.exit_code == 0, printed.output
    said = " ".join(printed.output.split())
    assert f"mnist, {TEST} test images" in said
    assert f"+{100 * 8 / TEST:.2f} points" in said
    assert "the first is ahead of the second" in said
    assert "recipe.lr 0.02 0.5" in said
    found = json.loads(CliRunner().invoke(app, ["compare", one, other, "--json"]).output)
    assert (found["verdict"], found["only_first"]) == ("ahead", 8)
    assert found["differing"] == {"recipe.lr": [0.02, 0.5]}


def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    fast, high = runs / "fast-seed0", runs / "high-seed0"
    with pytest.raises(RunError, match="were tested on different images"):
        compare_runs([fast], [runs / "fewer"])
    with pytest.raises(RunError, match=r"are no repetitions of one training: recipe.lr is 0.02 and 0.5"):
        compare_runs([fast, high], [runs / "high-seed1"])
    with pytest.raises(RunError, match="nothing is no run: give run directories"):
        find_runs(str(tmp_path / "nothing"))
    with pytest.raises(RunError, match="have the same seed, 0: give one of them"):
        compare_runs([fast, Path(f"{runs}/./fast-seed0")], [high])
    result = CliRunner().invoke(app, ["compare", str(fast), str(runs / "fast-seed*")])
    assert isinstance(result.exception, RunError)
    assert "is on both sides" in str(result.exception)


def test_a_run_without_answers_says_why(runs: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((runs / "fast-seed0" / "config.json").read_text())
    with pytest.raises(RunError, match="begun has not ended: go on with it by shortcaps train --resume"):
        compare_runs([begun], [runs / "high-seed0"])
    (begun / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"begun has kept no answers to the test images, as runs of 0\.1"):
        compare_runs([begun], [runs / "high-seed0"])
    (begun / "answers.npz").write_bytes((runs / "fast-seed0" / "answers.npz").read_bytes())
    with pytest.raises(RunError, match=r"begun/result.json cannot be read as the result of a run"):
        compare_runs([begun], [runs / "high-seed0"])


def test_a_run_may_have_brackets_in_its_name(runs: Path, tmp_path: Path) -> None:
    named = tmp_path / "run [1]"
    named.symlink_to(runs / "fast-seed0")
    assert find_runs(str(named)) == [named]

"""The studies with trainings of their own: few images, pairs of digits, a third of the viewpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shortcaps.data import Dataset, multimnist
from shortcaps.models import Network
from shortcaps.studies import STUDIES
from shortcaps.studies.digits import Digits
from shortcaps.studies.few import Few
from shortcaps.studies.findings import compare
from shortcaps.studies.measured import Scores, read_measurements
from shortcaps.studies.overlap import Doubles, Overlap, named, side_by_side
from shortcaps.studies.run import Places, run_study
from shortcaps.studies.study import Lookup, Study
from shortcaps.studies.trained import runs_by_pattern, wanted_runs
from shortcaps.studies.viewpoint import Viewpoint, matched_epochs, some_of_each, validation_errors
from tests.data.fakes import few_solids
from tests.studies.support import (
    Plain,
    coded_digits,
    fake_digits,
    in_process,
    mean_of,
    measurement,
    no_training,
    reads_the_code,
    says_nothing,
)


class Fake:
    """As much of a trained network as a measure asks for."""

    def __init__(self, part: str, run: Path | None = None, epochs: dict[int, Network] | None = None) -> None:
        self.network, self.seed, self.part, self.run, self.epochs = "cnn-23k", 0, part, run, epochs or {}

    def load(self, epoch: int) -> Network:
        return self.epochs[epoch]


def trained(part: str, **more: Any) -> Any:
    return Fake(part, **more)


def dataset(digits: Digits, originals: Tensor | None = None) -> Dataset:
    names = tuple("0123456789")
    return Dataset("made-up", "made up", "test", "default", digits.images, digits.labels, names, originals=originals)


# ---- few


def test_few_gives_one_to_a_network_that_knows_and_chance_to_one_that_does_not() -> None:
    study = Few(quick=True)
    study._tests["mnist"] = dataset(coded_digits(50))
    assert mean_of(study.measure(Plain(reads_the_code, 28), trained("mnist-10"), Lookup()), "accuracy") == 1
    assert mean_of(study.measure(Plain(says_nothing, 28), trained("mnist-10"), Lookup()), "accuracy") == pytest.approx(
        0.1
    )


def test_few_compares_learning_curves_where_all_sizes_are_there() -> None:
    study = Few()
    runs = []
    for network, lead in (("compact-23k", 0.1), ("cnn-23k", 0.0)):
        for seed in range(2):
            for place, size in enumerate(study.sizes):
                right = (torch.arange(1000) < 1000 * (0.5 + 0.1 * place + lead)).double()
                runs.append(measurement(network, seed, {"accuracy": right}, part=f"mnist-{size}"))
    curves = {finding.what: finding for finding in compare(study, runs)}
    whole = curves["accuracy on MNIST averaged over 10 to 1,000 images a class"]
    assert (whole.verdict, whole.difference, whole.seeds) == ("ahead", pytest.approx(0.1), 2)
    assert curves["accuracy on MNIST after 30 images a class"].difference == pytest.approx(0.1)
    assert not any("Fashion" in what for what in curves)
    without = [m for m in runs if m.part != "mnist-30"]
    assert all("averaged" not in finding.what for finding in compare(study, without))


def test_few_trains_as_many_steps_on_every_size_and_draws_by_the_seed() -> None:
    study = Few()
    for entry in wanted_runs(study, ["cnn-23k"], 2, Path("runs")):
        config = entry.job.config
        assert config.data.draw == entry.seed
        images = 10 * (config.data.per_class or 0)
        steps = (config.optim.epochs or 0) * max(1, images // 128)
        assert steps == pytest.approx(600, rel=0.05)
        assert f"--per-class {config.data.per_class}" in entry.job.command
        assert "--no-adapt" in entry.job.command
        assert ("--draw 1" in entry.job.command) == (entry.seed == 1)
    runs = [entry.job.run for entry in wanted_runs(study, ["cnn-23k", "baseline/fuzzy"], 2, Path("runs"))]
    assert len(set(runs)) == len(runs) == 2 * 2 * 10


# ---- overlap


def test_overlap_gives_one_to_a_network_of_pairs_that_knows_and_little_to_one_that_does_not() -> None:
    study = Overlap(quick=True)
    digits = coded_digits(45)
    study.__dict__["test"] = Digits(digits.images, torch.arange(45))

    class Knows(Network):
        def __init__(self, answer: Tensor) -> None:
            super().__init__((28, 28), 1, 45)
            self.answer = answer

        def forward(self, images: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(self.answer[: len(images)], 45).float()

    knows = study.measure(Knows(torch.arange(45)), trained("pairs"), Lookup())
    nothing = study.measure(Knows(torch.zeros(45, dtype=torch.int64)), trained("pairs"), Lookup())
    assert mean_of(knows, "both") == mean_of(knows, "digits") == 1
    assert mean_of(nothing, "both") == pytest.approx(1 / 45)
    assert mean_of(nothing, "digits") == pytest.approx(0.2), "two of ten classes, whatever is shown"


def test_the_two_most_active_classes_count_after_training_on_single_digits() -> None:
    study = Overlap(quick=True)
    classes = torch.tensor(multimnist.PAIRS)
    images = torch.zeros(45, 1, 40, 40, dtype=torch.uint8)
    study.__dict__["doubles"] = Doubles({"side by side": images, "overlapping": images}, classes)
    both = torch.zeros(45, 10).scatter(1, classes, 1.0)
    knows = study.measure(Plain(lambda shown: 10 * both[: len(shown)]), trained("single"), Lookup())
    nothing = study.measure(Plain(says_nothing), trained("single"), Lookup())
    for how in ("side by side", "overlapping"):
        assert mean_of(knows, f"both {how}") == mean_of(knows, f"most active {how}") == 1
        assert mean_of(nothing, f"both {how}") <= 1 / 45 + 1e-9
        assert mean_of(nothing, f"most active {how}") == pytest.approx(0.2), "class 0 is in 9 of 45 pairs"


def test_names_are_counted_in_either_order() -> None:
    activations = torch.tensor([[0.9, 0.8, 0.1], [0.1, 0.8, 0.9]])
    assert named(activations, torch.tensor([[1, 0], [0, 1]])).tolist() == [2, 1]


def test_digits_side_by_side_do_not_touch() -> None:
    digits = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    digits[:, :, 4:24, 4:24] = torch.tensor([100, 200], dtype=torch.uint8)[:, None, None, None]
    images = side_by_side(digits, torch.tensor([[0, 1]] * 5), torch.Generator().manual_seed(1))
    assert ((images == 100).sum((1, 2, 3)) == 400).all()
    assert ((images == 200).sum((1, 2, 3)) == 400).all()
    assert (images[..., :20] != 200).all()


# ---- viewpoint


def test_the_better_network_is_stopped_where_it_was_as_good_as_the_other_at_its_best() -> None:
    ours, theirs = [0.5, 0.3, 0.2, 0.1], [0.6, 0.5, 0.35, 0.31]
    assert matched_epochs(ours, theirs) == (1, 3)
    assert matched_epochs(theirs, ours) == (3, 1)
    assert matched_epochs(ours, ours) == (3, 3)
    assert matched_epochs([0.4, 0.25, 0.1, 0.2], [0.2] * 3) == (1, 2)


def test_views_are_drawn_of_every_object() -> None:
    digits = coded_digits(60)
    chosen = some_of_each(dataset(digits, torch.arange(60) // 20), 4)
    assert chosen.originals is not None
    assert chosen.originals.bincount().tolist() == [4, 4, 4]


def viewpoint(tmp_path: Path) -> tuple[Viewpoint, dict[str, Any]]:
    study = Viewpoint(quick=True)
    digits, objects = coded_digits(40), torch.arange(40) // 4
    shown = dataset(digits, objects)
    study.__dict__["_tests"] = {"solids-azimuth": {"familiar": shown, "novel": shown}}
    (tmp_path / "metrics.csv").write_text("epoch,validation_error\n1,0.9\n2,0.2\n")
    return study, {"run": tmp_path, "epochs": {1: Plain(says_nothing, 28), 2: Plain(reads_the_code, 28)}}


def test_viewpoint_gives_one_to_a_network_that_knows_and_chance_to_one_that_does_not(tmp_path: Path) -> None:
    study, run = viewpoint(tmp_path)
    found = study.measure(Plain(reads_the_code, 28), trained("solids-azimuth", **run), Lookup())
    for kind in ("familiar", "novel"):
        assert mean_of(found, kind) == mean_of(found, f"{kind} after 2") == 1
        assert mean_of(found, f"{kind} after 1") == pytest.approx(0.1)
    assert found.values == {"validation error after 1": 0.9, "validation error after 2": 0.2}
    assert found.scores["novel"].originals is not None, "the object is the unit"
    assert validation_errors(trained("", run=tmp_path)) == [0.9, 0.2]


def test_networks_are_compared_where_they_are_equally_good_on_familiar_viewpoints() -> None:
    """Ours ends better; stopped where it is as good as theirs on familiar viewpoints, it is behind on novel ones."""

    def run(network: str, errors: list[float], novel: list[float]) -> Any:
        right = lambda share: Scores((torch.arange(500) < 500 * share).double(), torch.arange(500) // 5)  # noqa: E731
        scores = {f"novel after {n + 1}": right(share) for n, share in enumerate(novel)}
        scores |= {f"familiar after {n + 1}": right(1 - error) for n, error in enumerate(errors)}
        made = measurement(
            network, 0, {**scores, "novel": right(novel[-1]), "familiar": right(1 - errors[-1])}, part="solids-azimuth"
        )
        made.record["values"] = {f"validation error after {n + 1}": error for n, error in enumerate(errors)}
        return made

    runs = [run("compact-23k", [0.4, 0.2, 0.1], [0.3, 0.5, 0.9]), run("cnn-23k", [0.4, 0.3, 0.2], [0.3, 0.5, 0.7])]
    found = {finding.what: finding for finding in compare(Viewpoint(), runs)}
    matched = found["accuracy on novel azimuths of solids, matched on familiar ones"]
    assert (matched.value, matched.opponent_value, matched.verdict) == (
        pytest.approx(0.5),
        pytest.approx(0.7),
        "behind",
    )
    assert found["accuracy on familiar azimuths of solids where they were matched"].difference == pytest.approx(0)
    assert found["accuracy on novel azimuths of solids, each trained to its end"].verdict == "ahead"


# ---- all of them, whole


class Tiny(Few):
    sizes = (1, 2)  # type: ignore[assignment]


def quick_study(name: str) -> Study:
    return Tiny(quick=True) if name == "few" else STUDIES[name](quick=True)


@pytest.mark.parametrize("name", ["few", "overlap", "viewpoint"])
def test_a_study_runs_from_its_trainings_to_its_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_digits(tmp_path / "mnist", monkeypatch)
    few_solids(monkeypatch)
    monkeypatch.setattr("shortcaps.studies.few.QUICK_STEPS", 4)
    places = Places(tmp_path / "results", tmp_path / "runs")
    networks = ["compact-23k", "compact-23k-plain"]
    outcome = run_study(quick_study(name), places, networks=networks, seeds=1, launch=in_process)
    assert outcome.failed == {}
    assert len(outcome.written) == 4
    study = quick_study(name)
    measured = read_measurements(places.results / name)
    assert {(m.network, m.part) for m in measured} == {
        (network, part.name) for network in networks for part in study.parts()
    }
    findings = compare(study, measured)
    assert {finding.what for finding in findings} <= {claim.what for claim in study.claims()}
    assert all(math.isfinite(finding.difference) for finding in findings)
    assert any(finding.is_main for finding in findings)

    patterns = ",".join(str(entry.job.run) for entry in wanted_runs(study, networks, 1, places.runs))
    again = run_study(study, Places(tmp_path / "again", places.runs), runs=patterns, launch=no_training)
    assert len(again.written) == 4
    assert {(t.network, t.part) for t in runs_by_pattern(patterns, study)} == {(m.network, m.part) for m in measured}

"""Comparisons of networks: who is ahead, with intervals that know what was shown to whom."""

from __future__ import annotations

import pytest
import torch

from shortcaps.errors import RunError
from shortcaps.studies.findings import compare
from shortcaps.studies.measured import Scores
from shortcaps.studies.networks import cell_of, name_of, opponents
from shortcaps.studies.study import Claim, Study
from tests.studies.support import measurement


class MadeUp(Study):
    name, title, question = "made up", "Made up", "Nothing is claimed."
    wanted: tuple[Claim, ...] = (Claim("accuracy", "right"),)

    def measure(self, *arguments: object) -> None:  # type: ignore[override]
        raise NotImplementedError

    def claims(self) -> tuple[Claim, ...]:
        return self.wanted

    def draw(self, *arguments: object) -> None:  # type: ignore[override]
        raise NotImplementedError


def answers(share: float, count: int = 1000) -> torch.Tensor:
    return (torch.arange(count) < share * count).double()


def study(*claims: Claim) -> MadeUp:
    made = MadeUp()
    made.wanted = claims or MadeUp.wanted
    return made


def test_capsules_are_compared_with_their_twin_and_the_cnn_of_their_size() -> None:
    every = ["baseline/fuzzy", "compact-23k", "compact-23k-plain", "cnn-23k"]
    assert opponents("compact-23k", every) == ["compact-23k-plain", "cnn-23k"]
    assert opponents("baseline/fuzzy", every) == ["cnn-23k"]
    assert opponents("baseline/sequential/fuzzy", [*every, "cnn-68k"]) == ["cnn-68k"]
    assert opponents("cnn-23k", every) == []
    assert opponents("sabour", every) == []


@pytest.mark.parametrize(
    "network", ["cnn-23k", "baseline/fuzzy", "compact-23k", "compact-23k/em", "baseline/sequential/em"]
)
def test_a_network_s_name_leads_to_its_config_and_back(network: str) -> None:
    assert name_of(cell_of(network, "mnist").config()) == network


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("bsaeline", "unknown network 'bsaeline'"),
        ("baseline/fuzy", "unknown routing 'fuzy'"),
        ("baseline/sequential", "is no name of a network|unknown routing"),
        ("baseline/x/fuzzy", "is no name of a network"),
    ],
)
def test_a_name_that_is_none_is_refused(network: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        cell_of(network, "mnist")


def test_a_network_that_knows_more_is_ahead_by_as_much_and_one_alike_is_not_told_apart() -> None:
    runs = [
        *(measurement("compact-23k", seed, {"right": answers(0.95)}) for seed in range(2)),
        *(measurement("compact-23k-plain", seed, {"right": answers(0.85)}) for seed in range(2)),
        *(measurement("cnn-23k", seed, {"right": answers(0.95)}) for seed in range(2)),
    ]
    twin, cnn = compare(study(), runs)
    assert (twin.verdict, twin.difference, twin.seeds) == ("ahead", pytest.approx(0.1), 2)
    assert str(twin).startswith(
        "compact-23k is ahead of compact-23k-plain in accuracy: 95.00% against 85.00%, +10.00 points, 95 % interval +8."
    )
    assert (cnn.verdict, cnn.difference) == ("not told apart", 0)
    assert "is not told apart from cnn-23k in accuracy" in str(cnn)


def test_where_less_is_better_the_smaller_number_is_ahead() -> None:
    runs = [measurement("compact-23k", 0, {"right": answers(0.1)}), measurement("cnn-23k", 0, {"right": answers(0.3)})]
    (found,) = compare(study(Claim("false alarms", "right", lower_is_better=True)), runs)
    assert (found.verdict, found.difference) == ("ahead", pytest.approx(-0.2))


def test_views_of_one_object_count_once() -> None:
    originals = torch.arange(1000) // 100
    runs = [
        measurement("compact-23k", 0, {"right": Scores(answers(0.9), originals)}),
        measurement("cnn-23k", 0, {"right": Scores(answers(0.8), originals)}),
    ]
    (found,) = compare(study(), runs)
    assert found.difference == pytest.approx(0.1)
    assert found.verdict == "not told apart", "one object in ten is no evidence"


def test_only_seeds_that_both_have_are_compared() -> None:
    runs = [measurement("compact-23k", 0, {"right": answers(0.9)}), measurement("cnn-23k", 1, {"right": answers(0.8)})]
    assert compare(study(), runs) == []


def test_other_images_are_refused() -> None:
    runs = [
        measurement("compact-23k", 0, {"right": answers(0.9)}),
        measurement("cnn-23k", 0, {"right": answers(0.8)}, images="others"),
    ]
    with pytest.raises(RunError, match="cnn-23k, seed 0, was not measured on the images of compact-23k, seed 0"):
        compare(study(), runs)


def test_at_matched_accuracy_only_images_count_that_both_have_right_unharmed() -> None:
    """One network recognises fewer images, and stands the harm on every one of them: there both are equal."""
    runs = [
        measurement("compact-23k", 0, {"clean": answers(1.0), "harmed": answers(0.8)}),
        measurement("cnn-23k", 0, {"clean": answers(0.6), "harmed": answers(0.6)}),
    ]
    (plain,) = compare(study(Claim("accuracy", "harmed")), runs)
    (matched,) = compare(study(Claim("accuracy", "harmed", among="clean")), runs)
    assert plain.verdict == "ahead"
    assert (matched.verdict, matched.images, matched.value, matched.opponent_value) == ("not told apart", 600, 1, 1)


def test_different_recipes_are_said() -> None:
    ours, theirs = (measurement(name, 0, {"right": answers(0.9)}) for name in ("compact-23k", "cnn-23k"))
    theirs.record["run"]["conditions"] = {"epochs": 1}
    (found,) = compare(study(), [ours, theirs])
    assert str(found).endswith("one seed, not trained alike.")


def test_what_a_recipe_sets_by_network_makes_it_no_other_recipe() -> None:
    ours, theirs = (measurement(name, 0, {"right": answers(0.9)}) for name in ("compact-23k", "cnn-23k"))
    for run, loss in ((ours, "log-odds"), (theirs, "log-probability")):
        run.record["run"]["conditions"] = {"epochs": 12, "loss": loss}
    (found,) = compare(study(), [ours, theirs])
    assert found.same_recipe


def test_a_setting_that_recipes_did_not_have_yet_had_its_default() -> None:
    ours, theirs = (measurement(name, 0, {"right": answers(0.9)}) for name in ("compact-23k", "cnn-23k"))
    for theirs.record["run"]["conditions"], alike in (
        ({"epochs": 12}, True),
        ({"epochs": 12, "optimizer": "muon"}, False),
    ):
        ours.record["run"]["conditions"] = {"epochs": 12, "optimizer": "adam"}
        (found,) = compare(study(), [ours, theirs])
        assert found.same_recipe == alike


@pytest.mark.parametrize(
    "changes",
    [
        {"by_hand": {"loss": "margin"}},
        {"precision": "bf16-mixed"},
        {"dataset": "affnist-regenerated"},
        {"protocol": "paper"},
        {"max_images": 500},
    ],
)
def test_a_loss_by_hand_another_precision_and_other_images_are_another_training(changes: dict[str, object]) -> None:
    ours, theirs = (measurement(name, 0, {"right": answers(0.9)}) for name in ("compact-23k", "cnn-23k"))
    ours.record["run"] |= changes
    (found,) = compare(study(), [ours, theirs])
    assert not found.same_recipe


def test_seeds_of_one_network_by_different_rates_are_said() -> None:
    runs = [measurement(name, seed, {"right": answers(0.9)}) for name in ("compact-23k", "cnn-23k") for seed in (0, 1)]
    for run, rate in zip(runs, (0.02, 0.005, 0.02, 0.02), strict=True):
        run.record["run"]["by_network"] = {"lr": rate}
    (found,) = compare(study(), runs)
    assert not found.same_recipe


def test_an_opponent_is_left_to_the_claim_that_fits_it() -> None:
    runs = [
        measurement("compact-23k", 0, {"right": answers(0.9)}),
        measurement("cnn-23k", 0, {"right": answers(0.8), "better": answers(0.8)}),
    ]
    assert compare(study(Claim("accuracy", "right", unless="better")), runs) == []
    assert len(compare(study(Claim("accuracy", "right", unless="other")), runs)) == 1

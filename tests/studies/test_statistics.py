"""Statistics as means of scores: each agrees with its definition, and its spread with what repeating the experiment shows."""

from __future__ import annotations

import pytest
import torch

from shortcaps.reporting.paired import Answers, paired_difference
from shortcaps.studies.statistics import (
    area_under,
    auroc_scores,
    breaking_point,
    brier_scores,
    false_alarms,
    r2_scores,
    ridge,
)


def auroc_by_counting(known: torch.Tensor, unknown: torch.Tensor) -> float:
    wins = (known[:, None] > unknown).double() + 0.5 * (known[:, None] == unknown).double()
    return float(wins.mean())


def test_auroc_is_the_share_of_pairs_in_the_right_order_with_ties_as_halves() -> None:
    known, unknown = torch.randint(8, (70,)).float() + 1, torch.randint(8, (50,)).float()
    scores = auroc_scores(known, unknown)
    assert scores.shape == (120,)
    assert float(scores.mean()) == pytest.approx(auroc_by_counting(known, unknown))


def test_auroc_is_one_for_a_perfect_detector_and_half_for_a_constant_one() -> None:
    assert float(auroc_scores(torch.rand(30) + 2, torch.rand(40)).mean()) == 1
    assert float(auroc_scores(torch.ones(30), torch.ones(40)).mean()) == 0.5


def test_the_spread_of_auroc_scores_is_that_of_the_area_over_repetitions() -> None:
    generator = torch.Generator().manual_seed(3)
    areas, expected = [], []
    for _ in range(300):
        known = torch.randn(80, generator=generator) + 1
        unknown = torch.randn(40, generator=generator)
        scores = auroc_scores(known, unknown)
        areas.append(scores.mean())
        expected.append(scores.var(correction=0) / len(scores))
    assert float(torch.stack(areas).var()) == pytest.approx(float(torch.stack(expected).mean()), rel=0.25)


def test_false_alarms_are_counted_where_95_percent_of_the_known_are_kept() -> None:
    known = torch.arange(100).float()
    assert float(false_alarms(known, torch.tensor([4.0, 5.0, 6.0, 200.0])).sum()) == 3
    kept = known >= 5
    assert float(kept.double().mean()) == 0.95


def test_r2_is_one_for_the_target_and_zero_for_its_mean() -> None:
    target = torch.randn(50)
    assert float(r2_scores(target, target).mean()) == 1
    assert float(r2_scores(target.mean().expand(50), target).mean()) == pytest.approx(0, abs=1e-6)


def test_the_area_under_a_curve_is_its_mean_height() -> None:
    ones, zeros = torch.ones(4), torch.zeros(4)
    assert area_under((0, 10, 40), [ones, ones, ones]).tolist() == [1, 1, 1, 1]
    assert area_under((0, 10, 40), [ones, ones, zeros]).tolist() == pytest.approx([(10 + 15) / 40] * 4)
    with pytest.raises(ValueError, match="do not ascend"):
        area_under((0, 0), [ones, ones])


def test_a_curve_breaks_where_the_line_between_two_points_crosses_the_level() -> None:
    assert breaking_point((0, 10, 20), (1.0, 1.0, 0.8), 0.9) == pytest.approx(15)
    assert breaking_point((0, 10), (0.5, 0.4), 0.9) == 0
    assert breaking_point((0, 10), (1.0, 0.95), 0.9) is None


def test_the_brier_score_is_zero_for_certainty_and_two_for_certain_error() -> None:
    labels = torch.tensor([0, 1])
    assert brier_scores(torch.eye(2), labels).tolist() == [0, 0]
    assert brier_scores(torch.eye(2).flip(0), labels).tolist() == [2, 2]


def test_ridge_finds_a_linear_map_and_its_intercept() -> None:
    x = torch.randn(200, 3, dtype=torch.float64)
    truth = torch.tensor([[1.0, 0], [2, -1], [0, 3]], dtype=torch.float64)
    weights, intercept = ridge(x, x @ truth + 5, strength=1e-9)
    torch.testing.assert_close(weights, truth, atol=1e-6, rtol=0)
    torch.testing.assert_close(intercept, torch.full((2,), 5.0, dtype=torch.float64), atol=1e-6, rtol=0)


def test_scores_that_are_no_zeros_and_ones_can_be_paired() -> None:
    hard = torch.randn(400)
    first = Answers.of([hard + 0.5], None)
    second = Answers.of([hard + 0.1 * torch.randn(400)], None)
    result = paired_difference(first, second)
    assert result.difference == pytest.approx(0.5, abs=0.02)
    assert result.interval[1] - result.interval[0] < 0.05, "what both have in common cancels"

"""Intervals against closed forms, tables and repeated draws."""

from __future__ import annotations

import pytest
import torch

from shortcaps.reporting.intervals import independent_images, student, wilson_interval


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    # Wilson (1927); values from the closed form evaluated by hand for n = 10 and from published tables for 0 of 20.
    [(5, 10, 0.2366, 0.7634), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0)],
)
def test_the_interval_is_wilsons(correct: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(correct, count) == pytest.approx((low, high), abs=1e-4)


def test_students_quantile_is_that_of_the_tables() -> None:
    for freedom, quantile in ((1, 12.706), (4, 2.776), (11, 2.201), (24, 2.064), (120, 1.980)):
        assert student(freedom) == pytest.approx(quantile, abs=1e-3)
    with pytest.raises(ValueError, match="one observation says nothing"):
        student(0)


def test_views_that_agree_count_once_and_views_that_do_not_count_each() -> None:
    generator = torch.Generator().manual_seed(1)
    originals = torch.arange(2000).repeat_interleave(8)
    together = (torch.rand(2000, generator=generator) < 0.9).repeat_interleave(8)
    assert independent_images(together, originals) == pytest.approx(2000, rel=0.01)
    apart = torch.rand(16_000, generator=generator) < 0.9
    assert independent_images(apart, originals) == pytest.approx(16_000, rel=0.1)
    assert independent_images(apart, torch.arange(16_000)) == pytest.approx(16_000, rel=0.001)


def test_where_no_spread_is_to_be_seen_each_original_counts_once() -> None:
    originals = torch.arange(5).repeat_interleave(4)
    assert independent_images(torch.ones(20, dtype=torch.bool), originals) == 5
    assert independent_images(torch.rand(20) < 0.5, torch.zeros(20)) == 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Twenty-five objects, each recognised from its own share of 40 viewpoints: objects, not images, are the sample."""
    generator = torch.Generator().manual_seed(2)
    held = 0
    for _ in range(400):
        share = torch.rand(25, generator=generator)  # uniform: the truth is 0.5
        right = (torch.rand((25, 40), generator=generator) < share[:, None]).reshape(-1)
        count = independent_images(right, torch.arange(25).repeat_interleave(40))
        low, high = wilson_interval(float(right.double().mean()) * count, count)
        held += low <= 0.5 <= high
        plain_low, plain_high = wilson_interval(int(right.sum()), 1000)
        assert high - low > plain_high - plain_low
    assert 0.92 < held / 400 < 0.98

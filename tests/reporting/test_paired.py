"""Paired differences: their textbook special cases, and that their intervals hold what they promise."""

from __future__ import annotations

import math

import pytest
import torch

from shortcaps.reporting.intervals import student
from shortcaps.reporting.paired import Answers, paired_difference


def answers(*right: list[int], originals: list[int] | None = None) -> Answers:
    return Answers.of([torch.tensor(seed) for seed in right], None if originals is None else torch.tensor(originals))


def test_one_seed_and_single_images_give_the_paired_t_interval() -> None:
    first, second = [1, 1, 0, 1, 1, 0, 1, 1], [1, 0, 0, 1, 0, 1, 1, 0]
    differences = torch.tensor(first, dtype=torch.float64) - torch.tensor(second)
    half = student(7) * float(differences.std()) / math.sqrt(8)
    found = paired_difference(answers(first), answers(second))
    assert found.difference == pytest.approx(float(differences.mean()))
    assert found.interval == pytest.approx((found.difference - half, found.difference + half))


def test_what_both_find_hard_falls_out() -> None:
    """The same two extra right answers are told apart better where all else is equal than where it is not."""
    torch.manual_seed(0)
    hard = torch.rand(400) < 0.5
    first, second = hard.clone(), hard.clone()
    first[hard.logical_not().nonzero()[:20, 0]] = True
    other = hard[torch.randperm(400)]
    paired = paired_difference(Answers.of([first], None), Answers.of([second], None))
    unpaired = paired_difference(Answers.of([first], None), Answers.of([other], None))
    assert paired.difference == pytest.approx(0.05)
    assert paired.verdict == "ahead"
    assert unpaired.verdict == "not told apart"


def test_views_of_one_object_are_one_observation() -> None:
    """Every image four times over: the same figures as each once."""
    first, second = [1, 1, 0, 1, 1, 0], [1, 0, 0, 1, 0, 0]
    once = paired_difference(answers(first), answers(second))
    originals = [n for n in range(6) for _ in range(4)]
    repeated = paired_difference(
        answers([x for x in first for _ in range(4)], originals=originals),
        answers([x for x in second for _ in range(4)], originals=originals),
    )
    assert repeated.difference == pytest.approx(once.difference)
    assert repeated.interval == pytest.approx(once.interval)


def test_the_order_of_images_within_clusters_does_not_matter() -> None:
    one = Answers.of([torch.tensor([1, 0, 1, 1])], torch.tensor([7, 3, 7, 3]))
    assert one.right.tolist() == [[1, 2]]
    assert one.sizes.tolist() == [2, 2]


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = paired_difference(answers([1] * 90 + [0] * 10, [1] * 90 + [0] * 10), answers([1] * 80 + [0] * 20))
    apart = paired_difference(answers([1] * 98 + [0] * 2, [1] * 82 + [0] * 18), answers([1] * 80 + [0] * 20))
    assert alike.difference == apart.difference == pytest.approx(0.1)
    assert apart.interval[0] < alike.interval[0]
    assert alike.verdict == "ahead"
    assert apart.verdict == "not told apart"


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    """Three seeds each, clusters of four, a true difference of two points: drawn two thousand times."""
    generator = torch.Generator().manual_seed(0)
    clusters, size, held, draws = 150, 4, 0, 2000
    sizes = torch.full((clusters,), size)
    for _ in range(draws):
        ease = 0.15 * torch.randn(clusters, generator=generator)
        counts = []
        for mean in (0.72, 0.70):
            seeds = mean + 0.01 * torch.randn(3, 1, generator=generator) + ease
            chances = seeds.clamp(0, 1)[..., None].expand(3, clusters, size)
            counts.append(torch.bernoulli(chances.double(), generator=generator).sum(2))
        low, high = paired_difference(Answers(counts[0], sizes), Answers(counts[1], sizes)).interval
        held += low <= 0.02 <= high
    assert 0.93 < held / draws < 0.985


def test_a_draw_that_both_share_is_no_noise_where_seeds_are_pairs() -> None:
    """The second draw is worse for both by as much: by itself each network varies, their difference does not."""
    first = answers([1] * 90 + [0] * 10, [1] * 70 + [0] * 30)
    second = answers([1] * 80 + [0] * 20, [1] * 60 + [0] * 40)
    assert paired_difference(first, second).verdict == "not told apart"
    assert paired_difference(first, second, by_seed=True).verdict == "ahead"
    with pytest.raises(ValueError, match="2 and 1 seeds are no pairs"):
        paired_difference(first, answers([1] * 80 + [0] * 20), by_seed=True)


def test_ninety_five_of_a_hundred_intervals_hold_the_truth_where_draws_are_shared() -> None:
    """Five draws that move both networks together, and each a little by itself: drawn a thousand times."""
    generator = torch.Generator().manual_seed(0)
    images, held, draws = 400, 0, 1000
    for _ in range(draws):
        ease, draw = 0.15 * torch.randn(images, generator=generator), 0.05 * torch.randn(5, 1, generator=generator)
        counts = []
        for mean in (0.72, 0.70):
            chances = (mean + draw + 0.01 * torch.randn(5, 1, generator=generator) + ease).clamp(0, 1)
            counts.append(torch.bernoulli(chances.double(), generator=generator))
        sizes = torch.ones(images, dtype=torch.int64)
        low, high = paired_difference(Answers(counts[0], sizes), Answers(counts[1], sizes), by_seed=True).interval
        held += low <= 0.02 <= high
    assert 0.93 < held / draws < 0.985


def test_networks_that_answer_alike_are_not_told_apart_and_others_are_behind() -> None:
    same = answers([1, 0, 1, 1])
    assert paired_difference(same, same).interval == (0, 0)
    assert paired_difference(same, same).verdict == "not told apart"
    assert paired_difference(answers([0] * 50), answers([1] * 50)).verdict == "behind"


def test_of_one_object_and_one_seed_nothing_can_be_said() -> None:
    objects = torch.zeros(10, dtype=torch.int64)
    first, second = (Answers.of([torch.arange(10) < right], objects) for right in (8, 6))
    assert paired_difference(first, second).verdict == "not told apart"


def test_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="not tested on the same images"):
        paired_difference(answers([1, 0]), answers([1, 0, 1]))

"""Two networks on the same test images: by how much one is ahead, and how certain that is.

Both answered the same images, so whatever makes an image easy or hard for both cancels out of the difference. Images that show one
digit or one object (a cluster) tend to be right or wrong together, so the cluster is the unit, not the image. And a network trained
with another seed answers differently, so the seeds are a sample too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.reporting.intervals import student


@dataclass(frozen=True)
class Answers:
    """What the runs of one network, with different seeds, got right.

    Attributes:
        right: (seeds, clusters), how many images of each cluster were right; a cluster is a single image if images are independent.
        sizes: (clusters,), how many images each cluster has.
    """

    right: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, right: Sequence[Tensor], originals: Tensor | None) -> Answers:
        """Count by cluster.

        Args:
            right: For each seed (images,), whether each image was right.
            originals: (images,), which digit or object each shows; None if every image shows a different one.
        """
        clusters = torch.arange(len(right[0])) if originals is None else originals.unique(return_inverse=True)[1]
        sizes = clusters.bincount()
        sums = [clusters.bincount(answers.double(), minlength=len(sizes)) for answers in right]
        return cls(torch.stack(sums), sizes)

    @property
    def accuracies(self) -> Tensor:
        """Accuracy with each seed, (seeds,)."""
        return self.right.double().sum(1) / self.sizes.sum()


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two networks.

    Attributes:
        difference: Mean accuracy of the first minus that of the second, as a fraction.
        interval: Its 95 % interval.
    """

    difference: float
    interval: tuple[float, float]

    @property
    def verdict(self) -> str:
        """`ahead`, `behind`, or `not told apart` if the interval includes zero."""
        low, high = self.interval
        return "ahead" if low > 0 else "behind" if high < 0 else "not told apart"

    @property
    def relation(self) -> str:
        """The verdict before the name of the other network: `ahead of`, `behind`, `not told apart from`."""
        return relation(self.verdict)


def seeds_in_words(count: int, *, each: bool = True) -> str:
    """How many seeds a comparison rests on: of each network, or of one."""
    return "one seed" if count == 1 else f"{count} seeds{' each' if each else ''}"


def relation(verdict: str) -> str:
    """A verdict before the name of the other network: `ahead of`, `behind`, `not told apart from`."""
    return {"ahead": "ahead of", "not told apart": "not told apart from"}.get(verdict, verdict)


def paired_difference(first: Answers, second: Answers, *, by_seed: bool = False) -> PairedDifference:
    """How far the first network is ahead of the second.

    The variance of the difference has two parts. Clusters: the spread of the clusters' own differences (averaged over seeds) about the mean
    difference, as in cluster surveys. Seeds: the spread of each network's accuracies beyond what single images cause; one seed has no
    spread, so a network with one seed adds nothing. Student's quantile is taken with the degrees of
    freedom that Satterthwaite's formula gives for the sum.

    Args:
        first: Of the one network.
        second: Of the other.
        by_seed: Whether seeds are pairs too, as where both networks of a seed were trained on the same draw of images: what a draw does to
            both alike is then no noise. Otherwise the seeds of one network have nothing to do with those of the other.

    Raises:
        ValueError: The networks were not tested on the same clusters, or not with as many seeds where these are pairs.
    """
    if not torch.equal(first.sizes, second.sizes):
        raise ValueError("the two networks were not tested on the same images")
    if by_seed and len(first.right) != len(second.right):
        raise ValueError(f"{len(first.right)} and {len(second.right)} seeds are no pairs: give as many of each network")
    sizes = first.sizes.double()
    count, clusters = float(sizes.sum()), len(sizes)
    by_cluster = first.right.double().mean(0) - second.right.double().mean(0)
    difference = float(by_cluster.sum()) / count
    parts: list[tuple[float, int]] = []
    if clusters > 1:
        excess = by_cluster - difference * sizes
        parts.append((float((excess**2).sum()) / count**2 * clusters / (clusters - 1), clusters - 1))
    varying = (Answers(first.right - second.right, first.sizes),) if by_seed else (first, second)
    for answers in varying:
        seeds = len(answers.right)
        if seeds > 1:
            parts.append((_seed_variance(answers) / seeds, seeds - 1))
    if not parts:  # one cluster and one seed of each: nothing is known of the spread
        return PairedDifference(difference, (-1.0, 1.0))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return PairedDifference(difference, (difference, difference))
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = student(max(1, math.floor(freedom))) * math.sqrt(variance)
    return PairedDifference(difference, (difference - half, difference + half))


def _seed_variance(answers: Answers) -> float:
    """How much a network's accuracy varies from seed to seed as a whole.

    That some images change from right to wrong between seeds also shows in the accuracies, but the clusters' part includes it already: it
    is estimated as what seed and cluster together leave unexplained, and subtracted.
    """
    right, sizes = answers.right.double(), answers.sizes.double()
    seeds, clusters = right.shape
    count = float(sizes.sum())
    total = float(answers.accuracies.var())
    if clusters == 1:
        return total
    as_a_whole = (answers.accuracies - answers.accuracies.mean())[:, None] * sizes
    unexplained = right - right.mean(0) - as_a_whole
    by_chance = float((unexplained**2).sum()) / ((seeds - 1) * (clusters - 1)) * clusters / count**2
    return max(0.0, total - by_chance)

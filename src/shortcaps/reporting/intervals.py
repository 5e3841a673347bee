"""Confidence intervals of an accuracy: Wilson's, for images that may show the same thing more than once."""

from __future__ import annotations

import math

from torch import Tensor

CONFIDENCE = 1.959964  # standard deviations of a 95 % interval
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student(freedom: int) -> float:
    """Half the width of a 95 % interval, in standard errors that were estimated with this many degrees of freedom."""
    if freedom < 1:
        raise ValueError(f"freedom {freedom} is too small: one observation says nothing about its spread")
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = CONFIDENCE  # Cornish and Fisher's expansion, right to three decimals from here on
    second = (z**3 + z) / (4 * freedom)
    third = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + second + third + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)


def wilson_interval(correct: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a proportion. Unlike the plain one it stays inside 0–1 and is accurate near its ends."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = correct / count, CONFIDENCE**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = CONFIDENCE / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def independent_images(right: Tensor, originals: Tensor) -> float:
    """The number of independent images that carry as much information as these.

    Views of one digit or one object tend to be right or wrong together. How strongly they do shows in the spread of the originals'
    accuracies, as in cluster surveys: with the returned number, a plain proportion varies as much. A few originals estimate that spread
    poorly, for which Student's quantile compensates.

    Args:
        right: (count,), whether each image was classified correctly.
        originals: (count,), what each image shows.
    """
    count = len(right)
    if not count:
        return 0.0
    which = originals.unique(return_inverse=True)[1]
    size = which.bincount().double()
    share = right.double().mean()
    excess = which.bincount(right.double()) - share * size
    groups = len(size)
    variance = float((excess**2).sum()) / count**2 * groups / max(1, groups - 1)
    if groups == 1 or variance == 0:
        return float(groups)  # nothing can be seen of the spread: each original counts once
    effective = float(share * (1 - share)) / variance * (CONFIDENCE / student(groups - 1)) ** 2
    return min(effective, float(count))

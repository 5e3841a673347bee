"""Statistics as means: for each a score of every image whose mean is the statistic, so that paired intervals follow from one rule.

Of a statistic that is no mean by nature, the score of an image is the statistic plus the image's influence on it. The influences sum to
zero, and their spread is that of the statistic, as in DeLong et al. (1988) for the area under the ROC curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def area_under(amounts: Sequence[float], right: Sequence[Tensor]) -> Tensor:
    """Scores whose mean is the mean accuracy over a range of amounts: the area under the curve, divided by its width.

    Args:
        amounts: At least two, in ascending order.
        right: For each amount (images,), whether each image was right.

    Returns:
        (images,), by the trapezoidal rule.
    """
    if len(amounts) < 2 or any(b <= a for a, b in pairwise(amounts)):
        raise ValueError(f"amounts {list(amounts)} do not ascend: give at least two, the smallest first")
    steps = torch.tensor([b - a for a, b in pairwise(amounts)], dtype=torch.float64)
    weights = (torch.cat([steps, steps.new_zeros(1)]) + torch.cat([steps.new_zeros(1), steps])) / 2
    return (weights[:, None] * torch.stack([r.double() for r in right])).sum(0) / steps.sum()


def breaking_point(amounts: Sequence[float], accuracies: Sequence[float], level: float) -> float | None:
    """The amount at which a curve first falls below a level, between amounts by a straight line; None if it never does."""
    points = list(zip(amounts, accuracies, strict=True))
    if points and points[0][1] < level:
        return points[0][0]
    for (a, high), (b, low) in pairwise(points):
        if low < level <= high:
            return a + (b - a) * (high - level) / (high - low)
    return None


def auroc_scores(known: Tensor, unknown: Tensor) -> Tensor:
    """Scores whose mean is the area under the ROC curve: how often a known image scores above an unknown one, ties counting half.

    Args:
        known: (known,), how sure the network is of known images.
        unknown: (unknown,), of unknown ones.

    Returns:
        (known + unknown,), known ones first: the area plus the influence of each image.
    """
    placed = _share_below(unknown, known), 1 - _share_below(known, unknown)
    area, count = placed[0].mean(), len(known) + len(unknown)
    # Each sample's mean placement is the area; scaled by its share of all images, its spread enters the pooled mean as it should.
    return torch.cat([area + count / len(values) * (values - area) for values in placed])


def _share_below(values: Tensor, of: Tensor) -> Tensor:
    """For each number of `of` the share of `values` below it, equal ones counting half, (len(of),)."""
    ordered = values.double().sort().values
    below = torch.searchsorted(ordered, of.double(), right=False) + torch.searchsorted(ordered, of.double(), right=True)
    return below.double() / (2 * len(values))


def false_alarms(known: Tensor, unknown: Tensor, kept: float = 0.95) -> Tensor:
    """Whether each unknown image is taken for known, at the threshold that keeps this share of the known ones.

    The threshold is taken as given: its own uncertainty is not part of an interval.

    Returns:
        (unknown,), zeros and ones.
    """
    ordered = known.double().sort(descending=True).values
    threshold = ordered[max(0, min(len(ordered), -int(-kept * len(ordered) // 1)) - 1)]
    return (unknown.double() >= threshold).double()


def r2_scores(predicted: Tensor, target: Tensor) -> Tensor:
    """Scores whose mean is R², the share of the target's variance that predictions explain.

    Args:
        predicted: (images,).
        target: (images,).

    Returns:
        (images,); the scale of the variance is taken as given, as it is the same for all networks.
    """
    predicted, target = predicted.double(), target.double()
    variance = (target - target.mean()).square().mean().clamp_min(1e-12)
    return 1 - (predicted - target).square() / variance


def brier_scores(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Scores whose mean is the Brier score: squared error of the probabilities (images, classes), summed over classes; 0 is best."""
    target = torch.nn.functional.one_hot(labels, probabilities.shape[1]).double()
    return (probabilities.double() - target).square().sum(1)


def ridge(x: Tensor, y: Tensor, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
    """Linear regression with intercept: weights (features, targets) and intercept (targets,) for x (count, features), y (count, targets).

    Features are standardised first; `strength` is relative to their variance.
    """
    x, y = x.double(), y.double()
    mean, deviation = x.mean(0), x.std(0).clamp_min(1e-12)
    scaled = (x - mean) / deviation
    moments = scaled.mT @ scaled / len(x) + strength * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(moments, scaled.mT @ (y - y.mean(0)) / len(x)) / deviation[:, None]
    return weights, y.mean(0) - mean @ weights

"""Measures of a classifier beside its accuracy."""

from __future__ import annotations

from torch import Tensor

TOP = (2, 3, 5)
"""For which k top-k accuracy is reported, as far as there are more classes than k."""


def f1_scores(confusion: Tensor) -> tuple[float | None, ...]:
    """The F1 score of each class: the harmonic mean of precision and recall.

    Args:
        confusion: (classes, classes), counts by [true, predicted].

    Returns:
        A fraction for each class; None for one that neither occurs nor was predicted.
    """
    right = confusion.diagonal().double()
    named = (confusion.sum(0) + confusion.sum(1)).double()  # 2 · right + false positives + false negatives
    return tuple(2 * float(hits) / float(both) if both else None for hits, both in zip(right, named, strict=True))


def macro_f1(confusion: Tensor) -> float:
    """The mean of the classes' F1 scores, each counted equally however many images it has.

    Args:
        confusion: (classes, classes), counts by [true, predicted].
    """
    scores = [score for score in f1_scores(confusion) if score is not None]
    return sum(scores) / max(1, len(scores))


def top_k_accuracies(activations: Tensor, labels: Tensor) -> dict[int, float]:
    """For some k, the share of images whose class is among the k with the highest activations.

    Args:
        activations: (count, classes).
        labels: (count,), class numbers as int64.

    Returns:
        By k, for each of `TOP` below the number of classes.
    """
    classes = activations.shape[1]
    best = activations.topk(min(max(TOP), classes)).indices
    hits = best == labels.unsqueeze(1)
    return {k: float(hits[:, :k].any(1).double().sum()) / max(1, len(labels)) for k in TOP if k < classes}

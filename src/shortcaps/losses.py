"""Losses on activation probabilities (batch, classes)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def spread_loss(probabilities: Tensor, labels: Tensor, margin: float = 0.9) -> Tensor:
    """Eq. (14): `Σ_{m≠t} max(0, margin - (prob_t - prob_m))²`, mean over the batch."""
    check_labels(probabilities, labels)
    target = probabilities.gather(1, labels.unsqueeze(1))
    shortfall = (margin - (target - probabilities)).clamp_min(0).square()
    others = shortfall.scatter(1, labels.unsqueeze(1), 0.0)
    return others.sum(1).mean()


def spread_margin(epoch: float, *, first: float = 0.2, last: float = 0.9, epochs: float = 10) -> float:
    """The margin of the spread loss after so many epochs: linear from `first` to `last`, then constant."""
    if epoch < 0 or epochs <= 0:
        raise ValueError(f"epoch {epoch} of {epochs}: the margin grows from epoch 0 over a positive number of epochs")
    return first + (last - first) * min(1.0, epoch / epochs)


def margin_loss(
    probabilities: Tensor, labels: Tensor, *, present: float = 0.9, absent: float = 0.1, absent_weight: float = 0.5
) -> Tensor:
    """The margin loss of Sabour et al. (2017), mean over the batch."""
    check_labels(probabilities, labels)
    is_target = F.one_hot(labels, probabilities.shape[1]).to(probabilities.dtype)
    missed = (present - probabilities).clamp_min(0).square()
    imagined = (probabilities - absent).clamp_min(0).square()
    return (is_target * missed + absent_weight * (1 - is_target) * imagined).sum(1).mean()


def log_probability_loss(probabilities: Tensor, labels: Tensor, *, absolute: float = 0.1) -> Tensor:
    """Cross-entropy of the probabilities, scaled to sum to 1, `-ln(prob_t / Σ_m prob_m)`, and `absolute` times that of each by
    itself, `-ln prob_t - Σ_{m≠t} ln(1 - prob_m)`; mean over the batch.

    The first tells the classes apart, but is content when all probabilities are alike small; the second makes each of them
    mean what it says.
    """
    check_labels(probabilities, labels)
    # Only what is too small to be a number is raised: a larger floor would take the gradient from all below it.
    limits = torch.finfo(probabilities.dtype)
    logarithms = probabilities.clamp_min(limits.tiny).log()
    complements = torch.log1p(-probabilities.clamp_max(1 - limits.eps))
    by_itself = -torch.where(F.one_hot(labels, probabilities.shape[1]).bool(), logarithms, complements).sum(1).mean()
    return F.cross_entropy(logarithms, labels) + absolute * by_itself


def check_labels(probabilities: Tensor, labels: Tensor) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)} and labels {tuple(labels.shape)}: "
            "give (batch, classes) and (batch,)"
        )
    if labels.dtype != torch.int64:
        raise TypeError(f"labels are {labels.dtype}: give class numbers as torch.int64, e.g. labels.long()")

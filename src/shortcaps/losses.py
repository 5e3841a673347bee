"""Losses on the outputs of a network, (batch, classes).

These are activations, each in 0–1 by itself, or the probabilities of a softmax, which sum to 1; every loss takes either.

Labels are class numbers (batch,), or for each image the shares of the classes (batch, classes), which sum to 1, as mixup makes them. The loss
of shares is the mean of the losses of the classes, each by its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.kernels.library import is_transformed
from shortcaps.registry import Registry

Loss = Callable[..., Tensor]
"""Called with activations (batch, classes), labels (batch,) or (batch, classes) and, by keyword, `epoch` (a float, from 0), the settings of
the recipe and, where classes are weighted, `weights` (batch,)."""
Function = TypeVar("Function", bound=Loss)

LOSSES: Registry[Loss] = Registry("loss")


def register_loss(name: str) -> Callable[[Function], Function]:
    """Register a loss under a name: a decorator for `loss(activations, labels, *, epoch, **settings) -> Tensor`.

    Args:
        name: The name for recipes and `shortcaps train --loss`.

    Returns:
        The decorator. The loss is called with activations (batch, classes), labels (batch,) and, by keyword, the number of epochs so far
        (a float) and the recipe's `loss_settings`; it returns a scalar. Where a recipe mixes images (`mixup`), labels are the shares of the
        classes, (batch, classes); where it weights classes, there is one more keyword, `weights` (batch,), the factors of the images' losses.

    Raises:
        ValueError: The name is taken.
    """
    return LOSSES.decorator(name)


def list_losses(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered losses.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    Examples:
        >>> list_losses()
        ['log-odds', 'log-probability', 'margin', 'spread']
    """
    return LOSSES.names(pattern, exclude=exclude)


def spread_loss(
    activations: Tensor,
    labels: Tensor,
    margin: float = 0.9,
    *,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Eq. (14): `Σ_{m≠t} max(0, margin - (a_t - a_m))²`, mean over the batch.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64, or (batch, classes), shares of the classes.
        margin: By how much the true class should lead.
        label_smoothing: Share of the target that is spread evenly over all classes.
        weights: (batch,), factors of the images' losses, whose mean over the training images is 1; None for 1 each.

    Returns:
        A scalar.

    Raises:
        ValueError: Activations and labels do not fit each other, or label_smoothing is not in 0–1.
        TypeError: The labels are of another type.
    """
    _check_labels(activations, labels)
    _check_smoothing(label_smoothing)
    if labels.ndim == 2 or label_smoothing:
        shares = _smoothed(class_shares(labels, activations), label_smoothing)
        leads = activations.unsqueeze(2) - activations.unsqueeze(1)
        others = (margin - leads).clamp_min(0).square() * (1 - torch.eye(activations.shape[1]).to(activations))
        return _mean((shares * others.sum(2)).sum(1), weights)
    target = activations.gather(1, labels.unsqueeze(1))
    shortfall = (margin - (target - activations)).clamp_min(0).square()
    others = shortfall.scatter(1, labels.unsqueeze(1), 0.0)
    return _mean(others.sum(1), weights)


def spread_margin(epoch: float, *, first: float = 0.2, last: float = 0.9, epochs: float = 10) -> float:
    """The margin of the spread loss at an epoch: linear from `first` to `last`, then constant.

    Args:
        epoch: Number of epochs so far, a float.
        first: Margin at epoch 0.
        last: Margin from epoch `epochs` on.
        epochs: Number of epochs over which it grows.
    """
    if epoch < 0 or epochs <= 0:
        raise ValueError(f"epoch {epoch} of {epochs}: the margin grows from epoch 0 over a positive number of epochs")
    return first + (last - first) * min(1.0, epoch / epochs)


def margin_loss(
    activations: Tensor,
    labels: Tensor,
    *,
    present: float = 0.9,
    absent: float = 0.1,
    absent_weight: float = 0.5,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """The margin loss of Sabour et al. (2017), mean over the batch.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64, or (batch, classes), shares of the classes.
        present: The activation that the true class should reach.
        absent: The activation that the others should stay below.
        absent_weight: Weight of the others.
        label_smoothing: Share of the target that is spread evenly over all classes.
        weights: (batch,), factors of the images' losses, whose mean over the training images is 1; None for 1 each.

    Returns:
        A scalar.

    Raises:
        ValueError: Activations and labels do not fit each other, or label_smoothing is not in 0–1.
        TypeError: The labels are of another type.
    """
    _check_labels(activations, labels)
    _check_smoothing(label_smoothing)
    is_target = _smoothed(class_shares(labels, activations), label_smoothing)
    missed = (present - activations).clamp_min(0).square()
    imagined = (activations - absent).clamp_min(0).square()
    return _mean((is_target * missed + absent_weight * (1 - is_target) * imagined).sum(1), weights)


def log_probability_loss(
    activations: Tensor,
    labels: Tensor,
    *,
    absolute: float = 0.1,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the activations as probabilities plus, with a small weight, of each by itself; mean over the batch.

    `-ln(a_t / Σ_m a_m) + absolute · (-ln a_t - Σ_{m≠t} ln(1 - a_m))`. The first term tells the classes apart, but ignores a common
    factor of all activations; the second makes each activation meaningful by itself.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64, or (batch, classes), shares of the classes.
        absolute: Weight of the second term.
        label_smoothing: Share of the first term's target that is spread evenly over all classes.
        weights: (batch,), factors of the images' losses, whose mean over the training images is 1; None for 1 each.

    Returns:
        A scalar.

    Raises:
        ValueError: Activations and labels do not fit each other, or label_smoothing is not in 0–1.
        TypeError: The labels are of another type.
    """
    logarithms, complements = _logarithms(activations, labels, label_smoothing)
    return _apart_and_by_itself(logarithms, logarithms, complements, labels, absolute, label_smoothing, weights)


def log_odds_loss(
    activations: Tensor,
    labels: Tensor,
    *,
    absolute: float = 1.0,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """As `log_probability_loss`, but classes are told apart by their odds `o = a / (1 - a)` instead of their activations.

    `-ln(o_t / Σ_m o_m) + absolute · (-ln a_t - Σ_{m≠t} ln(1 - a_m))`. Activations near 1 are nearly equal, and a loss of them hardly says which
    is to become smaller; their odds still differ. Those of a squashed pose are its squared length before the squash, so a common factor
    of all poses changes nothing (in single precision up to lengths of about a thousand, where activations round to 1); those of a sigmoid
    are the exponential of what it was given. Odds say little of how large activations are, so the second term has the same weight: with a
    tenth of it probabilities become too timid.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64, or (batch, classes), shares of the classes.
        absolute: Weight of the second term.
        label_smoothing: Share of the first term's target that is spread evenly over all classes.
        weights: (batch,), factors of the images' losses, whose mean over the training images is 1; None for 1 each.

    Returns:
        A scalar.

    Raises:
        ValueError: Activations and labels do not fit each other, or label_smoothing is not in 0–1.
        TypeError: The labels are of another type.
    """
    logarithms, complements = _logarithms(activations, labels, label_smoothing)
    odds = logarithms - complements
    return _apart_and_by_itself(odds, logarithms, complements, labels, absolute, label_smoothing, weights)


def _logarithms(activations: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Checked: the logarithms of activations and of what they lack to 1, both (batch, classes)."""
    _check_labels(activations, labels)
    _check_smoothing(label_smoothing)
    # The smallest normal number: a larger floor would cut off the gradient of everything below it.
    limits = torch.finfo(activations.dtype)
    return activations.clamp_min(limits.tiny).log(), torch.log1p(-activations.clamp_max(1 - limits.eps))


def _apart_and_by_itself(
    scores: Tensor,
    logarithms: Tensor,
    complements: Tensor,
    labels: Tensor,
    absolute: float,
    label_smoothing: float,
    weights: Tensor | None,
) -> Tensor:
    """Cross-entropy of the softmax of scores and, with the weight `absolute`, that of each activation by itself."""
    if labels.ndim == 2:
        labels = labels.to(logarithms.dtype)
        by_itself = -torch.lerp(complements, logarithms, labels).sum(1)
    else:
        is_target = _one_hot(labels, logarithms.shape[1]).bool()
        by_itself = -torch.where(is_target, logarithms, complements).sum(1)
    if weights is None:
        return F.cross_entropy(scores, labels, label_smoothing=label_smoothing) + absolute * by_itself.mean()
    apart = F.cross_entropy(scores, labels, label_smoothing=label_smoothing, reduction="none")
    return _mean(apart + absolute * by_itself, weights)


def class_shares(labels: Tensor, like: Tensor) -> Tensor:
    """Labels as shares of the classes.

    Args:
        labels: (batch,), class numbers as int64, or (batch, classes), shares of the classes.
        like: (batch, classes), whose number of classes, type and device the shares get.

    Returns:
        (batch, classes), which sum to 1.
    """
    return (labels if labels.ndim == 2 else _one_hot(labels, like.shape[1])).to(like)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    if is_transformed(labels):  # PyTorch's own looks at the values, which vmap does not allow
        return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
    return F.one_hot(labels, classes)


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    return losses.mean() if weights is None else (losses * weights).mean()


def _smoothed(shares: Tensor, smoothing: float) -> Tensor:
    return shares * (1 - smoothing) + smoothing / shares.shape[1] if smoothing else shares


@register_loss("spread")
def _spread(
    activations: Tensor,
    labels: Tensor,
    *,
    epoch: float,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
    **settings: float,
) -> Tensor:
    margin = spread_margin(epoch, **settings)
    return spread_loss(activations, labels, margin, label_smoothing=label_smoothing, weights=weights)


@register_loss("margin")
def _margin(activations: Tensor, labels: Tensor, *, epoch: float, **settings: Any) -> Tensor:
    return margin_loss(activations, labels, **settings)


@register_loss("log-probability")
def _log_probability(activations: Tensor, labels: Tensor, *, epoch: float, **settings: Any) -> Tensor:
    return log_probability_loss(activations, labels, **settings)


@register_loss("log-odds")
def _log_odds(activations: Tensor, labels: Tensor, *, epoch: float, **settings: Any) -> Tensor:
    return log_odds_loss(activations, labels, **settings)


def _check_labels(activations: Tensor, labels: Tensor) -> None:
    """Raise ValueError or TypeError unless activations are (batch, classes) and labels (batch,) of int64, or shares (batch, classes)."""
    if activations.ndim != 2 or labels.shape not in (activations.shape[:1], activations.shape):
        raise ValueError(
            f"activations {tuple(activations.shape)} and labels {tuple(labels.shape)}: give (batch, classes) and (batch,)"
        )
    if labels.ndim == 1 and labels.dtype != torch.int64:
        raise TypeError(f"labels are {labels.dtype}: give class numbers as torch.int64, e.g. labels.long()")
    if labels.ndim == 2 and not labels.is_floating_point():
        raise TypeError(f"shares of the classes are {labels.dtype}: give floats that sum to 1 for each image")


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing {smoothing:g} is not a share of the target: give 0 to 1")

"""Losses on the outputs of a network, (batch, classes).

These are activations of capsules, each in 0–1 by itself, or the probabilities of a plain network, which sum to 1; every loss takes either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.registry import Registry

Loss = Callable[..., Tensor]
"""Called with activations (batch, classes), labels (batch,) and, by keyword, `epoch` (a float, from 0) and the settings of the recipe."""
Function = TypeVar("Function", bound=Loss)

LOSSES: Registry[Loss] = Registry("loss")


def register_loss(name: str) -> Callable[[Function], Function]:
    """Register a loss under a name: a decorator for `loss(activations, labels, *, epoch, **settings) -> Tensor`.

    Args:
        name: The name for recipes and `shortcaps train --loss`.

    Returns:
        The decorator. The loss is called with activations (batch, classes), labels (batch,) and, by keyword, the number of epochs so far
        (a float) and the recipe's `loss_settings`; it returns a scalar.

    Raises:
        ValueError: The name is taken.
    """

    def decorate(function: Function) -> Function:
        LOSSES.register(name, function)
        return function

    return decorate


def list_losses(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered losses.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.

    >>> list_losses()
    ['log-probability', 'margin', 'spread']
    """
    return LOSSES.names(pattern, exclude=exclude)


def spread_loss(activations: Tensor, labels: Tensor, margin: float = 0.9) -> Tensor:
    """Eq. (14): `Σ_{m≠t} max(0, margin - (a_t - a_m))²`, mean over the batch.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64.
        margin: By how much the true class should lead.

    Returns:
        A scalar.
    """
    _check_labels(activations, labels)
    target = activations.gather(1, labels.unsqueeze(1))
    shortfall = (margin - (target - activations)).clamp_min(0).square()
    others = shortfall.scatter(1, labels.unsqueeze(1), 0.0)
    return others.sum(1).mean()


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
    activations: Tensor, labels: Tensor, *, present: float = 0.9, absent: float = 0.1, absent_weight: float = 0.5
) -> Tensor:
    """The margin loss of Sabour et al. (2017), mean over the batch.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64.
        present: The activation that the true class should reach.
        absent: The activation that the others should stay below.
        absent_weight: Weight of the others.

    Returns:
        A scalar.
    """
    _check_labels(activations, labels)
    is_target = F.one_hot(labels, activations.shape[1]).to(activations.dtype)
    missed = (present - activations).clamp_min(0).square()
    imagined = (activations - absent).clamp_min(0).square()
    return (is_target * missed + absent_weight * (1 - is_target) * imagined).sum(1).mean()


def log_probability_loss(
    activations: Tensor, labels: Tensor, *, absolute: float = 0.1, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the activations as probabilities plus, with a small weight, of each by itself; mean over the batch.

    `-ln(a_t / Σ_m a_m) + absolute · (-ln a_t - Σ_{m≠t} ln(1 - a_m))`. The first term tells the classes apart, but ignores a common
    factor of all activations; the second makes each activation meaningful by itself.

    Args:
        activations: (batch, classes).
        labels: (batch,), class numbers as int64.
        absolute: Weight of the second term.
        label_smoothing: Share of the first term's target that is spread evenly over all classes.

    Returns:
        A scalar.
    """
    _check_labels(activations, labels)
    # The smallest normal number: a larger floor would cut off the gradient of everything below it.
    limits = torch.finfo(activations.dtype)
    logarithms = activations.clamp_min(limits.tiny).log()
    complements = torch.log1p(-activations.clamp_max(1 - limits.eps))
    by_itself = -torch.where(F.one_hot(labels, activations.shape[1]).bool(), logarithms, complements).sum(1).mean()
    return F.cross_entropy(logarithms, labels, label_smoothing=label_smoothing) + absolute * by_itself


@register_loss("spread")
def _spread(activations: Tensor, labels: Tensor, *, epoch: float, **settings: float) -> Tensor:
    return spread_loss(activations, labels, spread_margin(epoch, **settings))


@register_loss("margin")
def _margin(activations: Tensor, labels: Tensor, *, epoch: float, **settings: float) -> Tensor:
    return margin_loss(activations, labels, **settings)


@register_loss("log-probability")
def _log_probability(activations: Tensor, labels: Tensor, *, epoch: float, **settings: float) -> Tensor:
    return log_probability_loss(activations, labels, **settings)


def _check_labels(activations: Tensor, labels: Tensor) -> None:
    """Raise ValueError or TypeError unless activations are (batch, classes) and labels (batch,) of int64."""
    if activations.ndim != 2 or labels.shape != activations.shape[:1]:
        raise ValueError(
            f"activations {tuple(activations.shape)} and labels {tuple(labels.shape)}: give (batch, classes) and (batch,)"
        )
    if labels.dtype != torch.int64:
        raise TypeError(f"labels are {labels.dtype}: give class numbers as torch.int64, e.g. labels.long()")

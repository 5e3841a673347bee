"""Adversarial images within a radius of the given ones, by the fast gradient sign method and by projected gradient descent."""

from __future__ import annotations

import torch
from torch import Tensor

from shortcaps.models import Network

STEPS = 20
_BATCH = 128


def log_margin(activations: Tensor, labels: Tensor) -> Tensor:
    """By how much the logarithm of the true class's activation leads, (batch,); below 0 the answer is wrong.

    The difference of logarithms is that of the logits for a softmax, and does not saturate where an activation comes near 1.

    Args:
        activations: (batch, classes), or probabilities.
        labels: (batch,).
    """
    logarithms = activations.clamp_min(torch.finfo(activations.dtype).tiny).log()
    target = logarithms.gather(1, labels[:, None]).squeeze(1)
    return target - logarithms.scatter(1, labels[:, None], -torch.inf).amax(1)


def gradients(model: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The log margins (batch,) of images and their gradients, of the images' shape."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        margin = log_margin(model(images), labels)
        (gradient,) = torch.autograd.grad(margin.sum(), images)
    return margin.detach(), gradient


def fgsm(model: Network, images: Tensor, labels: Tensor, radius: float) -> Tensor:
    """One step of this size against the sign of the gradient (Goodfellow et al. 2015).

    Args:
        model: The attacked network, in evaluation mode.
        images: (count, channels, height, width) in 0–1.
        labels: (count,).
        radius: Largest change of a value.

    Returns:
        Images of the same shape, in 0–1.
    """
    parts = []
    for part, of_part in zip(images.split(_BATCH), labels.split(_BATCH), strict=True):
        _, gradient = gradients(model, part, of_part)
        parts.append((part - radius * gradient.sign()).clamp(0, 1))
    return torch.cat(parts)


def pgd(model: Network, images: Tensor, labels: Tensor, radius: float, *, steps: int = STEPS, seed: int = 0) -> Tensor:
    """Projected gradient descent from a random start within the radius (Madry et al. 2018).

    Of each image's iterates the one with the smallest margin is returned, so that more steps never make the attack weaker.

    Args:
        model: The attacked network, in evaluation mode.
        images: (count, channels, height, width) in 0–1.
        labels: (count,).
        radius: Largest change of a value.
        steps: Number of steps, of 2.5 · radius / steps each.
        seed: Decides the start.

    Returns:
        Images of the same shape, in 0–1.
    """
    generator = torch.Generator().manual_seed(seed)
    length = 2.5 * radius / steps
    parts = []
    for part, of_part in zip(images.split(_BATCH), labels.split(_BATCH), strict=True):
        now = (part + radius * (2 * torch.rand(part.shape, generator=generator).to(part) - 1)).clamp(0, 1)
        best, lowest = now, torch.full((len(part),), torch.inf, dtype=part.dtype)
        for _ in range(steps):
            margin, gradient = gradients(model, now, of_part)
            best, lowest = _better(best, lowest, now, margin)
            now = now - length * gradient.sign()
            now = torch.minimum(torch.maximum(now, part - radius), part + radius).clamp(0, 1)
        margin, _ = gradients(model, now, of_part)
        parts.append(_better(best, lowest, now, margin)[0])
    return torch.cat(parts)


def _better(best: Tensor, lowest: Tensor, now: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where((margin < lowest)[:, None, None, None], now, best), torch.minimum(margin, lowest)

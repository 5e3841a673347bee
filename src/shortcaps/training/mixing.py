"""Mixup: training images mixed with one another, and their labels in the same shares."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def mix(images: Tensor, labels: Tensor, classes: int, alpha: float, seed: int) -> tuple[Tensor, Tensor]:
    """Mix each image of a batch with another one of it (Zhang et al., 2018).

    Args:
        images: (batch, channels, height, width), floats.
        labels: (batch,), class numbers as int64.
        classes: Number of classes.
        alpha: Shares are drawn from Beta(alpha, alpha), one for each image: the larger, the nearer to one half.
        seed: What partners and shares are drawn from.

    Returns:
        The mixed images, and the shares of the classes in them (batch, classes), which sum to 1.
    """
    random = np.random.default_rng(seed)  # PyTorch draws from Beta only by its global generator
    partners = torch.from_numpy(random.permutation(len(images))).to(images.device)
    own = torch.from_numpy(random.beta(alpha, alpha, len(images))).to(images)
    shares = F.one_hot(labels, classes).to(images)
    mixed = torch.lerp(images[partners], images, own[:, None, None, None])
    return mixed, torch.lerp(shares[partners], shares, own[:, None])

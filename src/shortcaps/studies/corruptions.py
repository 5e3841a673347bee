"""Corruptions of images, each at five strengths; what is random is drawn once for all networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def add_noise(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Gaussian noise of this standard deviation, cut off at black and white."""
    return (images + strength * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def blur(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """A Gaussian blur of this standard deviation in pixels; outside is black."""
    reach = max(1, int(3 * strength + 0.5))
    places = torch.arange(-reach, reach + 1, dtype=images.dtype)
    kernel = (-(places**2) / (2 * strength**2)).exp()
    kernel = kernel / kernel.sum()
    channels = images.shape[1]
    across = kernel.expand(channels, 1, 1, -1)
    images = F.conv2d(images, across, padding=(0, reach), groups=channels)
    return F.conv2d(images, across.mT, padding=(reach, 0), groups=channels).clamp(0, 1)


def occlude(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """A black square of this side, about a random point of the ink."""
    count, _, height, width = images.shape
    ink = images.amax(1).flatten(1) + 1e-12  # an empty image has no ink to choose from
    point = torch.multinomial(ink, 1, generator=generator).squeeze(1)
    top, left = point // width - int(strength) // 2, point % width - int(strength) // 2
    rows, columns = torch.arange(height), torch.arange(width)
    is_row = (rows >= top[:, None]) & (rows < top[:, None] + strength)
    is_column = (columns >= left[:, None]) & (columns < left[:, None] + strength)
    return images * ~(is_row[:, None, :, None] & is_column[:, None, None, :])


def reduce_contrast(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Every value moved by this share of the way to the image's mean."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return images + strength * (mean - images)


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption.

    Attributes:
        apply: Called with images (count, channels, height, width) in 0–1, a strength and a generator.
        strengths: Five, the weakest first.
        unit: What a strength means.
    """

    apply: Callable[[Tensor, float, Generator], Tensor]
    strengths: tuple[float, ...]
    unit: str


CORRUPTIONS: dict[str, Corruption] = {
    "noise": Corruption(add_noise, (0.1, 0.2, 0.3, 0.4, 0.5), "noise (standard deviation)"),
    "blur": Corruption(blur, (0.5, 1.0, 1.5, 2.0, 3.0), "blur (px)"),
    "occlusion": Corruption(occlude, (4, 6, 8, 10, 12), "black square (px)"),
    "contrast": Corruption(reduce_contrast, (0.3, 0.5, 0.7, 0.8, 0.9), "contrast lost (share)"),
}


def corrupted(images: Tensor, kind: str, strength: float) -> Tensor:
    """Images (count, channels, height, width) in 0–1 with one kind of corruption; the same each time."""
    corruption = CORRUPTIONS[kind]
    place = corruption.strengths.index(strength)
    generator = torch.Generator().manual_seed(1000 * list(CORRUPTIONS).index(kind) + place)
    return corruption.apply(images, strength, generator)

"""Steps that change values: brightness, contrast, colour, sharpness."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from shortcaps.data.augment.view import Step, uniform

# Luma and two axes of colour: in these a change of hue is a rotation, and one of saturation a factor.
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_SMOOTHING = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))


@dataclass(frozen=True)
class BrightnessAndContrast(Step):
    """Adds a random brightness, and scales the distance from the image's mean by a random factor; stays in 0–1.

    Attributes:
        brightness: Largest number added or subtracted.
        contrast: The factor is 1 ± this.
    """

    brightness: float = 32 / 255
    contrast: float = 0.5
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        shape = (len(images), 1, 1, 1)
        added = uniform(shape, -self.brightness, self.brightness, images, generator)
        factor = uniform(shape, 1 - self.contrast, 1 + self.contrast, images, generator)
        mean = images.mean((1, 2, 3), keepdim=True)
        return ((images - mean) * factor + mean + added).clamp(0, 1)

    def __str__(self) -> str:
        parts = [
            f"brightness ± {self.brightness:.2g}" if self.brightness else "",
            f"contrast ± {self.contrast:.0%}" if self.contrast else "",
        ]
        return ", ".join(filter(None, parts)) or "unchanged"


@dataclass(frozen=True)
class Colour(Step):
    """Changes saturation and hue and keeps the luma; an image without three channels stays as it is.

    Attributes:
        saturation: The factor is 1 ± this.
        hue: Largest turn of the hue either way, as a share of the circle.
    """

    saturation: float = 0.3
    hue: float = 0.05
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        factor = uniform((len(images),), 1 - self.saturation, 1 + self.saturation, images, generator)
        angle = uniform((len(images),), -self.hue, self.hue, images, generator) * 2 * math.pi
        if images.shape[1] != 3:
            return images
        to_yiq = torch.tensor(_YIQ, dtype=torch.float64).to(images)
        turned = torch.zeros(len(images), 3, 3).to(images)
        turned[:, 0, 0] = 1
        turned[:, 1, 1] = turned[:, 2, 2] = factor * angle.cos()
        turned[:, 2, 1] = factor * angle.sin()
        turned[:, 1, 2] = -turned[:, 2, 1]
        matrix = torch.linalg.inv(to_yiq) @ turned @ to_yiq
        return torch.einsum("bij,bjhw->bihw", matrix, images).clamp(0, 1)

    def __str__(self) -> str:
        parts = [
            f"saturation ± {self.saturation:.0%}" if self.saturation else "",
            f"hue ± {360 * self.hue:.0f}°" if self.hue else "",
        ]
        return ", ".join(filter(None, parts)) or "unchanged"


@dataclass(frozen=True)
class Sharpness(Step):
    """Blurs each image a little or sharpens it.

    Attributes:
        amount: How far it goes from the image to its smoothed copy, or as far away from it.
    """

    amount: float = 0.8
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        factor = uniform((len(images), 1, 1, 1), -self.amount, self.amount, images, generator).to(images.dtype)
        kernel = torch.tensor(_SMOOTHING).to(images)
        kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 3, 3)
        smooth = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=images.shape[1])
        return torch.lerp(images, smooth, factor.expand_as(images)).clamp(0, 1)

    def __str__(self) -> str:
        return f"blurred or sharpened by {self.amount:.0%}"


@dataclass(frozen=True)
class Posterise(Step):
    """Leaves each image a few levels of every channel.

    Attributes:
        levels: Smallest number of levels.
    """

    levels: int = 8
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        steps = uniform((len(images), 1, 1, 1), self.levels, 4 * self.levels, images, generator).floor() - 1
        return (images * steps).round() / steps

    def __str__(self) -> str:
        return f"posterised to {self.levels} levels or more"


@dataclass(frozen=True)
class Solarise(Step):
    """Inverts what is brighter than a random threshold.

    Attributes:
        lowest: Lowest threshold.
    """

    lowest: float = 0.75
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        threshold = uniform((len(images), 1, 1, 1), self.lowest, 1, images, generator)
        return torch.where(images > threshold, 1 - images, images)

    def __str__(self) -> str:
        return f"solarised above {self.lowest:.0%} or more"


@dataclass(frozen=True)
class Erase(Step):
    """Paints a rectangle of each image, anywhere on it, with the image's mean colour.

    Attributes:
        share: Largest area of the rectangle, as a share of the image's.
    """

    share: float = 0.15
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        inside = torch.ones(len(images), 1, 1, 1, dtype=torch.bool, device=images.device)
        for axis in (2, 3):
            size = images.shape[axis]
            length = uniform((len(images), 1), 0, math.sqrt(self.share), images, generator) * size
            first = uniform((len(images), 1), 0, 1, images, generator) * (size - length)
            places = torch.arange(size, device=images.device) + 0.5
            line = (places >= first) & (places < first + length)
            inside = inside & line.reshape(len(images), 1, *((-1, 1) if axis == 2 else (1, -1)))
        return torch.where(inside, images.mean((2, 3), keepdim=True), images)

    def __str__(self) -> str:
        return f"up to {self.share:.0%} erased"

"""Views: how stored images (uint8) become what a network sees (floats in 0–1), a whole batch at a time.

Random steps draw from the generator they are given and from nothing else, so that a batch can be repeated exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

ELASTIC_GRID = 4
"""Points along each side of the grid that an elastic deformation is drawn on."""


class Step(ABC):
    """One step of a view. Geometry works on uint8; everything that changes values works on floats in 0–1.

    Attributes:
        random: Whether it draws random numbers.
        needs_floats: Whether it works on floats in 0–1.
    """

    random: bool = True
    needs_floats: bool = False

    @abstractmethod
    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""

    @abstractmethod
    def __str__(self) -> str:
        """The step in words, for reports."""


@dataclass(frozen=True)
class View:
    """Steps in sequence; without any, the conversion from uint8 to floats in 0–1.

    Attributes:
        steps: The steps.
    """

    steps: tuple[Step, ...] = ()

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """What a network sees of stored images.

        Args:
            images: (batch, channels, height, width), uint8 or floats in 0–1.
            generator: What random steps draw from.

        Returns:
            (batch, channels, height', width'), floats in 0–1.

        Raises:
            ValueError: A step is random and no generator is given.
        """
        for step in self.steps:
            if step.random and generator is None:
                raise ValueError(f"the step '{step}' is random: give a torch.Generator")
            if step.needs_floats and not images.is_floating_point():
                images = images.float() / 255
            images = step(images, generator)
        return images if images.is_floating_point() else images.float() / 255

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps)) or "unchanged"


def _uniform(shape: tuple[int, ...], low: float, high: float, images: Tensor, generator: Generator | None) -> Tensor:
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(images.device)


def _window(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """A window of each image, beginning at its own (top, left)."""
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    sample = torch.arange(len(images), device=images.device)
    return images.movedim(1, -1)[sample[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


@dataclass(frozen=True)
class Shift(Step):
    """Shifts each image by up to `pixels` in each direction; what enters from outside is black.

    Attributes:
        pixels: Largest shift.
    """

    pixels: int

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        size = 2 * self.pixels + 1
        offsets = torch.randint(size, (2, len(images)), generator=generator).to(images.device)
        padded = torch.nn.functional.pad(images, (self.pixels,) * 4)
        return _window(padded, offsets[0], offsets[1], images.shape[2], images.shape[3])

    def __str__(self) -> str:
        return f"shift within {self.pixels} px"


@dataclass(frozen=True)
class HorizontalFlip(Step):
    """Mirrors each image with probability 1/2."""

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    def __str__(self) -> str:
        return "random horizontal flip"


@dataclass(frozen=True)
class PlaceAnywhere(Step):
    """Moves whatever is not black to a random place where all of it fits, not only to whole pixels.

    Nothing but a translation: between two pixels the values are interpolated, and no size or angle changes.
    """

    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        _, _, height, width = images.shape
        ink = (images > 0).any(1)
        down = self._offsets(ink.any(2), generator)
        right = self._offsets(ink.any(1), generator)
        top, left = down.floor(), right.floor()
        # One more row and column than the image has, for the interpolation of neighbours.
        margin = max(height, width)
        padded = torch.nn.functional.pad(images, (margin,) * 4)
        window = _window(padded, (margin - 1 - top).long(), (margin - 1 - left).long(), height + 1, width + 1)
        below, beside = (part.to(images.dtype)[:, None, None, None] for part in (down - top, right - left))
        window = torch.lerp(window[:, :, 1:], window[:, :, :-1], below)
        return torch.lerp(window[..., 1:], window[..., :-1], beside)

    @staticmethod
    def _offsets(ink: Tensor, generator: Generator | None) -> Tensor:
        """How far to move, given which lines (count, lines) have ink on them; an empty image stays where it is."""
        lines = torch.arange(ink.shape[1], device=ink.device)
        first = torch.where(ink, lines, ink.shape[1]).amin(1)
        last = torch.where(ink, lines, -1).amax(1)
        free = (ink.shape[1] - 1 - last + first) * (last >= 0)
        draws = torch.rand(len(ink), generator=generator).to(ink.device)
        return draws * free - first * (last >= 0)

    def __str__(self) -> str:
        return "placed anywhere, at subpixel positions"


@dataclass(frozen=True)
class Elastic(Step):
    """Deforms each image by a smooth random field of displacements; what enters from outside is black.

    The field has no affine part: nothing is shifted, rotated, scaled or sheared as a whole, so that a network is not shown such
    transformations.

    Attributes:
        pixels: Standard deviation of the displacement at the points of a coarse grid, between which it is interpolated.
    """

    pixels: float
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        count, _, height, width = images.shape
        field = self.displacements(count, height, width, generator).to(images)
        rows = torch.arange(height).to(images)[:, None] + 0.5 + field[:, 0]
        columns = torch.arange(width).to(images) + 0.5 + field[:, 1]
        places = torch.stack([columns * 2 / width - 1, rows * 2 / height - 1], -1)
        return torch.nn.functional.grid_sample(images, places, align_corners=False)

    def displacements(self, count: int, height: int, width: int, generator: Generator | None) -> Tensor:
        """Where the value of each pixel comes from, relative to it: (count, 2, height, width), down and right in pixels."""
        points = self.pixels * torch.randn(count, 2, ELASTIC_GRID, ELASTIC_GRID, generator=generator)
        field = torch.nn.functional.interpolate(points, (height, width), mode="bicubic", align_corners=True).flatten(2)
        down, right = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        affine, _ = torch.linalg.qr(torch.stack([torch.ones(height * width), down.flatten(), right.flatten()], 1))
        return (field - (field @ affine) @ affine.T).unflatten(2, (height, width))

    def __str__(self) -> str:
        return f"bent by {self.pixels:g} px, nothing affine"


@dataclass(frozen=True)
class RandomCrop(Step):
    """A square crop from a random place.

    Attributes:
        size: Its side in pixels.
    """

    size: int

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        top = torch.randint(images.shape[2] - self.size + 1, (len(images),), generator=generator).to(images.device)
        left = torch.randint(images.shape[3] - self.size + 1, (len(images),), generator=generator).to(images.device)
        return _window(images, top, left, self.size, self.size)

    def __str__(self) -> str:
        return f"random {self.size}x{self.size} crop"


@dataclass(frozen=True)
class CentreCrop(Step):
    """The square crop in the middle.

    Attributes:
        size: Its side in pixels.
    """

    size: int
    random = False

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        top, left = (images.shape[2] - self.size) // 2, (images.shape[3] - self.size) // 2
        return images[:, :, top : top + self.size, left : left + self.size]

    def __str__(self) -> str:
        return f"central {self.size}x{self.size} crop"


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
        added = _uniform(shape, -self.brightness, self.brightness, images, generator)
        factor = _uniform(shape, 1 - self.contrast, 1 + self.contrast, images, generator)
        mean = images.mean((1, 2, 3), keepdim=True)
        return ((images - mean) * factor + mean + added).clamp(0, 1)

    def __str__(self) -> str:
        return f"brightness ± {self.brightness:.2g}, contrast ± {self.contrast:.0%}"

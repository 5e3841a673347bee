"""Views: how stored images (uint8) become what a network sees (float, 0–1), a whole batch at a time.

Random steps draw from the generator they are given and from nothing else, so a batch can be repeated exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


class Step(ABC):
    """One step of a view. Geometry works on uint8; everything that changes values on floats in 0–1."""

    random: bool = True
    needs_floats: bool = False

    @abstractmethod
    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor: ...

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class View:
    """Steps one after another; without any, just uint8 to floats in 0–1."""

    steps: tuple[Step, ...] = ()

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        for step in self.steps:
            if step.random and generator is None:
                raise ValueError(f"the step '{step}' is random: give a torch.Generator")
            if step.needs_floats and not images.is_floating_point():
                images = images.float() / 255
            images = step(images, generator)
        return images if images.is_floating_point() else images.float() / 255

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps)) or "as it is"


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
    """Moves each image by up to `pixels` in each direction; what comes in from outside is black."""

    pixels: int

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        size = 2 * self.pixels + 1
        offsets = torch.randint(size, (2, len(images)), generator=generator).to(images.device)
        padded = torch.nn.functional.pad(images, (self.pixels,) * 4)
        return _window(padded, offsets[0], offsets[1], images.shape[2], images.shape[3])

    def __str__(self) -> str:
        return f"shift within {self.pixels} px"


@dataclass(frozen=True)
class HorizontalFlip(Step):
    """Mirrors every other image, by chance."""

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    def __str__(self) -> str:
        return "mirrored or not"


@dataclass(frozen=True)
class PlaceAnywhere(Step):
    """Moves what is not black to anywhere in the image where all of it fits, between pixels as well.

    Nothing but a translation: between two pixels the values are interpolated, and no size or angle changes.
    """

    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        _, _, height, width = images.shape
        ink = (images > 0).any(1)
        down = self._offsets(ink.any(2), generator)
        right = self._offsets(ink.any(1), generator)
        top, left = down.floor(), right.floor()
        # One row and column more than the image has, of which neighbours are mixed.
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
        return "placed anywhere, between pixels as well"


@dataclass(frozen=True)
class Elastic(Step):
    """Bends each image by a smooth random field and moves it between pixels, in one interpolation.

    The field is drawn at `knots` x `knots` points and has no affine part there: what a rotation, scaling or shear of the whole image
    could explain of it is taken out. A small part of an image may still be turned or stretched; that is what bending is.

    Attributes:
        pixels: Standard deviation of the displacement at a knot, before the affine part is taken out.
        shift: Largest translation in each direction, in pixels, fractions as well; what comes in from outside is black.
        knots: Points along each side at which the field is drawn; at least 3, since three numbers a line are affine.
    """

    pixels: float
    shift: float = 0.0
    knots: int = 4
    needs_floats = True

    def __post_init__(self) -> None:
        if self.knots < 3:
            raise ValueError(f"knots {self.knots} are too few: a field at fewer than 3 a side is almost all affine")

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        _, _, height, width = images.shape
        moved = torch.nn.functional.interpolate(
            self.field(len(images), generator), (height, width), mode="bicubic", align_corners=True
        )
        moved = moved + (torch.rand((len(images), 2, 1, 1), generator=generator) * 2 - 1) * self.shift
        rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        # grid_sample counts from -1 to 1 across the image, x before y.
        grid = torch.stack([(columns + moved[:, 0]) * 2 / width - 1, (rows + moved[:, 1]) * 2 / height - 1], -1)
        return torch.nn.functional.grid_sample(images, grid.to(images), padding_mode="zeros", align_corners=False)

    def field(self, count: int, generator: Generator | None) -> Tensor:
        """Displacements (count, 2, knots, knots) in pixels, x before y, without their affine part."""
        drawn = torch.randn((count, 2, self.knots**2), generator=generator) * self.pixels
        side = torch.linspace(-1, 1, self.knots)
        affine = torch.stack(
            [torch.ones(self.knots**2), side.repeat_interleave(self.knots), side.repeat(self.knots)], 1
        )
        basis = torch.linalg.qr(affine).Q
        return (drawn - (drawn @ basis) @ basis.T).unflatten(2, (self.knots, self.knots))

    def __str__(self) -> str:
        moved = f", shift within {self.shift:g} px, between pixels as well" if self.shift else ""
        return f"bent by {self.pixels:g} px{moved}"


@dataclass(frozen=True)
class RandomCrop(Step):
    """A square of `size` pixels from anywhere in the image."""

    size: int

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        top = torch.randint(images.shape[2] - self.size + 1, (len(images),), generator=generator).to(images.device)
        left = torch.randint(images.shape[3] - self.size + 1, (len(images),), generator=generator).to(images.device)
        return _window(images, top, left, self.size, self.size)

    def __str__(self) -> str:
        return f"random {self.size}x{self.size} crop"


@dataclass(frozen=True)
class CentreCrop(Step):
    """The square of `size` pixels in the middle."""

    size: int
    random = False

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        top, left = (images.shape[2] - self.size) // 2, (images.shape[3] - self.size) // 2
        return images[:, :, top : top + self.size, left : left + self.size]

    def __str__(self) -> str:
        return f"central {self.size}x{self.size} crop"


@dataclass(frozen=True)
class BrightnessAndContrast(Step):
    """Adds up to `brightness`, and scales the distance from the image's mean by 1 ± `contrast`; stays in 0–1."""

    brightness: float = 32 / 255
    contrast: float = 0.5
    needs_floats = True

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        shape = (len(images), 1, 1, 1)
        added = _uniform(shape, -self.brightness, self.brightness, images, generator)
        factor = _uniform(shape, 1 - self.contrast, 1 + self.contrast, images, generator)
        mean = images.mean((1, 2, 3), keepdim=True)
        return ((images - mean) * factor + mean + added).clamp(0, 1)

    def __str__(self) -> str:
        return f"brightness ± {self.brightness:.2g}, contrast ± {self.contrast:.0%}"

"""Steps that move pixels: shifts, flips, crops, rotation, deformation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from shortcaps.data.augment.view import Step, uniform

ELASTIC_GRID = 4
"""Points along each side of the grid that an elastic deformation is drawn on."""
BORDERS = {"black": "zeros", "reflect": "reflection"}
"""What enters from outside, and what PyTorch calls it."""


def _check_border(border: str) -> None:
    if border not in BORDERS:
        raise ValueError(f"unknown border {border!r}: choose one of {', '.join(BORDERS)}")


def _window(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """A window of each image, beginning at its own (top, left); beyond its edges the image is mirrored."""
    rows = _mirrored(top[:, None] + torch.arange(height, device=images.device), images.shape[2])
    columns = _mirrored(left[:, None] + torch.arange(width, device=images.device), images.shape[3])
    sample = torch.arange(len(images), device=images.device)
    return images.movedim(1, -1)[sample[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places along a side, those outside mirrored at the edge as often as it takes: …, 1, 0, 0, 1, …."""
    places = places.remainder(2 * size)
    return torch.minimum(places, 2 * size - 1 - places)


def _sample(images: Tensor, rows: Tensor, columns: Tensor, border: str) -> Tensor:
    """The values of images at other places, interpolated.

    Args:
        images: (batch, channels, height, width), floats.
        rows: (batch, height, width), counted from the upper edge of the first pixel.
        columns: The same, from its left edge.
        border: What is outside, one of `BORDERS`.
    """
    height, width = images.shape[2:]
    places = torch.stack([columns * 2 / width - 1, rows * 2 / height - 1], -1)
    return F.grid_sample(images, places, padding_mode=BORDERS[border], align_corners=False)


@dataclass(frozen=True)
class Shift(Step):
    """Shifts each image by up to `pixels` in each direction.

    Attributes:
        pixels: Largest shift.
        border: What enters from outside: `black`, or `reflect`, the image mirrored at its edge.
    """

    pixels: int
    border: str = "black"

    def __post_init__(self) -> None:
        _check_border(self.border)

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        height, width = images.shape[2:]
        size = 2 * self.pixels + 1
        top, left = torch.randint(size, (2, len(images)), generator=generator).to(images.device)
        if self.border == "reflect":
            return _window(images, top - self.pixels, left - self.pixels, height, width)
        return _window(F.pad(images, (self.pixels,) * 4), top, left, height, width)

    def __str__(self) -> str:
        return f"shift within {self.pixels} px" + (", mirrored at the edges" if self.border == "reflect" else "")


@dataclass(frozen=True)
class HorizontalFlip(Step):
    """Mirrors each image left to right with probability 1/2."""

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        return _flip_some(images, 3, generator)

    def __str__(self) -> str:
        return "random horizontal flip"


@dataclass(frozen=True)
class VerticalFlip(Step):
    """Mirrors each image top to bottom with probability 1/2."""

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        return _flip_some(images, 2, generator)

    def __str__(self) -> str:
        return "random vertical flip"


def _flip_some(images: Tensor, axis: int, generator: Generator | None) -> Tensor:
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(axis), images)


@dataclass(frozen=True)
class Affine(Step):
    """Rotates, shears, crops and shifts each image, in one go, so that values are interpolated once.

    A window of the image, which has a random part of its area and lies anywhere in it, is turned about its centre and shown in the
    size of the whole.

    Attributes:
        rotation: Largest angle, in degrees, either way.
        shear: Largest shear, as a tangent, either way.
        crop: Smallest area of the window, as a share of the image's; 1 for the whole image.
        stretch: Largest ratio of the window's sides, relative to the image's.
        shift: How far the window may be moved besides, as a share of the image's sides.
        border: What enters from outside: `reflect`, the image mirrored at its edge, or `black`.
    """

    rotation: float = 0.0
    shear: float = 0.0
    crop: float = 1.0
    stretch: float = 1.0
    shift: float = 0.0
    border: str = "reflect"
    needs_floats = True
    affine = True

    def __post_init__(self) -> None:
        _check_border(self.border)
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop {self.crop:g} is not a share of the image: it must be above 0 and at most 1")
        if self.stretch < 1:
            raise ValueError(f"stretch {self.stretch:g} is too small: 1 leaves the proportions as they are")

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        count, _, height, width = images.shape

        def drawn(low: float, high: float) -> Tensor:
            return uniform((count, 1, 1), low, high, images, generator).to(images.dtype)

        angle = drawn(-math.radians(self.rotation), math.radians(self.rotation))
        shear, side = drawn(-self.shear, self.shear), drawn(self.crop, 1).sqrt()
        ratio = drawn(-math.log(self.stretch), math.log(self.stretch)).div(2).exp()
        # Window's sides as shares of the image's, no side longer than the image's.
        tall, wide = (side * ratio).clamp(max=1), (side / ratio).clamp(max=1)
        free_down, free_right = (1 - tall) / 2 + self.shift, (1 - wide) / 2 + self.shift
        middle_row = (0.5 + drawn(-1, 1) * free_down) * height
        middle_column = (0.5 + drawn(-1, 1) * free_right) * width
        down = (torch.arange(height).to(images)[:, None] + 0.5 - height / 2) * tall
        right = (torch.arange(width).to(images) + 0.5 - width / 2) * wide + shear * down
        rows = middle_row + angle.cos() * down + angle.sin() * right
        columns = middle_column + angle.cos() * right - angle.sin() * down
        return _sample(images, rows, columns, self.border)

    def __str__(self) -> str:
        parts = [
            f"turned within {self.rotation:g}°" if self.rotation else "",
            f"sheared within {self.shear:g}" if self.shear else "",
            f"cropped to {self.crop:.0%} or more" if self.crop < 1 else "",
            f"stretched within {self.stretch:.3g}" if self.stretch > 1 else "",
            f"moved within {self.shift:.0%}" if self.shift else "",
        ]
        done = ", ".join(filter(None, parts)) or "unchanged"
        return f"{done} ({'mirrored at the edges' if self.border == 'reflect' else 'black outside'})"


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
        padded = F.pad(images, (margin,) * 4)
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
        return _sample(images, rows, columns, "black")

    def displacements(self, count: int, height: int, width: int, generator: Generator | None) -> Tensor:
        """Where the value of each pixel comes from, relative to it: (count, 2, height, width), down and right in pixels."""
        points = self.pixels * torch.randn(count, 2, ELASTIC_GRID, ELASTIC_GRID, generator=generator)
        field = F.interpolate(points, (height, width), mode="bicubic", align_corners=True).flatten(2)
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

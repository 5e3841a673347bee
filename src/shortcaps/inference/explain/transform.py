"""Images shifted, rotated, scaled and sheared, and what happens to probabilities and poses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.models import CapsuleNetwork, Network, as_probabilities

TRANSFORMATIONS: dict[str, tuple[float, ...]] = {
    "rotation": tuple(float(angle) for angle in range(-45, 46, 5)),
    "scale": tuple(round(0.6 + 0.05 * step, 2) for step in range(17)),
    "shear": tuple(round(-0.5 + 0.05 * step, 2) for step in range(21)),
    "shift_x": tuple(float(pixels) for pixels in range(-6, 7)),
    "shift_y": tuple(float(pixels) for pixels in range(-6, 7)),
}
UNITS = {
    "rotation": "rotation (°, clockwise)",
    "scale": "scale",
    "shear": "shear",
    "shift_x": "shift to the right (px)",
    "shift_y": "shift down (px)",
}


def unchanged(name: str) -> float:
    """The value at which a transformation does nothing."""
    return 1.0 if name == "scale" else 0.0


def transformed(
    images: Tensor,
    *,
    rotation: float = 0.0,
    scale: float = 1.0,
    shear: float = 0.0,
    shift_x: float = 0.0,
    shift_y: float = 0.0,
) -> Tensor:
    """Images sheared, scaled, rotated about their centre and then shifted; what enters from outside is black.

    Args:
        images: (batch, channels, height, width) in 0–1.
        rotation: Degrees, clockwise.
        scale: Above 1 is larger.
        shear: Shift to the right, in pixels, for each pixel further down.
        shift_x: Pixels to the right.
        shift_y: Pixels down.

    Returns:
        (batch, channels, height, width) in 0–1.

    Raises:
        ValueError: The scale is not above 0.
    """
    if scale <= 0:
        raise ValueError(f"scale {scale} is too small: it must be above 0")
    height, width = images.shape[2:]
    angle = math.radians(rotation)
    # Where a pixel goes; the sampling grid needs the inverse, where it comes from.
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    forward = turn @ torch.tensor([[scale, scale * shear], [0.0, scale]], dtype=torch.float64)
    back = torch.linalg.inv(forward)
    pixels = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    # The grid runs from -1 to 1 in both directions, whatever their lengths.
    matrix = back * pixels[None] / pixels[:, None]
    offset = -(back @ torch.tensor([shift_x, shift_y], dtype=torch.float64)) / pixels
    theta = torch.cat([matrix, offset[:, None]], 1).to(images)
    grid = F.affine_grid(theta.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).clamp(0, 1)


@dataclass(frozen=True)
class Traversal:
    """One image under one transformation.

    Attributes:
        name: Name of the transformation.
        values: The values it took.
        images: (values, channels, height, width).
        activations: (values, classes), each in 0–1 by itself.
        poses: (values, classes, rows, cols); None for a network without pose capsules.
    """

    name: str
    values: tuple[float, ...]
    images: Tensor
    activations: Tensor
    poses: Tensor | None

    @property
    def probabilities(self) -> Tensor:
        """The activations, scaled to sum to 1."""
        return as_probabilities(self.activations)


@torch.no_grad()
def traverse(model: Network, image: Tensor, name: str, values: tuple[float, ...] | None = None) -> Traversal:
    """What happens to an image as a transformation takes one value after another.

    Args:
        model: Any network.
        image: (channels, height, width) in 0–1.
        name: One of `TRANSFORMATIONS`.
        values: The values; None for those of `TRANSFORMATIONS`.

    Raises:
        ValueError: The transformation is unknown.
    """
    if name not in TRANSFORMATIONS:
        raise ValueError(f"unknown transformation {name!r}: choose one of {', '.join(TRANSFORMATIONS)}")
    values = TRANSFORMATIONS[name] if values is None else values
    images = torch.cat([transformed(image[None], **{name: value}) for value in values])
    if not isinstance(model, CapsuleNetwork):
        return Traversal(name, values, images, model(images), None)
    capsules = model.capsules(images, keep_coefficients=False)
    return Traversal(name, values, images, capsules.activation, capsules.pose)

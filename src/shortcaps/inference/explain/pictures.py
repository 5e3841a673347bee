"""Images and routing maps as arrays of bytes, for reports and files."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shortcaps.inference.explain.maps import has_positions, routing_maps
from shortcaps.models import CapsuleNetwork
from shortcaps.reporting.html import as_png


def grey_picture(image: Tensor, scale: int) -> np.ndarray:
    """An image (channels, height, width) in 0–1 as bytes, enlarged by a whole factor; the left one of a stereo pair.

    Returns:
        (height · scale, width · scale), or with a third dimension of 3 for colour.
    """
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    array = pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels[0].numpy()
    return array.repeat(scale, 0).repeat(scale, 1)


def heat_over(picture: np.ndarray, heat: Tensor) -> np.ndarray:
    """A picture (height, width[, 3]) tinted by a map (h, w) of any size, in which 1 is the mean."""
    spread = torch.nn.functional.interpolate(heat[None, None].float(), size=picture.shape[:2], mode="bilinear")
    return _overlay(picture, spread[0, 0].cpu().numpy())


def laid_over(model: CapsuleNetwork, images: Tensor, scale: int = 4) -> list[list[str]]:
    """Each image, and for each shortcut with several positions the map of the winning class over it, in the last pass.

    Args:
        model: A network with capsules.
        images: (batch, channels, height, width) in 0–1.
        scale: Factor of enlargement.

    Returns:
        For each image, data URLs of PNG pictures.
    """
    found = routing_maps(model, images)
    result = []
    for n in range(len(images)):
        picture = grey_picture(images[n], scale)
        heats = [block[n, -1] for block in found.over_channels() if has_positions(block)]
        result.append([as_png(picture), *(as_png(heat_over(picture, heat)) for heat in heats)])
    return result


def _overlay(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """The picture tinted green where the heat is above 1, and red where it is below."""
    grey = (picture if picture.ndim == 2 else picture.mean(2)).astype(float)[..., None] / 255
    strength = np.clip(np.log2(np.clip(heat, 1e-3, None)) / 1.5, -1, 1)[..., None]
    green, red = np.array([0.1, 0.85, 0.75]), np.array([0.9, 0.25, 0.3])
    tint = np.where(strength > 0, green, red)
    mixed = grey * (1 - 0.55 * np.abs(strength)) + tint * 0.55 * np.abs(strength)
    return (np.clip(mixed, 0, 1) * 255).astype(np.uint8)

"""MNIST's digits as the standard networks of the studies see them: on 28x28 pixels, or anywhere on 40x40."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.data import load_dataset
from shortcaps.data.affnist import SIDE, transform
from shortcaps.errors import RunError
from shortcaps.models import Network


@dataclass(frozen=True)
class Digits:
    """Some digits of a split, drawn once and for all.

    Attributes:
        images: (count, channels, height, width), uint8.
        labels: (count,).
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def draw_images(name: str, split: str, count: int) -> Digits:
    """A fixed random draw of images of a data set; all of them if there are fewer."""
    data = load_dataset(name, split)
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(18))[:count]
    return Digits(data.images[chosen], data.labels[chosen])


def side_of(model: Network, needed: int | None = None) -> int:
    """The side of the square grey images that a network takes.

    Args:
        model: The network.
        needed: The only side that a study can use, or None.

    Raises:
        RunError: It takes other images.
    """
    height, width = model.image_size
    sides = (28, SIDE) if needed is None else (needed,)
    if model.channels != 1 or height != width or height not in sides:
        wanted = " or ".join(f"{side}x{side}" for side in sides)
        raise RunError(
            f"the network takes {model.channels}x{height}x{width} images: this study needs one for grey {wanted}"
        )
    return height


def placed(images: Tensor, side: int, seed: int) -> Tensor:
    """Images of 28x28 (count, 1, 28, 28) as a network of that side expects them: as they are, or anywhere on 40x40, all ink inside."""
    if side == images.shape[-1]:
        return images
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for chunk in images.split(2048):
        upright = torch.eye(2).expand(len(chunk), 2, 2)
        parts.append(transform(chunk, upright, torch.rand((len(chunk), 2), generator=generator)))
    return torch.cat(parts)

"""A few of many steps, others for each image: the idea of RandAugment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from shortcaps.data.augment.view import Step, as_floats


@dataclass(frozen=True)
class SomeOf(Step):
    """Takes each image through `count` steps, one after another, each drawn for it from the same list.

    Attributes:
        steps: The list; a step must not change the size of images.
        count: How many an image goes through; the same may be drawn twice.
    """

    steps: tuple[Step, ...]
    count: int = 2
    needs_floats = True

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("SomeOf has no steps to choose from: give it some")

    @property
    def affine(self) -> bool:  # type: ignore[override]
        """Whether one of the steps rotates, scales or shears images as a whole."""
        return any(step.affine for step in self.steps)

    def __call__(self, images: Tensor, generator: Generator | None) -> Tensor:
        """Transform images (batch, channels, height, width)."""
        images = images.clone()
        for _ in range(self.count):
            drawn = torch.randint(len(self.steps), (len(images),), generator=generator)
            for number, step in enumerate(self.steps):
                chosen = (drawn == number).nonzero().flatten().to(images.device)
                if len(chosen):
                    images[chosen] = as_floats(step(images[chosen], generator))
        return images

    def __str__(self) -> str:
        return f"{self.count} of: " + "; ".join(map(str, self.steps))

"""Views: how stored images (uint8) become what a network sees (floats in 0–1), a whole batch at a time.

Random steps draw from the generator they are given and from nothing else, so that a batch can be repeated exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


class Step(ABC):
    """One step of a view. Geometry works on uint8; everything that changes values works on floats in 0–1.

    Attributes:
        random: Whether it draws random numbers.
        needs_floats: Whether it works on floats in 0–1.
        affine: Whether it rotates, scales or shears images as a whole, which is what the test of affNIST asks for.
    """

    random: bool = True
    needs_floats: bool = False
    affine: bool = False

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
            if step.needs_floats:
                images = as_floats(images)
            images = step(images, generator)
        return as_floats(images)

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps)) or "unchanged"

    @property
    def affine(self) -> bool:
        """Whether a step rotates, scales or shears images as a whole."""
        return any(step.affine for step in self.steps)


def as_floats(images: Tensor) -> Tensor:
    """Images in 0–1, whether they are stored as uint8 or are floats already."""
    return images if images.is_floating_point() else images.float() / 255


def uniform(shape: tuple[int, ...], low: float, high: float, images: Tensor, generator: Generator | None) -> Tensor:
    """Random numbers between two others, where the images are."""
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(images.device)

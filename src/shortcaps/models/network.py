"""What all networks have in common: the way in, the way out, the summary."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shortcaps.models.plan import Plan, Size
from shortcaps.models.summary import Summary
from shortcaps.routing import Routing


@dataclass
class ClassCapsules:
    """The class capsules of a batch of images.

    pose: (batch, classes, rows, cols)
    activation: (batch, classes), the probabilities
    coefficients: how the lower capsules were weighed, for each block, where asked for.
        Shortcut network: (batch, passes, classes, channels, height, width) for each shortcut.
        Sequential network: (batch, outputs, height, width, kernel, kernel, channels) for each capsule layer.
    """

    pose: Tensor
    activation: Tensor
    coefficients: tuple[Tensor, ...] | None = None


def as_probabilities(activations: Tensor) -> Tensor:
    """Activations (…, classes) of classes, each in 0–1, scaled to sum to 1."""
    return activations / activations.sum(-1, keepdim=True).clamp_min(torch.finfo(activations.dtype).tiny)


class Network(nn.Module, ABC):
    """Images (batch, channels, height, width) in 0–1 to class probabilities (batch, classes) in 0–1."""

    class_names: tuple[str, ...] = ()
    reconstructs: bool = False
    """Whether `forward(images, labels)` also says how badly the images were drawn again, to be added to the loss."""

    smallest_image: int = 1
    """The smallest side for which every layer has a position; networks that are planned are checked by their plan."""

    def __init__(self, image_size: Size, channels: int, classes: int) -> None:
        super().__init__()
        if min(image_size) < self.smallest_image:
            raise ValueError(
                f"image_size {min(image_size)} is too small: this network needs at least {self.smallest_image}"
            )
        self.image_size, self.channels, self.classes = image_size, channels, classes
        self._range_checked = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What kind of network this is, in a few words."""

    @abstractmethod
    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, the votes a plain implementation would have built, multiply–adds.

        Printing it shows a table; its fields are there for code.
        """

    def _check_images(self, images: Tensor) -> None:
        expected = (self.channels, *self.image_size)
        if images.ndim != 4:
            raise ValueError(
                f"images have shape {tuple(images.shape)}: this network takes (batch, {', '.join(map(str, expected))})"
                + ("; for one image use images.unsqueeze(0)" if tuple(images.shape) == expected else "")
            )
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images are {'x'.join(map(str, images.shape[1:]))}, but this network was made for "
                f"{'x'.join(map(str, expected))} (channels x height x width): "
                "create it with that image_size and channels, or resize the images"
            )
        if not images.is_floating_point():
            raise TypeError(f"images are {images.dtype}: give floats in 0–1, e.g. images.float() / 255")
        # Looking at the values waits for an accelerator, so there it is done for the first batch only.
        if torch.compiler.is_compiling() or (self._range_checked and images.device.type != "cpu"):
            return
        self._range_checked = True
        if images.numel():
            low, high = images.detach().aminmax()
            if not (low >= 0 and high <= 1):
                warnings.warn(
                    f"image values run from {low.item():.3g} to {high.item():.3g}: this network expects 0 to 1, "
                    "e.g. images / 255",
                    stacklevel=3,
                )


class CapsuleNetwork(Network):
    """A network of the paper's kind: pose matrices, any routing, with or without shortcuts."""

    shortcut: bool

    def __init__(self, plan: Plan, routing: Routing, path: str) -> None:
        super().__init__(plan.image_size, plan.channels, plan.classes)
        self.plan, self.routing, self.path = plan, routing, path

    @property
    def title(self) -> str:
        return f"{'shortcut' if self.shortcut else 'sequential'} network, {self.routing.name} routing"

    def forward(self, images: Tensor) -> Tensor:
        return self.capsules(images, keep_coefficients=False).activation

    def capsules(self, images: Tensor, *, keep_coefficients: bool = True) -> ClassCapsules:
        """The class capsules themselves: poses, activations and, unless declined, the routing coefficients."""
        self._check_images(images)
        return self._capsules(images, keep_coefficients)

    @abstractmethod
    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules: ...

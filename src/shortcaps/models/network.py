"""What all networks have in common: checks of their inputs, their outputs, the summary."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.backbones import Stem
from shortcaps.errors import check_at_least_one
from shortcaps.kernels.library import is_transformed
from shortcaps.layers import ClassCapsules
from shortcaps.models.plan import Plan, Size
from shortcaps.models.summary import Summary, SummaryRow, module_row
from shortcaps.routing import Routing


def as_probabilities(activations: Tensor) -> Tensor:
    """Scale activations to probabilities.

    Args:
        activations: (…, classes), each in 0–1 by itself.

    Returns:
        (…, classes), which sum to 1.
    """
    return activations / activations.sum(-1, keepdim=True).clamp_min(torch.finfo(activations.dtype).tiny)


def full_precision_logits(classify: nn.Linear, features: Tensor) -> Tensor:
    """Logits of the type of the weights: in bfloat16, which autocast leaves them in, sure outputs would round to 1 and lose their gradient."""
    logits: Tensor = classify(features)
    return logits.to(classify.weight.dtype)


class Network(nn.Module):
    """Maps images (batch, channels, height, width) in 0–1 to activations of classes (batch, classes) in 0–1.

    The base of every network that `create_model` makes. A network of your own implements `forward`; `title` and `summary` have defaults.

    Args:
        image_size: Height and width.
        channels: Channels of the images.
        classes: Number of classes.

    Attributes:
        class_names: Names of the classes, in the order of the outputs; empty unless the network was loaded from a run.
        blueprint: The arguments of `create_model` that made it; None if it was made otherwise.

    Raises:
        ValueError: The images are too small for the network, or a count is below 1.
    """

    class_names: tuple[str, ...] = ()
    blueprint: Mapping[str, Any] | None = None
    reconstructs: bool = False
    """Whether `forward(images, labels)` also returns the weighted reconstruction error, to be added to the loss."""
    takes_any_size: bool = False
    """Whether images of other sizes than `image_size` are accepted, as no weight depends on it."""
    sums_to_one: bool = False
    """Whether its outputs are probabilities by themselves, as those of a softmax are."""
    min_image_size: int = 1
    """The smallest side for which every layer has a position; for planned networks, the plan checks it."""

    def __init__(self, image_size: Size, channels: int, classes: int) -> None:
        super().__init__()
        if min(image_size) < self.min_image_size:
            raise ValueError(
                f"image_size {min(image_size)} is too small: this network needs at least {self.min_image_size}"
            )
        check_at_least_one(channels=channels, classes=classes)
        self.image_size, self.channels, self.classes = image_size, channels, classes
        self._range_checked = False

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return type(self).__name__

    @property
    def body(self) -> tuple[nn.Module, ...]:
        """The modules that extract features, which `--freeze backbone` leaves as they are; none if the network does not say."""
        backbone = getattr(self, "backbone", None)
        return (backbone,) if isinstance(backbone, nn.Module) else ()

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, the votes that a plain implementation would build, multiply–adds.

        Print it for a table; its fields are for code.
        """
        rows = [module_row("network", self, (self.channels, *self.image_size))]
        return Summary.of(self, rows, "PyTorch's own operators")

    def _check_images(self, images: Tensor) -> None:
        expected = (self.channels, *self.image_size)
        shown = f"{self.channels}, height, width" if self.takes_any_size else ", ".join(map(str, expected))
        if images.ndim != 4:
            raise ValueError(
                f"images have shape {tuple(images.shape)}: this network takes (batch, {shown})"
                + ("; for one image use images.unsqueeze(0)" if tuple(images.shape) == expected else "")
            )
        fits = images.shape[1] == self.channels if self.takes_any_size else tuple(images.shape[1:]) == expected
        if not fits:
            raise ValueError(
                f"images are {'x'.join(map(str, images.shape[1:]))}, but this network was made for "
                f"{'x'.join(map(str, expected))} (channels x height x width): "
                "create it with that image_size and channels, or resize the images"
            )
        if self.takes_any_size and min(images.shape[2:]) < self.min_image_size:
            raise ValueError(
                f"images are {images.shape[2]}x{images.shape[3]}: this network needs at least "
                f"{self.min_image_size}x{self.min_image_size}"
            )
        if not images.is_floating_point():
            raise TypeError(f"images are {images.dtype}: give floats in 0–1, e.g. images.float() / 255")
        # Reading the values waits for an accelerator, so there only the first batch is checked.
        if (
            torch.compiler.is_compiling()
            or is_transformed(images)
            or images.device.type == "meta"
            or (self._range_checked and images.device.type != "cpu")
        ):
            return
        if not self._range_checked:  # setting an attribute of a module takes microseconds
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
    """A network that ends in class capsules with pose matrices, by any routing.

    Args:
        image_size: Height and width.
        channels: Channels of the images.
        classes: Number of classes.
        routing: The routing algorithm.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    shortcut: bool
    """Whether lower capsules vote for the classes directly."""
    backbone: nn.Module
    """Maps images to the feature maps below the capsules."""

    def __init__(self, image_size: Size, channels: int, classes: int, routing: Routing, path: str) -> None:
        super().__init__(image_size, channels, classes)
        self.routing, self.path = routing, path

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return f"{'shortcut' if self.shortcut else 'sequential'} network, {self.routing.name} routing"

    def forward(self, images: Tensor) -> Tensor:
        """Activations (batch, classes), each in 0–1 by itself, of images (batch, channels, height, width) in 0–1."""
        return self.capsules(images, keep_coefficients=False).activation

    def capsules(self, images: Tensor, *, keep_coefficients: bool = True) -> ClassCapsules:
        """The class capsules: poses, activations and, if requested, routing coefficients.

        Args:
            images: (batch, channels, height, width) in 0–1.
            keep_coefficients: Whether routing coefficients are requested; without them the native path can be used.
        """
        self._check_images(images)
        return self._capsules(images, keep_coefficients)

    @abstractmethod
    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules: ...


class PlannedNetwork(CapsuleNetwork):
    """A network of the paper's kind, laid out for images of one size.

    The backbone is called `stem` in the state dict, whichever it is, so that networks trained with earlier versions keep loading.

    Args:
        plan: What every layer will see.
        backbone: The backbone that the plan was made with.
        routing: The routing algorithm.
        path: How votes are computed, one of `shortcaps.routing.paths.PATHS`.
    """

    stem: nn.Module
    primary: nn.Module

    def __init__(self, plan: Plan, backbone: nn.Module, routing: Routing, path: str) -> None:
        super().__init__(plan.image_size, plan.channels, plan.classes, routing, path)
        self.plan = plan
        self.stem = backbone

    @property
    def backbone(self) -> nn.Module:  # type: ignore[override]
        """Maps images to feature maps: the paper's stem, unless another was chosen."""
        return self.stem

    def _rows_below(self) -> list[SummaryRow]:
        """Rows of the summary that both families share: the backbone and the primary capsules."""
        pose, channels = self.plan.architecture.pose, self.plan.capsule_layers[0].in_channels
        shape = (channels, pose, pose, *self.plan.features[1:])
        return [
            module_row(
                "stem" if isinstance(self.backbone, Stem) else "backbone",
                self.backbone,
                (self.channels, *self.image_size),
            ),
            module_row("primary capsules", self.primary, self.plan.features, shape),
        ]

"""Shape planning: what every layer will see, worked out before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import nn

from shortcaps.backbones import create_backbone, feature_shapes
from shortcaps.backbones.base import Shape
from shortcaps.errors import check_at_least_one

Size = tuple[int, int]
_LARGEST_TRIED = 512
"""The largest side tried when a message has to say which images would be large enough."""


def as_size(image_size: int | Size) -> Size:
    """Height and width; a single number stands for both."""
    if isinstance(image_size, int | Integral):
        return int(image_size), int(image_size)
    if isinstance(image_size, str) or len(image_size) != 2:
        raise ValueError(f"image_size {image_size!r} is neither a number nor a height and a width")
    return int(image_size[0]), int(image_size[1])


@dataclass(frozen=True)
class Architecture:
    """A network of the paper's kind, for any image size. The paper's presets are instances of it.

    Attributes:
        capsule_channels: Capsule channels of the primary layer and of each capsule layer but the last.
        kernels: Kernel side of each capsule layer; None for the last covers whatever is left.
        strides: Stride of each capsule layer.
        backbone: Name of the backbone below the capsules, see `list_backbones()`.
        backbone_settings: Its settings, where they differ from its defaults.
        pose: Rows and columns of a pose.
        passes: Number of passes over all shortcuts.
        iterations: Routing iterations in each shortcut or capsule layer.
        dropout: Probability of dropping a primary capsule in training.
    """

    capsule_channels: tuple[int, ...]
    kernels: tuple[int | None, ...] = (3, 3, None)
    strides: tuple[int, ...] = (2, 1, 1)
    backbone: str = "stem"
    backbone_settings: Mapping[str, Any] = field(default_factory=dict)
    pose: int = 4
    passes: int = 2
    iterations: int = 2
    dropout: float = 0.2

    def __post_init__(self) -> None:
        layers = len(self.capsule_channels)
        if not (layers == len(self.kernels) == len(self.strides)) or layers == 0:
            raise ValueError(
                f"capsule_channels {self.capsule_channels}, kernels {self.kernels} and strides {self.strides}: "
                "give one of each for every capsule layer (the first channels are those of the primary capsules)"
            )
        if None in self.kernels[:-1]:
            raise ValueError(f"kernels {self.kernels}: only the last may be None, which covers whatever is left")
        check_at_least_one(
            capsule_channels=self.capsule_channels,
            kernels=self.kernels,
            strides=self.strides,
            pose=self.pose,
            passes=self.passes,
        )


@dataclass(frozen=True)
class PlannedLayer:
    """One capsule layer.

    Attributes:
        name: Its name in messages and summaries.
        in_channels: Capsule channels of the input.
        out_channels: Capsule channels of the output.
        in_size: Height and width of the input.
        out_size: Height and width of the output.
        kernel: Height and width of the kernel.
        stride: Its stride.
    """

    name: str
    in_channels: int
    out_channels: int
    in_size: Size
    out_size: Size
    kernel: Size
    stride: int


@dataclass(frozen=True)
class Plan:
    """An architecture laid out for images of one size: everything needed to build a network.

    Attributes:
        architecture: The architecture.
        image_size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of classes.
        features: Channels, height and width of the feature map that the capsules are made from, the backbone's deepest.
        capsule_layers: The capsule layers, from the images to the classes.
    """

    architecture: Architecture
    image_size: Size
    channels: int
    classes: int
    features: Shape
    capsule_layers: tuple[PlannedLayer, ...]


class _TooSmall(ValueError):
    """The image is too small for some layer."""


def make_plan(
    architecture: Architecture,
    image_size: int | Size = 28,
    channels: int = 1,
    classes: int = 10,
    *,
    backbone: nn.Module | None = None,
) -> Plan:
    """Lay out an architecture for images of one size.

    Args:
        architecture: The network.
        image_size: Height and width, or one number for both.
        channels: Channels of the images.
        classes: Number of classes.
        backbone: The backbone itself; None for the one that the architecture names.

    Raises:
        ValueError: A layer would have no position; the message names the layer and the smallest image that is large enough.
    """
    size = as_size(image_size)
    check_at_least_one(image_size=size, channels=channels, classes=classes)
    if backbone is None:
        with torch.device("meta"):
            backbone = create_backbone(architecture.backbone, channels, **architecture.backbone_settings)
    try:
        return _lay_out(architecture, backbone, size, channels, classes)
    except _TooSmall as reason:
        smallest = _smallest_image(lambda side: _lay_out(architecture, backbone, side, channels, classes=1))
        raise _too_small(size, reason, smallest) from reason


def plan_features(backbone: nn.Module, image_size: Size, channels: int) -> tuple[Shape, ...]:
    """The shapes of a backbone's feature maps for images of one size.

    Raises:
        ValueError: The images are too small for it, or have other channels.
    """
    try:
        return _features(backbone, image_size, channels)
    except _TooSmall as reason:
        smallest = _smallest_image(lambda side: _features(backbone, side, channels))
        raise _too_small(image_size, reason, smallest) from reason


def _too_small(size: Size, reason: _TooSmall, smallest: int | None) -> ValueError:
    shown = str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
    way_out = f"; the image needs at least {smallest}" if smallest else ""
    return ValueError(f"image_size {shown} is too small: {reason}{way_out}")


def _features(backbone: nn.Module, size: Size, channels: int) -> tuple[Shape, ...]:
    try:
        return feature_shapes(backbone, channels, size)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise _TooSmall(f"the backbone ({type(backbone).__name__}) cannot take it ({reason})") from error


def _lay_out(architecture: Architecture, backbone: nn.Module, size: Size, channels: int, classes: int) -> Plan:
    features = _features(backbone, size, channels)[-1]
    layers: list[PlannedLayer] = []
    out_channels = (*architecture.capsule_channels[1:], classes)
    in_size: Size = features[1:]
    for number, side in enumerate(architecture.kernels):
        kernel = in_size if side is None else (side, side)
        name, stride = f"capsule layer {number + 1}", architecture.strides[number]
        if in_size[0] < kernel[0] or in_size[1] < kernel[1]:
            raise _TooSmall(f"{name} with kernel {kernel[0]} gets only {in_size[0]}x{in_size[1]}")
        out_size = ((in_size[0] - kernel[0]) // stride + 1, (in_size[1] - kernel[1]) // stride + 1)
        layers.append(
            PlannedLayer(
                name, architecture.capsule_channels[number], out_channels[number], in_size, out_size, kernel, stride
            )
        )
        in_size = out_size
    if in_size != (1, 1):
        left = layers[-1].in_size
        raise ValueError(
            f"kernel {architecture.kernels[-1]} of {layers[-1].name} leaves {in_size[0]}x{in_size[1]} class capsules "
            f"instead of one: it must cover {left[0]}x{left[1]}; use None, which covers whatever is left"
        )
    return Plan(architecture, size, channels, classes, features, tuple(layers))


def _smallest_image(plan: Callable[[Size], object]) -> int | None:
    """The smallest image side for which every layer has at least one position, found by trying."""
    for side in range(1, _LARGEST_TRIED + 1):
        try:
            plan((side, side))
        except _TooSmall:
            continue
        except ValueError:
            return None  # a last kernel of its own fits one size only
        return side
    return None

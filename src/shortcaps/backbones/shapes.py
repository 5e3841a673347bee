"""The shapes of feature maps, worked out without computing anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shortcaps.backbones.base import Shape, as_maps, evaluating, feature_channels


def run_on_meta(module: nn.Module, *shape: int) -> Any:
    """What a module makes of an image (1, *shape) of the type of its weights, as meta tensors.

    Nothing is computed, and neither its weights nor its running statistics change.
    """
    state = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    floating = (p.dtype for p in module.parameters() if p.is_floating_point())
    image = torch.empty(1, *shape, device="meta", dtype=next(floating, torch.get_default_dtype()))
    with torch.no_grad(), evaluating(module):
        return torch.func.functional_call(module, state, (image,))


class UnknownShape(Exception):
    """A module is not one of those whose shapes are known without running it."""


class _WrongChannels(ValueError):
    """A convolution takes other channels."""


def shape_after(module: nn.Module, shape: Shape) -> Shape:
    """What a module makes of a map of this shape, for convolutions, batch norms and ReLUs, one after another.

    Raises:
        UnknownShape: It is, or holds, another kind of module.
        RuntimeError: The map is smaller than a kernel.
        ValueError: The map has other channels.
    """
    if type(module) is nn.Sequential:
        for part in module:
            shape = shape_after(part, shape)
        return shape
    if type(module) in (nn.BatchNorm2d, nn.ReLU, nn.Identity):
        return shape
    if type(module) is not nn.Conv2d or isinstance(module.padding, str):
        raise UnknownShape(type(module).__name__)
    channels, *size = shape
    if channels != module.in_channels:
        raise _WrongChannels(f"{module.in_channels} channels, not {channels}")
    covered = [
        dilation * (kernel - 1) + 1 for dilation, kernel in zip(module.dilation, module.kernel_size, strict=True)
    ]
    height, width = (
        (side + 2 * padding - reach) // stride + 1
        for side, padding, reach, stride in zip(size, module.padding, covered, module.stride, strict=True)
    )
    if min(height, width) < 1:
        raise RuntimeError(f"a kernel of {covered[0]}x{covered[1]} does not fit into a map of {size[0]}x{size[1]}")
    return module.out_channels, height, width


def feature_shapes(backbone: nn.Module, channels: int, image_size: tuple[int, int]) -> tuple[Shape, ...]:
    """What feature maps the backbone makes of images of this size. Nothing is computed.

    A backbone whose class has a method `planned_shapes(shape)` beside its `forward` is asked that, as those of this package are. Any other is
    asked with a meta tensor, for which PyTorch loads its compiler: that takes longer than to load and run a small network.

    Args:
        backbone: Any backbone; neither its weights nor its running statistics change.
        channels: Of the images.
        image_size: Height and width.

    Raises:
        RuntimeError: The images are too small for it, as PyTorch or the backbone says it.
        ValueError: It takes images of other channels, or makes feature maps of other channels than it promises.
    """
    found = _planned_shapes(backbone, (channels, *image_size))
    if found is None:
        found = tuple(tuple(features.shape[1:]) for features in as_maps(run_on_meta(backbone, channels, *image_size)))
    promised = feature_channels(backbone)
    if [shape[0] for shape in found] != list(promised):
        raise ValueError(
            f"{type(backbone).__name__} makes feature maps of {', '.join(str(shape[0]) for shape in found)} channels, but promises "
            f"{', '.join(map(str, promised))}"
        )
    return tuple((depth, height, width) for depth, height, width in found)


def _planned_shapes(backbone: nn.Module, shape: Shape) -> tuple[tuple[int, ...], ...] | None:
    """What the backbone says itself; None where it does not, or where a subclass computes something else or parts were exchanged."""
    defined = vars(type(backbone))
    if "forward" not in defined or not callable(defined.get("planned_shapes")):
        return None
    try:
        return tuple(backbone.planned_shapes(shape))  # type: ignore[operator]
    except UnknownShape:
        return None
    except _WrongChannels as error:
        raise ValueError(
            f"{type(backbone).__name__} takes images of {error}: create it for {shape[0]}, or say so with `channels`"
        ) from error

"""The interface of a backbone, in functions, so that networks of other libraries fit as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from shortcaps.registry import Registry

Shape = tuple[int, int, int]
"""Channels, height and width of a feature map."""
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

BACKBONES: Registry[Callable[..., nn.Module]] = Registry("backbone")


def register_backbone(name: str) -> Callable[[Factory], Factory]:
    """Make a backbone known by name: a decorator for a module class or a function that returns one.

    Args:
        name: What `create_backbone`, a preset or a config asks for.

    Returns:
        The decorator. What it is put on is called with the images' channels as its first argument, and settings by name.
    """
    return BACKBONES.decorator(name)


def list_backbones(pattern: str | Sequence[str] = "*", *, exclude: str | Sequence[str] = ()) -> list[str]:
    """Names of the registered backbones.

    Args:
        pattern: A shell pattern, or several.
        exclude: Patterns whose matches are left out.
    """
    return BACKBONES.names(pattern, exclude=exclude)


def create_backbone(name: str, in_channels: int, **settings: Any) -> nn.Module:
    """A backbone by name.

    Args:
        name: One of `list_backbones()`.
        in_channels: Channels of the images.
        **settings: What this backbone takes, e.g. `width=32` for the paper's stem.
    """
    factory = BACKBONES[name]
    try:
        return factory(in_channels, **settings)
    except TypeError as error:
        raise TypeError(f"backbone {name!r} with settings {settings}: {error}") from error


def lay_out_channels_last(module: nn.Module) -> None:
    """Lay out the weights of a module's 2-D convolutions with channels innermost, in place.

    On CPUs PyTorch's convolutions and batch norms are a quarter to a third faster so, and maps follow the layout of the weights. Shapes and
    names stay; results differ by rounding.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.contiguous(memory_format=torch.channels_last)


def read_channels_last(images: Tensor) -> Tensor:
    """The same images, a view, for layers whose weights lie channels last.

    With one channel both orders are the same numbers in the same places, and PyTorch takes them for channels first: so would be the first maps
    and what belongs to them in the backward pass, where every mixture of orders is slow (a step of cnn-23k takes two thirds longer).
    """
    if not isinstance(images, Tensor):  # a stand-in of torch.fx
        return images
    is_recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if images.shape[1] != 1 or is_recorded or not images.is_contiguous():
        return images
    return images.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)


def feature_channels(backbone: nn.Module) -> tuple[int, ...]:
    """How many channels each feature map of a backbone has, from the shallowest to the deepest.

    Raises:
        TypeError: The module does not say.
    """
    info = getattr(backbone, "feature_info", None)
    if info is not None:
        return tuple(int(channels) for channels in info.channels())
    channels = getattr(backbone, "out_channels", None)
    if isinstance(channels, int):
        return (channels,)
    if isinstance(channels, Sequence):
        return tuple(int(count) for count in channels)
    raise TypeError(
        f"{type(backbone).__name__} is no backbone: it should say in `out_channels` how many channels each of its feature maps has "
        "(or be a features_only network of timm)"
    )


def feature_maps(backbone: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """The feature maps of images, from the shallowest to the deepest, each (batch, channels, height, width).

    Args:
        backbone: Any backbone.
        images: (batch, channels, height, width).
    """
    return as_maps(backbone(images))


def as_maps(found: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a backbone returned, one feature map or several, as a tuple."""
    return (found,) if isinstance(found, Tensor) else tuple(found)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within, the module is in evaluation mode; afterwards each of its parts is in the mode it was in.

    Each by itself: in training, a frozen part is in evaluation mode.
    """
    in_training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in in_training:
            part.training = True

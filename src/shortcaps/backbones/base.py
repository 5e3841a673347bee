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
    found = backbone(images)
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


def feature_shapes(backbone: nn.Module, channels: int, image_size: tuple[int, int]) -> tuple[Shape, ...]:
    """What feature maps the backbone makes of images of this size. Nothing is computed: it is asked with a meta tensor.

    Args:
        backbone: Any backbone; neither its weights nor its running statistics change.
        channels: Of the images.
        image_size: Height and width.

    Raises:
        RuntimeError: The images are too small for it, as PyTorch says it.
    """
    state = {name: tensor.to("meta") for name, tensor in (*backbone.named_parameters(), *backbone.named_buffers())}
    images = torch.empty(1, channels, *image_size, device="meta")
    with torch.no_grad(), evaluating(backbone):
        found = torch.func.functional_call(backbone, state, (images,))
    maps: Sequence[Tensor] = (found,) if isinstance(found, Tensor) else tuple(found)
    promised = feature_channels(backbone)
    if [features.shape[1] for features in maps] != list(promised):
        raise ValueError(
            f"{type(backbone).__name__} makes feature maps of {', '.join(str(f.shape[1]) for f in maps)} channels, but promises "
            f"{', '.join(map(str, promised))}"
        )
    return tuple((f.shape[1], f.shape[2], f.shape[3]) for f in maps)

"""A small convolutional backbone for any image size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from shortcaps.backbones.base import Shape, lay_out_channels_last, read_channels_last, register_backbone
from shortcaps.backbones.shapes import shape_after
from shortcaps.errors import check_at_least_one


def convolution(in_channels: int, channels: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU; padded, so that only the stride makes a map smaller."""
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
    )


@register_backbone("convolutional")
class ConvolutionalBackbone(nn.Module):
    """Padded convolutions one after another, each with batch norm and ReLU.

    Args:
        in_channels: Channels of the images.
        widths: Channels after each convolution.
        strides: Stride of each convolution.
        first_kernel: Side of the first kernel; all others are 3.
        out_indices: Which convolutions' feature maps are given, counted from 0 (negative: from the end), shallow to deep.
    """

    def __init__(
        self,
        in_channels: int,
        widths: Sequence[int] = (16, 24, 24, 32),
        strides: Sequence[int] = (1, 2, 1, 2),
        first_kernel: int = 3,
        out_indices: Sequence[int] = (-1,),
    ) -> None:
        super().__init__()
        if len(widths) != len(strides) or not widths:
            raise ValueError(
                f"widths {tuple(widths)} and strides {tuple(strides)}: give one of each for every convolution"
            )
        check_at_least_one(widths=widths, strides=strides, first_kernel=first_kernel)
        if not all(-len(widths) <= index < len(widths) for index in out_indices) or not out_indices:
            raise ValueError(f"out_indices {tuple(out_indices)}: there are {len(widths)} convolutions, counted from 0")
        befores = (in_channels, *widths[:-1])
        self.layers = nn.ModuleList(
            convolution(before, width, 3 if number else first_kernel, stride)
            for number, (before, width, stride) in enumerate(zip(befores, widths, strides, strict=True))
        )
        self.out_indices = tuple(sorted(index % len(widths) for index in out_indices))
        self.out_channels = tuple(widths[index] for index in self.out_indices)
        lay_out_channels_last(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The chosen feature maps, shallow to deep, of images (batch, in_channels, height, width)."""
        found = []
        features = read_channels_last(images)
        for number, layer in enumerate(self.layers):
            features = layer(features)
            if number in self.out_indices:
                found.append(features)
        return found

    def planned_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the chosen feature maps of images of this shape."""
        found = []
        for layer in self.layers:
            shape = shape_after(layer, shape)
            found.append(shape)
        return tuple(found[number] for number in self.out_indices)

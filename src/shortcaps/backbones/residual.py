"""A small residual backbone for natural images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shortcaps.backbones.base import Shape, lay_out_channels_last, read_channels_last, register_backbone
from shortcaps.backbones.convolutional import convolution
from shortcaps.backbones.shapes import UnknownShape, shape_after
from shortcaps.errors import check_at_least_one


class ResidualBlock(nn.Module):
    """`ReLU(x + norm(conv(ReLU(norm(conv(x))))))` (He et al., 2016); where shapes differ, x passes a 1x1 convolution.

    Args:
        in_channels: Channels that come in.
        channels: Channels that go out.
        stride: Stride of the first convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = convolution(in_channels, channels, 3, stride)
        norm = nn.BatchNorm2d(channels)
        # The block begins as the identity, so that early training is that of a shallow network.
        nn.init.zeros_(norm.weight)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm)
        same = in_channels == channels and stride == 1
        self.shortcut: nn.Module = nn.Identity()
        if not same:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, features: Tensor) -> Tensor:
        """(batch, channels, height / stride, width / stride) from (batch, in_channels, height, width)."""
        return torch.relu(self.shortcut(features) + self.second(self.first(features)))


@register_backbone("residual")
class ResidualBackbone(nn.Module):
    """A convolution, then stages of residual blocks; every stage but the first halves the map.

    Args:
        in_channels: Channels of the images.
        widths: Channels of each stage.
        blocks: Residual blocks in each stage.
        out_indices: Which stages' feature maps are given, counted from 0 (negative: from the end), shallow to deep.
    """

    def __init__(
        self,
        in_channels: int,
        widths: Sequence[int] = (16, 32, 64),
        blocks: Sequence[int] = (2, 2, 2),
        out_indices: Sequence[int] = (-1,),
    ) -> None:
        super().__init__()
        if len(widths) != len(blocks) or not widths:
            raise ValueError(f"widths {tuple(widths)} and blocks {tuple(blocks)}: give one of each for every stage")
        check_at_least_one(widths=widths, blocks=blocks)
        if not all(-len(widths) <= index < len(widths) for index in out_indices) or not out_indices:
            raise ValueError(f"out_indices {tuple(out_indices)}: there are {len(widths)} stages, counted from 0")
        self.stem = convolution(in_channels, widths[0])
        stages = []
        before = widths[0]
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            stage = [ResidualBlock(before, width, 2 if number else 1)]
            stage += [ResidualBlock(width, width) for _ in range(count - 1)]
            stages.append(nn.Sequential(*stage))
            before = width
        self.stages = nn.ModuleList(stages)
        self.out_indices = tuple(sorted(index % len(widths) for index in out_indices))
        self.out_channels = tuple(widths[index] for index in self.out_indices)
        lay_out_channels_last(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The chosen feature maps, shallow to deep, of images (batch, in_channels, height, width)."""
        found = []
        features = self.stem(read_channels_last(images))
        for number, stage in enumerate(self.stages):
            features = stage(features)
            if number in self.out_indices:
                found.append(features)
        return found

    def planned_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the chosen feature maps of images of this shape."""
        found = []
        shape = shape_after(self.stem, shape)
        for stage in self.stages:
            for block in cast("nn.Sequential", stage):
                if type(block) is not ResidualBlock:
                    raise UnknownShape(type(block).__name__)
                shape = shape_after(block.second, shape_after(block.first, shape))
            found.append(shape)
        return tuple(found[number] for number in self.out_indices)

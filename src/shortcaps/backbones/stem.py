"""The paper's stem."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shortcaps.backbones.base import Shape, register_backbone
from shortcaps.backbones.shapes import shape_after
from shortcaps.errors import check_at_least_one


@register_backbone("stem")
class Stem(nn.Module):
    """The backbone of the paper's networks: one convolution without padding, ReLU, batch norm.

    Args:
        in_channels: Channels of the images.
        width: Channels of the feature map.
        kernel: Side of the kernel.
        stride: Its stride.
    """

    def __init__(self, in_channels: int, width: int = 64, kernel: int = 5, stride: int = 2) -> None:
        super().__init__()
        check_at_least_one(width=width, kernel=kernel, stride=stride)
        self.out_channels = (width,)
        self.convolution = nn.Conv2d(in_channels, width, kernel, stride)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, width, height', width') of images (batch, in_channels, height, width)."""
        return self.norm(torch.relu(self.convolution(images)))

    def planned_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shape of the feature map of images of this shape."""
        return (shape_after(self.norm, shape_after(self.convolution, shape)),)

"""A plain convolutional network, to measure what capsules add: as many parameters, the same stem, the same training."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from shortcaps.layers import Stem
from shortcaps.models.network import Network
from shortcaps.models.plan import Size
from shortcaps.models.summary import Summary, summary_row

STEM_CHANNELS = 64


class PlainCNN(Network):
    """The paper's stem, two 3x3 convolutions with ReLU and batch norm (strides 2 and 1, as the capsule layers), the mean over
    all positions, and a linear layer. The mean makes it indifferent to where a digit lies: a flattened map would not be, and
    would be the weaker opponent on shifted digits."""

    smallest_image = 17

    def __init__(self, widths: tuple[int, int], *, image_size: Size, channels: int, classes: int) -> None:
        super().__init__(image_size, channels, classes)
        self.stem = Stem(channels, STEM_CHANNELS, kernel=5, stride=2)
        layers: list[nn.Module] = []
        for (before, width), stride in zip(pairwise((STEM_CHANNELS, *widths)), (2, 1), strict=True):
            layers += [nn.Conv2d(before, width, 3, stride), nn.ReLU(), nn.BatchNorm2d(width)]
        self.layers = nn.Sequential(*layers)
        self.classify = nn.Linear(widths[-1], classes)

    @property
    def title(self) -> str:
        return "plain convolutional network"

    def forward(self, images: Tensor) -> Tensor:
        self._check_images(images)
        return self.classify(self.layers(self.stem(images)).mean((2, 3))).softmax(-1)

    def summary(self) -> Summary:
        rows, maps = [], torch.zeros(1, self.channels, *self.image_size, device="meta")
        for name, module in (("stem", self.stem), ("convolutions", self.layers)):
            convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
            multiply_adds = 0
            for convolution in convolutions:
                maps = nn.functional.conv2d(maps, convolution.weight.to("meta"), stride=convolution.stride)
                multiply_adds += maps.shape[2] * maps.shape[3] * convolution.weight.numel()
            rows.append(summary_row(name, tuple(maps.shape[1:]), module, multiply_adds=multiply_adds))
        rows.append(summary_row("classes", (self.classes,), self.classify, multiply_adds=self.classify.weight.numel()))
        return Summary.of(self, rows, "PyTorch's own convolutions")

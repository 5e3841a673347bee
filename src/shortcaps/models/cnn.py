"""A plain convolutional network, to measure what capsules add: as many parameters, the same stem, the same training."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from shortcaps.backbones import Stem, lay_out_channels_last, read_channels_last
from shortcaps.models.network import Network, full_precision_logits
from shortcaps.models.plan import Size
from shortcaps.models.registry import register_model
from shortcaps.models.summary import Summary, module_row, summary_row


class PlainCNN(Network):
    """The paper's stem, two 3x3 convolutions, the mean over all positions, and a linear layer.

    The convolutions have ReLU and batch norm, and the strides of the first two capsule layers, 2 and 1. The mean makes the network
    insensitive to where a digit lies: a flattened map would not be, and would be a weaker opponent on shifted digits.

    Args:
        widths: Channels after each of the two convolutions.
        image_size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of classes.
    """

    sums_to_one = True
    min_image_size = 17

    def __init__(self, widths: tuple[int, int], *, image_size: Size, channels: int, classes: int) -> None:
        super().__init__(image_size, channels, classes)
        self.stem = Stem(channels)
        layers: list[nn.Module] = []
        for (before, width), stride in zip(pairwise((*self.stem.out_channels, *widths)), (2, 1), strict=True):
            layers += [nn.Conv2d(before, width, 3, stride), nn.ReLU(), nn.BatchNorm2d(width)]
        self.layers = nn.Sequential(*layers)
        self.classify = nn.Linear(widths[-1], classes)
        lay_out_channels_last(self)

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return "plain convolutional network"

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities (batch, classes), which sum to 1, of images (batch, channels, height, width) in 0–1."""
        return full_precision_logits(self.classify, self.features(images)).softmax(-1)

    def features(self, images: Tensor) -> Tensor:
        """What the linear layer sees, (batch, features), of images (batch, channels, height, width) in 0–1."""
        self._check_images(images)
        return self.layers(self.stem(read_channels_last(images))).mean((2, 3))

    @property
    def body(self) -> tuple[nn.Module, ...]:
        """The modules that extract features: everything below the mean."""
        return self.stem, self.layers

    def summary(self) -> Summary:
        """Layer by layer: shape, parameters, multiply–adds."""
        stem = module_row("stem", self.stem, (self.channels, *self.image_size))
        rows = [stem, module_row("convolutions", self.layers, stem.shape)]
        rows.append(summary_row("classes", (self.classes,), self.classify, multiply_adds=self.classify.weight.numel()))
        return Summary.of(self, rows, "PyTorch's own convolutions")


# Parameters at 28x28 with 10 classes: 23,026 (baseline fuzzy: 23,082) and 67,510 (expanded fuzzy: 67,658).
for _name, _widths, _like in (("cnn-23k", (24, 32), "baseline"), ("cnn-68k", (60, 56), "expanded")):
    register_model(_name, description=f"a plain convolutional network, as large as {_like}")(partial(PlainCNN, _widths))

"""Networks that name two classes at once: a network with one output for each class, read out by pairs of classes.

So a picture of two overlapping digits has one label, its pair, and everything that trains, validates and tests networks works on it as it is.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from shortcaps.models import cnn, compact, presets  # noqa: F401  (which register the networks of single classes)
from shortcaps.models.network import Network
from shortcaps.models.plan import Size
from shortcaps.models.registry import MODELS, register_model
from shortcaps.models.summary import Summary, summary_row

PAIRED = tuple(MODELS.names(["baseline", "expanded", "compact-*", "cnn-*"]))
"""Networks that can be had as `pairs-NAME`."""


def class_pairs(classes: int) -> Tensor:
    """All pairs of different classes, (pairs, 2), each in ascending order and all in that of their first."""
    return torch.tensor(list(combinations(range(classes), 2)))


class PairNetwork(Network):
    """A network of single classes whose outputs are those of pairs: `a_ij = a_i · a_j`.

    The largest output is that of the two most active classes. As probabilities, `a_i a_j / Σ a_k a_l`, they say which two classes it is, given that
    it is two; after a softmax this is the softmax of the sums of two logits. So capsules and plain networks are trained alike.

    Args:
        single: The network of single classes.

    Attributes:
        pairs: (pairs, 2), the classes of each output.
    """

    pairs: Tensor

    def __init__(self, single: Network) -> None:
        pairs = class_pairs(single.classes)
        super().__init__(single.image_size, single.channels, len(pairs))
        self.takes_any_size, self.min_image_size = single.takes_any_size, single.min_image_size
        self.single = single
        self.register_buffer("pairs", pairs, persistent=False)

    @property
    def title(self) -> str:
        """What kind of network this is, in a few words."""
        return f"{self.single.title}, read out by pairs of classes"

    def forward(self, images: Tensor) -> Tensor:
        """Activations of pairs (batch, pairs) of images (batch, channels, height, width) in 0–1."""
        single = self.single(images)
        return single[:, self.pairs[:, 0]] * single[:, self.pairs[:, 1]]

    def summary(self) -> Summary:
        """The network of single classes in one row, and the pairs."""
        rows = [
            *self.single.summary().rows,
            summary_row("pairs", (self.classes,), nn.Identity(), multiply_adds=self.classes),
        ]
        return Summary.of(self, rows, "that of the network of single classes")


def build_pairs(name: str, *, image_size: Size, channels: int, classes: int, **settings: Any) -> PairNetwork:
    """A network of pairs.

    Args:
        name: The network of single classes.
        image_size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of pairs of classes: 45 for ten classes.
        **settings: Of the network of single classes.

    Raises:
        ValueError: There is no number of classes with so many pairs.
    """
    single = (1 + math.isqrt(1 + 8 * classes)) // 2
    if classes < 1 or single * (single - 1) // 2 != classes:
        raise ValueError(f"classes {classes} is no number of pairs of classes: 10 classes have 45, 5 have 10, 3 have 3")
    return PairNetwork(MODELS[name].build(image_size=image_size, channels=channels, classes=single, **settings))


for _name in PAIRED:
    register_model(
        f"pairs-{_name}",
        description=f"{_name}, naming two classes at once",
        settings=MODELS[_name].settings,
        recipe=MODELS[_name].recipe,
    )(partial(build_pairs, _name))

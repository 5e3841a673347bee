"""overlap: two digits in one image, by networks that were trained on pairs, and by networks that never saw more than one digit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.data import load_dataset, multimnist
from shortcaps.data.affnist import SIDE
from shortcaps.models import Network
from shortcaps.studies.digits import Digits, draw_images, side_of
from shortcaps.studies.drawing import bars, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.probe import observe
from shortcaps.studies.study import (
    RECIPE,
    SIGMOID_TWIN,
    STANDARD_NETWORKS,
    Claim,
    Lookup,
    Part,
    Study,
    register_study,
    shortened,
    standard_training,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

PAIRS, SINGLE = "pairs", "single"
_BOX = slice(4, 24)
"""Rows and columns of an MNIST image that a digit lies in."""


@dataclass(frozen=True)
class Doubles:
    """Images of two digits.

    Attributes:
        images: By how the digits lie: (count, 1, 40, 40), uint8.
        classes: (count, 2), the classes of both.
    """

    images: dict[str, Tensor]
    classes: Tensor


def side_by_side(digits: Tensor, pairs: Tensor, generator: torch.Generator) -> Tensor:
    """The boxes of both digits beside each other, each at a height of its own: (count, 1, 40, 40) of digits (digits, 1, 28, 28)."""
    images = torch.zeros(len(pairs), 1, SIDE, SIDE, dtype=digits.dtype)
    room = SIDE - (_BOX.stop - _BOX.start)
    for which, left in zip(pairs.T, (0, SIDE // 2), strict=True):
        box = digits[which][:, :, _BOX, _BOX]
        tops = torch.randint(room + 1, (len(pairs),), generator=generator)
        for number, top in enumerate(tops.tolist()):
            images[number, :, top : top + box.shape[2], left : left + box.shape[3]] = box[number]
    return images


def named(activations: Tensor, classes: Tensor) -> Tensor:
    """How many of both classes (count, 2) are among the two with the largest activations (count, classes), (count,)."""
    top = activations.topk(2, 1).indices
    return (top[:, :, None] == classes[:, None]).any(1).sum(1)


@register_study
class Overlap(Study):
    """Both digits named: after training on pairs, and as the two most active classes after training on single digits."""

    name = "overlap"
    title = "Two digits in one image"
    question = (
        "Claimed (Sabour et al. 2017): routing explains overlapping digits away, so capsules name both better than a plain network; and "
        "activations that do not compete in a softmax should name two digits though only one was ever shown."
    )

    networks = (*STANDARD_NETWORKS, SIGMOID_TWIN)

    @property
    def count(self) -> int:
        """How many of the test's pairs are shown at most."""
        return 200 if self.quick else 5000

    def parts(self) -> tuple[Part, ...]:
        """Pairs of digits by a network of pairs, and the standard training."""
        pairs = {"data": "multimnist", "recipe": RECIPE, **shortened(self.quick)}
        return Part(PAIRS, pairs, prefix="pairs-"), Part(SINGLE, standard_training(self.quick))

    @cached_property
    def test(self) -> Digits:
        """MultiMNIST's test pairs; a label is that of a pair."""
        return draw_images("multimnist", "test", self.count)

    @cached_property
    def doubles(self) -> Doubles:
        """The digits of MNIST's test in pairs, each digit in one, side by side and overlapping."""
        data = load_dataset("mnist", "test")
        generator = torch.Generator().manual_seed(40_029)
        pairs = multimnist.disjoint_pairs(data.labels, generator)[: self.count]
        margin = (SIDE - multimnist.SIDE) // 2
        digits = data.images[:]
        images = {
            "side by side": side_by_side(digits, pairs, generator),
            "overlapping": F.pad(multimnist.overlaid(digits, pairs, generator), (margin,) * 4),
        }
        return Doubles(images, data.labels[pairs])

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Both digits right, and the share of digits that are."""
        return self._pairs(model) if trained.part == PAIRS else self._single(model)

    def _pairs(self, model: Network) -> Measured:
        of_pair = torch.tensor(multimnist.PAIRS)
        predicted, wanted = of_pair[observe(model, self.test.images).predicted], of_pair[self.test.labels]
        found = (predicted[:, :, None] == wanted[:, None]).any(1).sum(1)
        scores = {"both": Scores((found == 2).double()), "digits": Scores(found.double() / 2)}
        return Measured(scores, {}, identify(self.test.images, self.test.labels))

    def _single(self, model: Network) -> Measured:
        side_of(model, SIDE)
        scores = {}
        for how, images in self.doubles.images.items():
            activations = observe(model, images).activations
            found = named(activations, self.doubles.classes)
            first = (activations.argmax(1)[:, None] == self.doubles.classes).any(1)
            scores[f"both {how}"] = Scores((found == 2).double())
            scores[f"digits {how}"] = Scores(found.double() / 2)
            scores[f"most active {how}"] = Scores(first.double())
        return Measured(scores, {}, identify(*self.doubles.images.values(), self.doubles.classes))

    def claims(self) -> Sequence[Claim]:
        """Both digits right, for each training and way of lying; the share of digits, and whether the most active class is there."""
        claims = [Claim("both of two overlapping digits named, trained on pairs", "both", part=PAIRS)]
        claims.append(Claim("overlapping digits named, trained on pairs", "digits", part=PAIRS, is_main=False))
        for how in ("side by side", "overlapping"):
            what = f"both of two digits {how} named, trained on single digits"
            claims.append(Claim(what, f"both {how}", part=SINGLE))
            what = f"the most active class being one of two digits {how}, trained on single digits"
            claims.append(Claim(what, f"most active {how}", part=SINGLE, is_main=False))
        return claims

    def notes(self) -> Sequence[str]:
        """How pairs are made and read out."""
        return [
            "Each digit of a pair is moved by up to 4 px on 36x36, which leaves on average 80 % of the area of their 28x28 boxes in common, as published (73 % of the 20x20 "
            "boxes that the ink lies in). In the test no digit is in two pairs, so pairs are independent.",
            "Networks of pairs give a_i·a_j for every pair of classes and are trained by the loss that their recipe has for single classes: which two digits, given that it is two. "
            "After training on single digits the two most active classes count.",
            f"{SIGMOID_TWIN} is the plain twin with outputs that do not compete for a softmax, trained by the same loss.",
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A panel for each training."""
        figure, axes = panels(2, height=3.2)
        bars(axes[0], measurements, ["both", "digits"], ["both right", "share of digits"], part=PAIRS)
        axes[0].set_ylabel("trained on pairs")
        names = ["both side by side", "both overlapping"]
        bars(axes[1], measurements, names, ["both, side by side", "both, overlapping"], part=SINGLE)
        axes[1].set_ylabel("trained on single digits")
        for panel in axes:
            panel.set_ylim(0, 1.02)
        return with_legend(figure, axes)

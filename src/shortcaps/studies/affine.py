"""affine: how much rotation, scaling and shear a network stands that was trained on digits placed anywhere and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shortcaps.data.affnist import SIDE, affine_matrices, transform
from shortcaps.models import Network
from shortcaps.studies.digits import Digits, draw_images, side_of
from shortcaps.studies.drawing import curves, networks_of, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.probe import answers
from shortcaps.studies.statistics import area_under, breaking_point
from shortcaps.studies.study import Claim, Lookup, Study, register_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

AMOUNTS: dict[str, tuple[float, ...]] = {
    "rotation": (0, 10, 20, 30, 40, 50, 60),
    "shrinking": (1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
    "enlarging": (1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
    "shear": (0, 0.15, 0.3, 0.45, 0.6),
    "mixture": (0, 0.25, 0.5, 0.75, 1.0),
}
"""Of each kind the amounts, beginning with none. Shrinking by 2 is a scale of 0.5."""
UNITS = {
    "rotation": "rotation, either way (°)",
    "shrinking": "shrunk by the factor",
    "enlarging": "enlarged by the factor",
    "shear": "shear, either way",
    "mixture": "share of the largest mixture",
}
WORDS = {
    "rotation": "accuracy averaged over rotations up to 60°",
    "shrinking": "accuracy averaged over scales down to 0.5",
    "enlarging": "accuracy averaged over scales up to 1.5",
    "shear": "accuracy averaged over shears up to 0.6",
    "mixture": "accuracy averaged over mixtures of rotation, scaling and shear",
}
BREAKS_BELOW = 0.9
_ROTATION, _SHEAR, _SCALE = 60.0, 0.6, (0.5, 1.5)


def matrices_for(kind: str, amount: float, count: int, seed: int = 40_018) -> Tensor:
    """(count, 2, 2): what is done to each digit. Signs, and what a mixture is made of, are drawn once for all amounts and networks.

    Args:
        kind: One of `AMOUNTS`.
        amount: How much of it.
        count: Number of digits.
        seed: Decides the draws.
    """
    draws = torch.rand((4, count), generator=torch.Generator().manual_seed(seed))
    sign = torch.where(draws[0] < 0.5, -1.0, 1.0)
    angle = shear = torch.zeros(count)
    scale = torch.ones(count)
    if kind == "rotation":
        angle = sign * math.radians(amount)
    elif kind == "shrinking":
        scale = scale / amount
    elif kind == "enlarging":
        scale = scale * amount
    elif kind == "shear":
        shear = sign * amount
    else:
        angle = (2 * draws[1] - 1) * math.radians(_ROTATION) * amount
        shear = (2 * draws[2] - 1) * _SHEAR * amount
        low, high = (math.log(bound) for bound in _SCALE)
        scale = ((low + draws[3] * (high - low)) * amount).exp()
    return affine_matrices(angle, shear, scale, scale)


@register_study
class Affine(Study):
    """Accuracy against the amount of each kind of transformation."""

    name = "affine"
    title = "Affine transformations that were never trained on"
    question = (
        "Claimed (Sabour et al. 2017; Hinton et al. 2018): a network with capsules that saw digits at all places, and nothing else, "
        "recognises them better than a plain one when they are rotated, scaled or sheared."
    )

    @property
    def count(self) -> int:
        """How many test digits are shown."""
        return 300 if self.quick else 2000

    @cached_property
    def digits(self) -> Digits:
        """The test digits."""
        return draw_images("mnist", "test", self.count)

    def shown(self) -> Iterator[tuple[str, float, Tensor]]:
        """Every kind and amount, with the images (count, 1, 40, 40); a digit keeps its relative place."""
        count = len(self.digits)
        position = torch.rand((count, 2), generator=torch.Generator().manual_seed(40_019))
        for kind, amounts in AMOUNTS.items():
            for amount in amounts:
                yield kind, amount, transform(self.digits.images, matrices_for(kind, amount, count), position)

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Accuracy at each amount, and the area under each curve."""
        side_of(model, SIDE)
        right: dict[str, list[Tensor]] = {kind: [] for kind in AMOUNTS}
        for kind, _, images in self.shown():
            right[kind].append((answers(model, images) == self.digits.labels).double())
        scores = {
            f"{kind} {amount:g}": Scores(found)
            for kind, amounts in AMOUNTS.items()
            for amount, found in zip(amounts, right[kind], strict=True)
        }
        scores |= {f"area {kind}": Scores(area_under(amounts, right[kind])) for kind, amounts in AMOUNTS.items()}
        return Measured(scores, {}, self.identity())

    def identity(self) -> str:
        """Of the digits, and of what is done to them."""
        return identify(self.digits.images, self.digits.labels, repr((AMOUNTS, _ROTATION, _SHEAR, _SCALE)))

    def claims(self) -> Sequence[Claim]:
        """The area under each curve."""
        return [Claim(WORDS[kind], f"area {kind}", is_main=kind == "mixture") for kind in AMOUNTS]

    def sentences(self, measurements: Sequence[Measurement]) -> Sequence[str]:
        """Where each network breaks."""
        said = []
        for network in networks_of(measurements):
            parts = []
            for kind, amounts in AMOUNTS.items():
                runs = [m.values for m in measurements if m.network == network]
                curve = [mean(values[f"{kind} {amount:g}"] for values in runs) for amount in amounts]
                broken = breaking_point(amounts, curve, BREAKS_BELOW)
                parts.append(
                    f"{kind} {'beyond ' + format(amounts[-1], 'g') if broken is None else format(broken, '.3g')}"
                )
            said.append(f"{network} falls below {BREAKS_BELOW:.0%} at: {', '.join(parts)}.")
        return said

    def notes(self) -> Sequence[str]:
        """What is shown."""
        return [
            f"{self.count:,} of MNIST's test digits, each under every transformation; training only placed digits anywhere on 40x40. All ink stays "
            "inside the image. A mixture of 1 draws a rotation within 60°, a scale within 0.5 to 1.5 and a shear within 0.6."
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A panel for each kind."""
        figure, axes = panels(len(AMOUNTS))
        for panel, (kind, amounts) in zip(axes, AMOUNTS.items(), strict=True):
            curves(panel, measurements, amounts, [f"{kind} {amount:g}" for amount in amounts])
            panel.set_xlabel(UNITS[kind])
            panel.set_ylabel("accuracy")
            panel.set_ylim(0, 1.02)
        return with_legend(figure, axes)

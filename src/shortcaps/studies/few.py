"""few: how accuracy grows with the number of training images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shortcaps.data import DATASETS, Dataset, load_dataset
from shortcaps.models import Network
from shortcaps.studies.drawing import curves, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores
from shortcaps.studies.probe import observe
from shortcaps.studies.statistics import area_under
from shortcaps.studies.study import RECIPE, Claim, Lookup, Part, Study, register_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

SETS = ("mnist", "fashion-mnist")
SIZES = (10, 30, 100, 300, 1000)
STEPS, QUICK_STEPS = 600, 40
_BATCH = 128


@register_study
class Few(Study):
    """Learning curves over several draws of training images, each with as many updates of the weights."""

    name = "few"
    title = "Few examples"
    question = "Claimed: capsules need fewer examples than plain networks, as a pose generalises over what a plain network must see."
    seeds = 5

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self._tests: dict[str, Dataset] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images of each class."""
        return (2, 10) if self.quick else SIZES

    @property
    def sets(self) -> tuple[str, ...]:
        """Data sets."""
        return SETS[:1] if self.quick else SETS

    def parts(self) -> tuple[Part, ...]:
        """One for each data set and number of images."""
        steps = QUICK_STEPS if self.quick else STEPS
        parts = []
        for size in self.sizes:
            for name in self.sets:
                epochs = max(1, round(steps / max(1, 10 * size // _BATCH)))
                settings = {"data": name, "recipe": RECIPE, "per_class": size, "epochs": epochs}
                parts.append(Part(f"{name}-{size}", settings, folder=f"few/{size}", draws=True))
        return tuple(parts)

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Accuracy on the whole test."""
        name = trained.part.rpartition("-")[0]
        if name not in self._tests:
            self._tests[name] = load_dataset(name, "test")
        test = self._tests[name]
        right = observe(model, test.images[:]).predicted == test.labels
        return Measured({"accuracy": Scores(right.double())}, {}, test.fingerprint())

    def derived(self, measurements: Sequence[Measurement]) -> list[Measurement]:
        """For each network, draw and data set its learning curve, if it has all sizes."""
        found = []
        for name in self.sets:
            for points in self._points(measurements, name):
                if len(points) < len(self.sizes):
                    continue
                right = [points[size].scores["accuracy"].values for size in self.sizes]
                area = area_under([math.log(size) for size in self.sizes], right)
                curve = _curve(points, self.sizes, f"{name} curve")
                found.append(Measurement(curve, {"area": Scores(area)}))
        return found

    def _points(self, measurements: Sequence[Measurement], name: str) -> list[dict[int, Measurement]]:
        """For each network and draw its measurements on a data set, by size."""
        found: dict[tuple[str, int], dict[int, Measurement]] = {}
        for size in self.sizes:
            for m in measurements:
                if m.part == f"{name}-{size}":
                    found.setdefault((m.network, m.seed), {})[size] = m
        return list(found.values())

    def claims(self) -> Sequence[Claim]:
        """The area under each learning curve, and every point of it."""
        claims = []
        for name in self.sets:
            label = DATASETS[name].label
            what = f"accuracy on {label} averaged over {self.sizes[0]} to {self.sizes[-1]:,} images a class"
            claims.append(Claim(what, "area", part=f"{name} curve"))
            for size in self.sizes:
                what = f"accuracy on {label} after {size:,} images a class"
                claims.append(Claim(what, "accuracy", part=f"{name}-{size}", is_main=False))
        return claims

    def notes(self) -> Sequence[str]:
        """What a draw is, and how long it is trained on."""
        steps = QUICK_STEPS if self.quick else STEPS
        return [
            f"Each seed has a draw of training images of its own, the same for all networks, so that differences are paired by draw as well; smaller draws are part of larger ones. Every training has "
            f"about {steps} updates of the weights, however few images there are. Weights are selected on as many validation images as there are training images "
            "(or all of a class that has fewer), so that no size profits from labels it should not have. The area is over the logarithm of the number of images."
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A learning curve for each data set, over the sizes that every network and draw has."""
        figure, axes = panels(len(self.sets), height=3.4)
        for panel, name in zip(axes, self.sets, strict=True):
            every = self._points(measurements, name)
            sizes = [size for size in self.sizes if every and all(size in points for points in every)]
            lines = [Measurement(_curve(points, sizes, ""), {}) for points in every]
            curves(panel, lines, sizes, [f"{size}" for size in sizes])
            panel.set_xscale("log")
            panel.set_xlabel("training images of each class")
            panel.set_ylabel(f"accuracy on {DATASETS[name].label}")
        return with_legend(figure, axes)


def _curve(points: Mapping[int, Measurement], sizes: Sequence[int], part: str) -> dict[str, Any]:
    """A record of accuracies by size, like that of the largest size."""
    values = {f"{size}": points[size].scores["accuracy"].mean for size in sizes}
    return {**list(points.values())[-1].record, "part": part, "values": values}

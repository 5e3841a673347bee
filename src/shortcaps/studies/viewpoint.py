"""viewpoint: things seen from where they were never seen in training, by networks that are equally good where they were."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from shortcaps.data import Dataset, cache_folder, load_dataset
from shortcaps.data.smallnorb import FILES
from shortcaps.errors import RunError
from shortcaps.models import Network
from shortcaps.studies.drawing import bars, panels, with_legend
from shortcaps.studies.measured import Measured, Measurement, Scores, identify
from shortcaps.studies.probe import observe
from shortcaps.studies.study import RECIPE, Claim, Lookup, Part, Study, register_study, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shortcaps.studies.trained import Trained

KINDS = ("familiar", "novel")
VIEWPOINTS = ("azimuth", "elevation")


def smallnorb_is_here() -> bool:
    """Whether smallNORB's files are in the cache, packed or not."""
    folder = cache_folder() / "smallnorb"
    names = [wanted.name for part in FILES.values() for wanted in part.values()]
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in names)


def some_of_each(data: Dataset, count: int) -> Dataset:
    """At most so many views of every object, drawn once and for all."""
    assert data.originals is not None, "sets of objects know them"
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(18))
    chosen = torch.cat([order[data.originals[order] == number][:count] for number in data.originals.unique()])
    return data.subset(chosen)


def matched_epochs(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, int]:
    """After which epochs, counted from 0, two networks are equally good on familiar viewpoints, as late as possible.

    The one whose lowest error is higher is taken at that; the other is stopped where its error is nearest to it, before it became better.

    Args:
        ours: Validation error of one network after each epoch.
        theirs: That of the other.
    """
    best = [_last_best(errors) for errors in (ours, theirs)]
    target = max(ours[best[0]], theirs[best[1]])
    ours_at, theirs_at = (
        _nearest(errors[: last + 1], target) for errors, last in zip((ours, theirs), best, strict=True)
    )
    return ours_at, theirs_at


def _nearest(errors: Sequence[float], target: float) -> int:
    """The epoch whose error is nearest to a target, the last of several."""
    return min(range(len(errors)), key=lambda epoch: (abs(errors[epoch] - target), -epoch))


def _last_best(errors: Sequence[float]) -> int:
    return max(epoch for epoch, error in enumerate(errors) if error == min(errors))


@register_study
class Viewpoint(Study):
    """Accuracy on novel viewpoints of networks matched on familiar ones."""

    name = "viewpoint"
    title = "Novel viewpoints"
    question = (
        "Claimed (Hinton et al. 2018): matched on familiar viewpoints by stopping, capsules make fewer errors than a plain network on novel "
        "ones: 13.5 % instead of 20.0 % for azimuths, 12.3 % instead of 17.8 % for elevations of smallNORB."
    )

    def parts(self) -> tuple[Part, ...]:
        """A third of the azimuths, or of the elevations, of the rendered solids, and of smallNORB where its files are."""
        sets = ["solids", *(["smallnorb"] if smallnorb_is_here() else [])]
        common = {"recipe": RECIPE, "keep_epochs": True, **shortened(self.quick, max_images=1500)}
        return tuple(
            Part(f"{name}-{viewpoint}", {"data": f"{name}-{viewpoint}", **common})
            for name in sets
            for viewpoint in VIEWPOINTS
        )

    @cached_property
    def views(self) -> dict[str, int]:
        """How many views of each test object are shown."""
        return {"familiar": 2, "novel": 4} if self.quick else {"familiar": 6, "novel": 12}

    def tests(self, part: str) -> dict[str, Dataset]:
        """Test objects at familiar and at novel viewpoints."""
        if part not in self._tests:
            self._tests[part] = {
                kind: some_of_each(load_dataset(part, "test", viewpoints=kind), self.views[kind]) for kind in KINDS
            }
        return self._tests[part]

    @cached_property
    def _tests(self) -> dict[str, dict[str, Dataset]]:
        return {}

    def measure(self, model: Network, trained: Trained, others: Lookup) -> Measured:
        """Accuracy on both kinds of viewpoints with the selected weights, and after every epoch."""
        tests = self.tests(trained.part)
        errors = validation_errors(trained)
        scores = {kind: _right(model, data) for kind, data in tests.items()}
        for epoch in range(1, len(errors) + 1):
            stopped = trained.load(epoch)
            for kind, data in tests.items():
                scores[f"{kind} after {epoch}"] = _right(stopped, data)
        values = {f"validation error after {epoch + 1}": error for epoch, error in enumerate(errors)}
        return Measured(scores, values, identify(*(data.images[:] for data in tests.values())))

    def matched(self, ours: Measurement, theirs: Measurement) -> tuple[Measurement, Measurement]:
        """Both with the scores of the epochs after which they are equally good on familiar viewpoints of validation objects."""
        runs = ours, theirs
        epochs = matched_epochs(*[_curve(m) for m in runs])
        found = []
        for run, epoch in zip(runs, epochs, strict=True):
            scores = {f"matched {kind}": run.scores[f"{kind} after {epoch + 1}"] for kind in KINDS}
            found.append(replace(run, scores={**run.scores, **scores}))
        return found[0], found[1]

    def claims(self) -> Sequence[Claim]:
        """Novel viewpoints when matched, with the familiar ones beside them as a check; both without matching."""
        claims = []
        for part in (f"{name}-{viewpoint}" for name in ("solids", "smallnorb") for viewpoint in VIEWPOINTS):
            name, _, viewpoint = part.partition("-")
            on = f"novel {viewpoint}s of {name}"
            claims.append(Claim(f"accuracy on {on}, matched on familiar ones", "matched novel", part=part))
            what = f"accuracy on familiar {viewpoint}s of {name} where they were matched"
            claims.append(Claim(what, "matched familiar", part=part, is_main=False))
            claims.append(Claim(f"accuracy on {on}, each trained to its end", "novel", part=part, is_main=False))
            what = f"accuracy on familiar {viewpoint}s of {name}, each trained to its end"
            claims.append(Claim(what, "familiar", part=part, is_main=False))
        return claims

    def notes(self) -> Sequence[str]:
        """How networks are matched."""
        return [
            f"Trained on a third of the viewpoints, selected on other objects from the same ones, tested on objects that are in neither: {self.views['familiar']} "
            f"familiar and {self.views['novel']} novel views of each; the object is the unit. Solids are rendered objects, not smallNORB.",
            "Two networks are matched by stopping the better one after the epoch at which its error on validation objects from familiar viewpoints was nearest to the "
            "other's lowest, so nothing was chosen on test objects; how well that worked shows in the familiar accuracy where they were matched.",
        ]

    def draw(self, measurements: Sequence[Measurement]) -> Figure:
        """A panel for each part: familiar and novel accuracy with the selected weights."""
        parts = list(dict.fromkeys(m.part for m in measurements))
        figure, axes = panels(len(parts), height=3.2)
        for panel, part in zip(axes, parts, strict=True):
            bars(panel, measurements, list(KINDS), list(KINDS), part=part)
            panel.set_ylim(0, 1.02)
            panel.set_ylabel(f"accuracy, {part}")
        return with_legend(figure, axes)


def _right(model: Network, data: Dataset) -> Scores:
    right = torch.cat([observe(model, data.view(part)).predicted for part in data.images[:].split(1024)]) == data.labels
    return Scores(right.double(), data.originals)


def _curve(measurement: Measurement) -> list[float]:
    """Validation errors after each epoch."""
    values = measurement.record["values"]
    errors: list[float] = []
    while (name := f"validation error after {len(errors) + 1}") in values:
        errors.append(float(values[name]))
    return errors


def validation_errors(trained: Trained) -> list[float]:
    """Validation error of a run after each epoch, from its metrics.csv."""
    file = trained.run / "metrics.csv"
    try:
        with file.open(newline="") as stream:
            return [float(row["validation_error"]) for row in csv.DictReader(stream)]
    except (OSError, KeyError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}") from error

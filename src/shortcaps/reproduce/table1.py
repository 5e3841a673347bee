"""The report on Table 1: the paper's figures and ours side by side, from the records alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

from shortcaps.data import DATASETS, DatasetSpec
from shortcaps.models import create_model
from shortcaps.reporting.intervals import student
from shortcaps.reporting.paired import seeds_in_words
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import COMPARED, DYNAMIC_IS_ATTENTION, OPPONENTS, PAPER_CELLS, Cell, columns
from shortcaps.reproduce.pairs import pair_runs
from shortcaps.reproduce.records import REFITTED, Record, alike
from shortcaps.reproduce.shortcuts import shortcut_sentences

REGENERATED, SHORTENED, TRIAL, LEAKY = "ʳ", "ˢ", "ᵗ", "ᵖ"
TITLE = "Table 1: test accuracy in %, the paper's and ours"


@dataclass(frozen=True)
class Ours:
    """The records of one cell: runs under the same conditions that differ in their seed.

    Attributes:
        records: The records; empty if the cell was not run.
    """

    records: tuple[Record, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy in percent."""
        return 100 * mean(record.accuracy for record in self.records)

    @property
    def marks(self) -> str:
        """Marks for what differs from the paper."""
        first = self.records[0]
        marks = (REGENERATED if first.is_replica else "") + (SHORTENED if first.shortened else "")
        marks += (TRIAL if first.trial else "") + (LEAKY if first.leaky else "")
        return marks + (REFITTED if first.refitted else "")

    @property
    def parameters(self) -> str:
        """Number of parameters, in words."""
        return f"{self.records[0].values['parameters']:,} parameters"

    @property
    def noise(self) -> float:
        """Half the 95 % interval of the mean, in percentage points.

        It includes which images happen to be in the test, and the seeds; with one seed, which says nothing about others, only the images.
        """
        intervals = [record.values["test_accuracy_interval_95"] for record in self.records]
        images = mean((100 * (high - low) / 2) ** 2 for low, high in intervals)
        count = len(self.records)
        if count == 1:
            return math.sqrt(images)
        seeds = variance(100 * record.accuracy for record in self.records) / count
        return math.sqrt(images + student(count - 1) ** 2 * seeds)

    def __str__(self) -> str:
        if not self.records:
            return ""
        spread = ""
        if len(self.records) > 1:
            spread = f" ± {100 * stdev(record.accuracy for record in self.records):.2f} ({len(self.records)} seeds)"
        return f"{self.mean:.2f}{self.marks}{spread}, {self.records[0].epochs} ep."


def ours(records: Sequence[Record], cell: Cell) -> Ours:
    """The records of a cell, under the best conditions if there are several; the others appear only in the list of records."""
    return Ours(tuple(alike(record for record in records if record.cell == cell)))


def paper_grid(records: Sequence[Record], network: str) -> Grid:
    """Header and rows: of each data set with and without shortcut, for each routing what the paper says and what we found."""
    header = ["", ""]
    for routing in published.ROUTINGS:
        header += [f"{routing}, paper", f"{routing}, ours"]
    rows = [header]
    for dataset in columns():
        for family in published.FAMILIES:
            row = [DATASETS[dataset].label, family]
            cells = [Cell(network, family, routing, dataset) for routing in published.ROUTINGS]
            if dataset not in published.DATASETS and not any(ours(records, cell).records for cell in cells):
                continue
            for cell in cells:
                row += ["" if cell.published is None else f"{cell.published:.2f}", str(ours(records, cell))]
            rows.append(row)
    return rows


def comparison_grid(records: Sequence[Record]) -> Grid:
    """Networks to compare with, beside the capsule networks with shortcut."""
    rows = [["network", "parameters (28x28)", *(DATASETS[dataset].label for dataset in columns())]]
    for network in COMPARED:
        found = (ours(records, Cell(network, None, None, dataset)) for dataset in columns())
        rows.append([network, f"{parameters(network):,}", *map(str, found)])
    for network in published.NETWORKS:
        for routing in published.ROUTINGS:
            found = (ours(records, Cell(network, "shortcut", routing, dataset)) for dataset in columns())
            count = parameters(network, routing)
            rows.append([f"{network} shortcut {routing}", f"{count:,}", *map(str, found)])
    return rows


def parameters(network: str, routing: str | None = None) -> int:
    """Number of parameters of a network on 28x28 images."""
    settings: dict[str, Any] = {} if routing is None else {"routing": routing}
    return sum(parameter.numel() for parameter in create_model(network, **settings).parameters())


def sentences(records: Sequence[Record], folder: Path) -> Iterator[str]:
    """What the records say, computed from them.

    Args:
        records: All there are.
        folder: Where the answers of the newer ones lie, from which paired differences are computed.
    """
    run = {cell: found for cell in PAPER_CELLS if (found := ours(records, cell)).records}
    yield f"{len(run)} of the paper's {len(PAPER_CELLS)} cells were run; an empty cell was not."
    if run:
        yield " ".join(_beside_the_paper(run))
        alike = sum(found.records[0].as_published for found in run.values())
        yield (
            f"{alike or 'None'} of the {len(run)} {'was' if alike < 2 else 'were'} trained by the paper's recipe and protocol for its "
            f"{published.EPOCHS} epochs and tested on the published set: otherwise what can be reached is compared, not the same training."
        )
    yield from shortcut_sentences(records, folder, folder.parent / "table2" / "table2.json")
    for (network, family), plain_name in OPPONENTS.items():
        for dataset in columns():
            plain = ours(records, Cell(plain_name, None, None, dataset))
            capsules = {
                routing: found
                for routing in published.ROUTINGS
                if (found := ours(records, Cell(network, family, routing, dataset))).records
                and plain.records
                and found.records[0].conditions == plain.records[0].conditions
            }
            if capsules:
                words = f"the {network} network {'with' if family == 'shortcut' else 'without'} shortcut"
                yield _comparison(dataset, words, capsules, plain_name, plain, folder)


def _beside_the_paper(run: dict[Cell, Ours]) -> Iterator[str]:
    """How often we reach the paper, apart for images that are not the paper's."""
    for is_replica, images in ((False, "the published images"), (True, "regenerated images")):
        tested = {cell: found for cell, found in run.items() if found.records[0].is_replica == is_replica}
        if tested:
            reached = sum(round(found.mean, 2) >= (cell.published or 0) for cell, found in tested.items())
            yield f"In {reached} of the {len(tested)} tested on {images} our mean is at least the paper's figure."


def _comparison(dataset: str, words: str, capsules: dict[str, Ours], plain_name: str, plain: Ours, folder: Path) -> str:
    """Every routing, not the best of them: that would be a choice made on the test."""
    parts = []
    for routing, found in capsules.items():
        difference = found.mean - plain.mean
        noise = math.hypot(found.noise, plain.noise)
        pair = pair_runs(found.records, plain.records, folder)
        if pair is not None:
            low, high = (100 * bound for bound in pair.result.interval)
            how = f"{pair.result.verdict}, {100 * pair.result.difference:+.2f} points, paired 95 % interval {low:+.2f} to {high:+.2f}"
            how += (
                ""
                if pair.seeds == len(found.records)
                else f" (over the {seeds_in_words(pair.seeds, each=False)} that both have)"
            )
        elif abs(difference) < 0.005:
            how = "as good"
        else:
            how = f"{abs(difference):.2f} points {'better' if difference > 0 else 'worse'}"
            how += f", {'more' if abs(difference) > noise else 'less'} than the noise of {noise:.2f}"
        parts.append(f"{routing} ({_seeds(found)}) is {how}")
    size = next(iter(capsules.values())).parameters
    return (
        f"On {DATASETS[dataset].label}, against {plain_name} ({plain.mean:.2f}, {plain.parameters}, {_seeds(plain)}) by the same recipe "
        f"and protocol, {words} ({size}): {'; '.join(parts)}."
    )


def _seeds(found: Ours) -> str:
    return seeds_in_words(len(found.records), each=False)


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader must know before quoting anything."""
    said = [
        f"The paper trained every network for {published.EPOCHS} epochs; ours says its epochs (ep.) in each cell. ± is the standard "
        "deviation over seeds. The command of each run stands in the last table."
    ]
    trained: dict[tuple[str, str], set[str]] = {}
    for record in records:
        trained.setdefault((record.recipe, _training(record)), set()).add(record.cell.routing or record.cell.network)
    said += [f"Recipe {name} ({', '.join(sorted(who))}): {how}" for (name, how), who in trained.items()]
    settings = {
        f"{record.cell.routing} with {', '.join(f'{name} {value:g}' for name, value in changed.items())}"
        for record in records
        if (changed := record.manifest.recipe.routing_settings)
    }
    if settings:
        said.append(f"Settings of the routings that differ from their defaults: {'; '.join(sorted(settings))}.")
    if any(record.cell.routing for record in records):
        said.append(
            "The paper's λ (sharpness) is 0.1 for fuzzy routing, our default 1; EM as published has temperature 1, our default too."
        )
    if {"dynamic", "attention"} <= {record.cell.routing for record in records if record.family == "sequential"}:
        said.append(f"Without shortcut: {DYNAMIC_IS_ATTENTION[:1].lower()}{DYNAMIC_IS_ATTENTION[1:]}")
    said.append(
        "Intervals are Wilson's, 95 %, for test images as a sample; where several show one digit (affNIST) or one object (smallNORB, "
        "solids), for as many independent images as the spread between digits or objects says. Noise is half such an interval of a "
        "difference, as if the two had been tested on different images, which is never too sure; with one seed it is that of the "
        "images alone, and what another seed would change comes on top."
    )
    marks = [
        (
            SHORTENED,
            any(record.shortened for record in records),
            "shortened: fewer epochs than the paper's, or not all images.",
        ),
        (
            TRIAL,
            any(record.trial for record in records),
            "shortened further: fewer epochs than its recipe has, or not all images.",
        ),
        (
            REGENERATED,
            any(record.is_replica for record in records),
            " ".join(_notes(record.dataset for record in records if record.is_replica)),
        ),
        (
            LEAKY,
            any(record.leaky for record in records),
            "the paper's protocol: the choice of weights saw what the test is like.",
        ),
        (
            REFITTED,
            any(record.refitted for record in records),
            "trained on the validation images as well (--refit), by settings chosen before.",
        ),
    ]
    said += [f"{mark} {meaning[:1].lower()}{meaning[1:]}" for mark, is_there, meaning in marks if is_there]
    stand_ins = (record.dataset for record in records if record.dataset.stand_in_for)
    said += [f"{note.removesuffix('.')}; the paper has no figures for them." for note in _notes(stand_ins)]
    return said


def _notes(specs: Iterable[DatasetSpec]) -> list[str]:
    """What their specs have to say, each thing once."""
    return list(dict.fromkeys(note for spec in specs for note in spec.notes))


def _training(record: Record) -> str:
    """How a record was trained, but for its epochs and routing, which stand elsewhere."""
    recipe = record.manifest.recipe
    how = f", weights averaged with decay {recipe.averaging:g}" if recipe.averaging else ""
    how += f", weight decay {recipe.weight_decay:g}" if recipe.weight_decay else ""
    how += "" if recipe.optimizer == "adam" else f", {recipe.optimizer}"
    placement = (
        "affNIST's training digits are placed anywhere on the background; the paper shifts them within 5 px."
        if recipe.placement == "anywhere"
        else "affNIST's training digits are shifted within 5 px, as in the paper."
    )
    return (
        f"batch {recipe.batch_size}, learning rate {recipe.lr:g} ({recipe.schedule}), {recipe.loss} "
        f"loss{how}{'' if record.precision == '32-true' else f', {record.precision}'}. {placement}"
    )


def record_grid(records: Sequence[Record]) -> Grid:
    """A table of all records."""
    rows = [
        [
            "cell",
            "seed",
            "epochs",
            "accuracy",
            "95 % interval",
            "test images",
            "parameters",
            "minutes",
            "commit",
            "command",
        ]
    ]
    for record in records:
        v = record.values
        low, high = v["test_accuracy_interval_95"]
        rows.append(
            [
                record.cell.name,
                str(v["seed"]),
                str(v["epochs"]),
                f"{100 * record.accuracy:.2f}",
                f"{100 * low:.2f} – {100 * high:.2f}",
                f"{v['test_images']:,}{' (regenerated)' if record.is_replica else ''}",
                f"{v['parameters']:,}",
                f"{v['training_seconds'] / 60:.0f}",
                ", ".join(record.commits),
                f"`{v['command']}`",
            ]
        )
    return rows


def write_table1(records: Sequence[Record], folder: Path) -> tuple[Path, Path]:
    """Write report.md and report.html next to the records."""
    parts: list[tuple[str, Grid | str]] = [
        (f"The {network} network", paper_grid(records, network)) for network in published.NETWORKS
    ]
    parts.append(("Beside networks of other kinds, under the same protocol", comparison_grid(records)))
    parts.append(("Records", record_grid(records)))
    return write_report(
        folder,
        "report",
        title=TITLE,
        command="shortcaps reproduce table1 --report-only",
        notes=notes(records),
        sentences=list(sentences(records, folder)),
        parts=parts,
    )

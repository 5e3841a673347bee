"""Compact networks beside their plain twins: one record for each run, and paired differences from the stored answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from shortcaps.data import DATASETS
from shortcaps.files import write_json
from shortcaps.models import list_models
from shortcaps.models.compact import COMPACT
from shortcaps.reporting.paired import PairedDifference, relation, seeds_in_words
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.pairs import pair_runs, paired_notes
from shortcaps.reproduce.records import REFITTED, Record, alike

DATA = ("mnist", "affnist", "fashion-mnist", "cifar10")
TITLE = "Compact networks beside plain ones of their size"


@dataclass(frozen=True)
class Comparison:
    """One network against another on the same test images, as paired.json holds it.

    Attributes:
        network: The network with capsules.
        twin: The one without: its plain twin, or a plain CNN of its size.
        dataset: What both were tested on.
        accuracy: Of the network, mean over seeds, as a fraction.
        twin_accuracy: Of the twin.
        difference: The first minus the second.
        difference_interval: 95 % interval of the difference: paired by image, with digits or objects as clusters, and seeds.
        seeds: How many runs of each.
        refitted: Whether both were trained on the validation images as well. In tables and records; paired.json keeps to the fields it always had.
    """

    network: str
    twin: str
    dataset: str
    accuracy: float
    twin_accuracy: float
    difference: float
    difference_interval: tuple[float, float]
    seeds: int
    refitted: bool = False

    def to_json(self) -> dict[str, Any]:
        """As paired.json has it."""
        return {name: value for name, value in asdict(self).items() if name != "refitted"}

    @property
    def label(self) -> str:
        """The data set, for tables, with a mark where it belongs."""
        return DATASETS[self.dataset].label + (REFITTED if self.refitted else "")

    @property
    def verdict(self) -> str:
        """`ahead`, `behind`, or `not told apart` where the interval takes in zero."""
        return PairedDifference(self.difference, self.difference_interval).verdict

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.difference_interval)
        seeds = seeds_in_words(self.seeds)
        return (
            f"On {self.label} {self.network} ({self.accuracy:.2%}) is "
            f"{relation(self.verdict)} {self.twin} ({self.twin_accuracy:.2%}): {100 * self.difference:+.2f} points, "
            f"95 % interval {low:+.2f} to {high:+.2f}, {seeds}."
        )


def compact_cells() -> list[Cell]:
    """Every compact network, its twin and the plain CNNs, on every data set they are compared on."""
    compact = [name for preset in COMPACT for name in (preset, f"{preset}-plain")]
    networks = [*compact, *list_models("cnn-*")]
    return [Cell(network, None, None, dataset) for network in networks for dataset in DATA]


def opponents(network: str) -> list[str]:
    """What a compact network is compared with: its twin, and the plain CNN of its size where there is one."""
    return [f"{network}-plain", *list_models(f"cnn-{network.removeprefix('compact-')}")]


def compare(records: Sequence[Record], folder: Path) -> list[Comparison]:
    """All comparisons that the records allow: same data, same recipe but for what it has by network, same seeds.

    Args:
        records: Of the networks.
        folder: Where their stored answers lie.
    """
    found = []
    for network in COMPACT:
        for dataset in dict.fromkeys(record.values["dataset"] for record in records):
            for opponent in opponents(network):
                pair = pair_runs(_runs(records, network, dataset), _runs(records, opponent, dataset), folder)
                if pair is not None:
                    difference, interval = pair.result.difference, pair.result.interval
                    accuracies = pair.accuracy, pair.other_accuracy
                    seeds, refitted = pair.seeds, pair.refitted
                    found.append(
                        Comparison(network, opponent, dataset, *accuracies, difference, interval, seeds, refitted)
                    )
    return found


def _runs(records: Iterable[Record], network: str, dataset: str) -> list[Record]:
    """The runs of a network that were not cut short."""
    return [
        record
        for record in records
        if (record.values["network"], record.values["dataset"]) == (network, dataset) and not record.trial
    ]


def accuracy_grid(records: Sequence[Record]) -> Grid:
    """Networks down, data sets across: mean and standard deviation over seeds."""
    datasets = list(dict.fromkeys(record.values["dataset"] for record in records))
    networks = sorted({record.values["network"] for record in records})
    rows = [["network", "parameters", *(DATASETS[dataset].label for dataset in datasets)]]
    for network in networks:
        cells, sizes = [], set()
        for dataset in datasets:
            runs = alike(_runs(records, network, dataset))
            sizes |= {run.values["parameters"] for run in runs}
            accuracies = [100 * run.accuracy for run in runs]
            spread = f" ± {stdev(accuracies):.2f} ({len(runs)} seeds)" if len(runs) > 1 else ""
            mark = REFITTED if runs and runs[0].refitted else ""
            cells.append(f"{mean(accuracies):.2f}{mark}{spread}" if runs else "")
        rows.append([network, " / ".join(f"{size:,}" for size in sorted(sizes)), *cells])
    return rows


def paired_grid(comparisons: Iterable[Comparison]) -> Grid:
    """A line for each comparison, in points."""
    rows = [["data set", "network", "against", "difference", "95 % interval", "verdict", "seeds"]]
    for c in comparisons:
        low, high = (100 * bound for bound in c.difference_interval)
        interval = f"{low:+.2f} to {high:+.2f}"
        rows.append([c.label, c.network, c.twin, f"{100 * c.difference:+.2f}", interval, c.verdict, str(c.seeds)])
    return rows


def write_compact(records: Sequence[Record], folder: Path) -> tuple[Path, ...]:
    """Write paired.json, report.md and report.html, from the records and the stored answers alone."""
    comparisons = compare(records, folder)
    write_json(folder / "paired.json", [comparison.to_json() for comparison in comparisons])
    notes = [
        "A twin is the same backbone with mean and linear layer instead of capsules, widened to the same number of parameters, trained by "
        "the same recipe.",
        *paired_notes(records),
    ]
    written = write_report(
        folder,
        "report",
        title=TITLE,
        command="shortcaps reproduce compact",
        notes=notes,
        sentences=[str(comparison) for comparison in comparisons],
        parts=[
            ("Accuracy in %", accuracy_grid(records)),
            ("Differences in points", paired_grid(comparisons)),
            ("Commands", [["run", "command"], *([r.file_name, f"`{r.values['command']}`"] for r in records)]),
        ],
    )
    return (folder / "paired.json", *written)

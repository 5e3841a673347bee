"""The report on Table 1: paper and ours side by side, from the records and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from shortcaps.models import BASELINES
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import STAND_IN, Cell
from shortcaps.reproduce.records import Record
from shortcaps.reproduce.tables import Grid, write_report

REGENERATED, SHORTENED, LEAKY = "ʳ", "ˢ", "ᵖ"
TITLE = "Table 1: test accuracy in %, the paper's and ours"
DATASET_NAMES = {"mnist": "MNIST", "affnist": "affNIST", "smallnorb": "smallNORB", "solids": "solids"}


@dataclass(frozen=True)
class Ours:
    """What the records say about one cell."""

    records: tuple[Record, ...]

    @property
    def mean(self) -> float:
        return 100 * mean(record.accuracy for record in self.records)

    @property
    def marks(self) -> str:
        marks = REGENERATED if any(record.regenerated for record in self.records) else ""
        marks += SHORTENED if any(record.shortened for record in self.records) else ""
        return marks + (LEAKY if any(record.values["protocol"] == "paper" for record in self.records) else "")

    @property
    def epochs(self) -> str:
        """One number, or how far they reach from seed to seed."""
        epochs = sorted({record.epochs for record in self.records})
        return str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}"

    def __str__(self) -> str:
        if not self.records:
            return ""
        spread = ""
        if len(self.records) > 1:
            spread = f" ± {100 * stdev(record.accuracy for record in self.records):.2f} ({len(self.records)} seeds)"
        return f"{self.mean:.2f}{self.marks}{spread}, {self.epochs} ep."


def ours(records: Sequence[Record], cell: Cell) -> Ours:
    return Ours(tuple(record for record in records if record.cell == cell))


def paper_grid(records: Sequence[Record], network: str) -> Grid:
    """Header and rows: of each data set with and without shortcut, for each routing what the paper says and what we found."""
    header = ["", ""]
    for routing in published.ROUTINGS:
        header += [f"{routing}, paper", f"{routing}, ours"]
    rows = [header]
    for dataset in (*published.DATASETS, STAND_IN):
        for family in published.FAMILIES:
            row = [DATASET_NAMES[dataset], family]
            cells = [Cell(network, family, routing, dataset) for routing in published.ROUTINGS]
            if dataset == STAND_IN and not any(ours(records, cell).records for cell in cells):
                continue
            for cell in cells:
                row += ["" if cell.published is None else f"{cell.published:.2f}", str(ours(records, cell))]
            rows.append(row)
    return rows


def comparison_grid(records: Sequence[Record]) -> Grid:
    """Networks without pose capsules beside the best of the capsule networks that were run in the same way."""
    datasets = (*published.DATASETS, STAND_IN)
    rows = [["network", "parameters (28x28)", *(DATASET_NAMES[dataset] for dataset in datasets)]]
    for network in BASELINES:
        found = {dataset: ours(records, Cell(network, None, None, dataset)) for dataset in datasets}
        rows.append([network, f"{parameters(network):,}", *(str(found[dataset]) for dataset in datasets)])
    for network in published.NETWORKS:
        row = [f"{network} shortcut, best routing", published.PARAMETERS[network, "shortcut"]]
        for dataset in datasets:
            cells = {
                routing: ours(records, Cell(network, "shortcut", routing, dataset)) for routing in published.ROUTINGS
            }
            run = {routing: cell for routing, cell in cells.items() if cell.records}
            best = max(run, key=lambda routing: run[routing].mean, default=None)
            row.append("" if best is None else f"{run[best]} ({best})")
        rows.append(row)
    return rows


def parameters(network: str) -> int:
    return sum(
        parameter.numel() for parameter in BASELINES[network](image_size=(28, 28), channels=1, classes=10).parameters()
    )


def sentences(records: Sequence[Record]) -> Iterator[str]:
    """What the records say, computed from them."""
    count = sum(1 for cell in _paper_cells() if ours(records, cell).records)
    yield f"{count} of the paper's {len(published.ACCURACY)} cells were run; an empty cell was not."
    better = [
        cell
        for cell in _paper_cells()
        if cell.published and (o := ours(records, cell)).records and o.mean >= cell.published
    ]
    if count:
        yield f"In {len(better)} of these {count} our mean is at least the paper's figure."
    for small, capsules in (("cnn-23k", "baseline"), ("cnn-68k", "expanded")):
        for dataset in (*published.DATASETS, STAND_IN):
            plain = ours(records, Cell(small, None, None, dataset))
            run = [
                o
                for routing in published.ROUTINGS
                if (o := ours(records, Cell(capsules, "shortcut", routing, dataset))).records
            ]
            if plain.records and run:
                best = max(o.mean for o in run)
                difference = best - plain.mean
                yield (
                    f"On {DATASET_NAMES[dataset]} the best {capsules} shortcut network is {abs(difference):.2f} points "
                    f"{'better' if difference > 0 else 'worse'} than {small} ({best:.2f} against {plain.mean:.2f})."
                )


def _paper_cells() -> list[Cell]:
    return [Cell(*key) for key in published.ACCURACY]


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader must know before quoting anything."""
    said = [
        f"The paper trained every network for {published.EPOCHS} epochs with its own recipe; ours says its epochs (ep.) in each cell."
    ]
    if any(record.regenerated for record in records):
        said.append(
            f"{REGENERATED} tested on affNIST regenerated from MNIST by its published description, not on the published set."
        )
    if any(record.shortened for record in records):
        said.append(f"{SHORTENED} shortened: fewer epochs or images than the recipe has.")
    if any(record.values["protocol"] == "paper" for record in records):
        said.append(f"{LEAKY} the paper's protocol: the choice of weights saw what the test is like.")
    if any(record.values["dataset"] == STAND_IN for record in records):
        said.append("solids are rendered objects, not smallNORB; the paper has no figures for them.")
    return said


def record_grid(records: Sequence[Record]) -> Grid:
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
                record.cell.name.replace("affnist", v["dataset"]) if record.regenerated else record.cell.name,
                str(v["seed"]),
                str(v["epochs"]),
                f"{100 * record.accuracy:.2f}",
                f"{100 * low:.2f} – {100 * high:.2f}",
                f"{v['test_images']:,}",
                f"{v['parameters']:,}",
                f"{v['training_seconds'] / 60:.0f}",
                v["commit"],
                f"`{v['command']}`",
            ]
        )
    return rows


def write_table1(records: Sequence[Record], folder: Path) -> tuple[Path, Path]:
    """report.md and report.html beside the records."""
    parts: list[tuple[str, Grid | str]] = [
        (f"The {network} network", paper_grid(records, network)) for network in published.NETWORKS
    ]
    parts.append(("Without pose capsules, under the same protocol", comparison_grid(records)))
    parts.append(("Records", record_grid(records)))
    return write_report(
        folder,
        "report",
        title=TITLE,
        command="shortcaps reproduce table1",
        notes=notes(records),
        sentences=list(sentences(records)),
        parts=parts,
    )

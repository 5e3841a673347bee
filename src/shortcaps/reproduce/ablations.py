"""What each part of a compact network is worth: variants that differ from it in one thing, with paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from shortcaps.data import DATASETS
from shortcaps.files import write_json
from shortcaps.plugins import load_plugin
from shortcaps.reporting.figures import ACCENT, FAINT, INK, as_svg, save_figure
from shortcaps.reporting.paired import seeds_in_words
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.pairs import Pair, pair_runs, paired_notes
from shortcaps.reproduce.records import Record, alike
from shortcaps.reproduce.variants import BASE, VARIANTS, variant_name

PLUGIN = "shortcaps.reproduce.variant_networks"
DATA = ("fashion-mnist", "affnist")
ROUTINGS = ("attention", "dynamic", "em")
TITLE = f"What each part of {BASE} is worth"


@dataclass(frozen=True)
class Ablation:
    """One variant on one data set.

    Attributes:
        variant: What differs from the base, in words.
        dataset: What both were tested on.
        runs: Records of the variant.
        pair: The variant against the base, on the same images and seeds; None where the base has no such runs.
    """

    variant: str
    dataset: str
    runs: Sequence[Record]
    pair: Pair | None

    @property
    def figure(self) -> str:
        """Mean in percent, with the standard deviation where there are several seeds."""
        accuracies = [100 * run.accuracy for run in self.runs]
        return f"{mean(accuracies):.2f}" + (f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else "")

    def __str__(self) -> str:
        assert self.pair is not None, "a sentence is made of pairs only"
        result, label = self.pair.result, DATASETS[self.dataset].label
        low, high = (100 * bound for bound in result.interval)
        return (
            f"On {label} {BASE} with {self.variant} ({self.pair.accuracy:.2%}) is {result.relation} {BASE} itself "
            f"({self.pair.other_accuracy:.2%}): {100 * result.difference:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}, "
            f"{seeds_in_words(self.pair.seeds)}."
        )


def variants() -> dict[str, tuple[str, str | None]]:
    """What differs, in words, with the network and the routing of each variant."""
    routed = {f"{routing} routing": (BASE, routing) for routing in ROUTINGS}
    return routed | {words: (variant_name(name), None) for name, (words, _) in VARIANTS.items()}


def ablation_cells() -> list[Cell]:
    """The base and all variants, on every data set; the variants are known by name from then on."""
    load_plugin(PLUGIN)
    networks = [(BASE, None), *variants().values()]
    return [Cell(network, None, routing, dataset) for dataset in DATA for network, routing in networks]


def ablate(records: Sequence[Record], folder: Path) -> list[Ablation]:
    """Every variant that has records, against the base.

    Args:
        records: Of base and variants.
        folder: Where their stored answers lie.
    """
    found = []
    for dataset in dict.fromkeys(record.values["dataset"] for record in records):
        base = _runs(records, BASE, None, dataset)
        for words, (network, routing) in variants().items():
            runs = _runs(records, network, routing, dataset)
            if runs:
                found.append(Ablation(words, dataset, alike(runs), pair_runs(runs, base, folder)))
    return found


def _runs(records: Iterable[Record], network: str, routing: str | None, dataset: str) -> list[Record]:
    wanted = network, routing, dataset
    return [r for r in records if (r.values["network"], r.values["routing"], r.values["dataset"]) == wanted]


def ablation_grid(records: Sequence[Record], ablations: Sequence[Ablation]) -> Grid:
    """A line for each variant: accuracy and paired difference on every data set."""
    datasets = list(dict.fromkeys(record.values["dataset"] for record in records))
    header = ["variant", "parameters"]
    for dataset in datasets:
        header += [DATASETS[dataset].label, "difference, 95 % interval"]
    rows = [header]
    by_variant = {(a.variant, a.dataset): a for a in ablations}
    itself = {dataset: alike(_runs(records, BASE, None, dataset)) for dataset in datasets}
    by_variant |= {("as it is", d): Ablation("as it is", d, runs, None) for d, runs in itself.items() if runs}
    for words in ("as it is", *variants()):
        entries = [by_variant.get((words, dataset)) for dataset in datasets]
        sizes = {run.values["parameters"] for entry in entries if entry for run in entry.runs}
        if not sizes:
            continue
        row = [words, " / ".join(f"{size:,}" for size in sorted(sizes))]
        for entry in entries:
            row += [entry.figure if entry else "", _difference(entry.pair) if entry and entry.pair else ""]
        rows.append(row)
    return rows


def _difference(pair: Pair) -> str:
    low, high = (100 * bound for bound in pair.result.interval)
    return f"{100 * pair.result.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def draw_ablations(ablations: Sequence[Ablation]) -> Figure:
    """Differences to the base in points, with their intervals; a panel for each data set."""
    datasets = list(dict.fromkeys(a.dataset for a in ablations if a.pair)) or [""]
    words = list(dict.fromkeys(a.variant for a in ablations if a.pair))
    figure = Figure(figsize=(3.2 + 3.2 * len(datasets), 0.6 + 0.3 * max(1, len(words))))
    panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
    for panel, dataset in zip(panels, datasets, strict=True):
        panel.axvline(0, color=FAINT, linewidth=1)
        for a in ablations:
            if a.pair is None or a.dataset != dataset:
                continue
            difference = 100 * a.pair.result.difference
            low, high = (100 * bound for bound in a.pair.result.interval)
            colour = INK if a.pair.result.verdict == "not told apart" else ACCENT
            place = words.index(a.variant)
            panel.plot([low, high], [place, place], color=colour, linewidth=1.5)
            panel.plot(difference, place, "o", color=colour, markersize=4)
        panel.set_title(DATASETS[dataset].label if dataset else "no pairs yet", fontsize=9)
        panel.set_xlabel("points against the network as it is")
    panels[0].set_yticks(range(len(words)), words)
    panels[0].invert_yaxis()
    return figure


def _precision(records: Sequence[Record]) -> str:
    """Where it is not single precision, e.g. `, bf16-mixed`."""
    return "".join(f", {name}" for name in sorted({record.precision for record in records} - {"32-true"}))


def write_ablations(records: Sequence[Record], folder: Path) -> tuple[Path, ...]:
    """Write ablations.json, ablations.png and the report, from the records and the stored answers alone."""
    ablations = ablate(records, folder)
    paired = [a for a in ablations if a.pair is not None]
    values = [
        {
            "variant": a.variant,
            "network": a.runs[0].values["network"],
            "routing": a.runs[0].values["routing"],
            "dataset": a.dataset,
            "accuracy": a.pair.accuracy,
            "base_accuracy": a.pair.other_accuracy,
            "difference": a.pair.result.difference,
            "difference_interval": a.pair.result.interval,
            "seeds": a.pair.seeds,
        }
        for a in paired
        if a.pair is not None
    ]
    write_json(folder / "ablations.json", values)
    figure = draw_ablations(ablations)
    save_figure(figure, folder / "report.png")
    epochs = sorted({record.epochs for record in records})
    notes = [
        f"Each variant differs from {BASE} in one thing (attention and dynamic also in the loss that the recipe has for them); widths stay, so the parameters differ a little.",
        f"Trained for {' or '.join(map(str, epochs))} epochs by the recipe compact{_precision(records)}; losses and settings by routing are the recipe's.",
        "Dynamic routing of two iterations from scratch is attention routing, since the scores that it adds to begin at zero: the two have the same figures.",
        *paired_notes(records),
    ]
    written = write_report(
        folder,
        "report",
        title=TITLE,
        command="shortcaps reproduce ablations",
        notes=notes,
        sentences=[str(a) for a in paired],
        parts=[("Accuracy in %, and differences in points", ablation_grid(records, ablations))],
        pictures={"Differences to the network as it is": as_svg(figure)},
    )
    return (*written, folder / "ablations.json", folder / "report.png")

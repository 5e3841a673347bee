"""What each part of a compact network is worth: variants that differ from it in one thing, with paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shortcaps.data import DATASETS
from shortcaps.files import write_json
from shortcaps.models.compact import COMPACT
from shortcaps.plugins import load_plugin
from shortcaps.reporting.figures import ACCENT, FAINT, INK, as_svg, save_figure
from shortcaps.reporting.paired import seeds_in_words
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce.cells import DYNAMIC_IS_ATTENTION, Cell
from shortcaps.reproduce.pairs import Pair, pair_runs, paired_notes
from shortcaps.reproduce.records import Record, alike
from shortcaps.reproduce.variants import variants_of

PLUGIN = "shortcaps.reproduce.variant_networks"
DATA = ("fashion-mnist", "affnist")
ROUTINGS = ("attention", "dynamic", "em")
TITLE = "What each part of a compact network is worth"


@dataclass(frozen=True)
class Ablation:
    """One variant on one data set.

    Attributes:
        base: The network that it is a variant of.
        variant: What differs from the base, in words.
        dataset: What both were tested on.
        runs: Records of the variant.
        pair: The variant against the base, on the same images and seeds; None where the base has no such runs.
    """

    base: str
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
            f"On {label} {self.base} with {self.variant} ({self.pair.accuracy:.2%}) is {result.relation} {self.base} itself "
            f"({self.pair.other_accuracy:.2%}): {100 * result.difference:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}, "
            f"{seeds_in_words(self.pair.seeds)}."
        )


def variants(base: str) -> dict[str, tuple[str, str | None]]:
    """What differs, in words, with the network and the routing of each variant.

    Args:
        base: Name of a compact network.
    """
    routed = {f"{routing} routing": (base, routing) for routing in ROUTINGS}
    return routed | {variant.words: (variant.network, None) for variant in variants_of(base)}


def ablation_cells() -> list[Cell]:
    """The compact networks and all their variants, on every data set; the variants are known by name from then on."""
    load_plugin(PLUGIN)
    return [
        Cell(network, None, routing, dataset)
        for base in COMPACT
        for dataset in DATA
        for network, routing in [(base, None), *variants(base).values()]
    ]


def ablate(records: Sequence[Record], folder: Path) -> list[Ablation]:
    """Every variant that has records, against its base.

    Args:
        records: Of bases and variants.
        folder: Where their stored answers lie.
    """
    found = []
    for base in COMPACT:
        for dataset in _datasets(records):
            as_it_is = _runs(records, base, None, dataset)
            for words, (network, routing) in variants(base).items():
                runs = _runs(records, network, routing, dataset)
                if runs:
                    found.append(Ablation(base, words, dataset, alike(runs), pair_runs(runs, as_it_is, folder)))
    return found


def _datasets(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(record.values["dataset"] for record in records))


def _runs(records: Iterable[Record], network: str, routing: str | None, dataset: str) -> list[Record]:
    wanted = network, routing, dataset
    return [r for r in records if (r.values["network"], r.values["routing"], r.values["dataset"]) == wanted]


def ablation_grid(base: str, records: Sequence[Record], ablations: Sequence[Ablation]) -> Grid:
    """A line for each variant of a network: accuracy and paired difference on every data set.

    Args:
        base: The network.
        records: Of all networks.
        ablations: Of all networks.
    """
    datasets = _datasets(records)
    header = ["variant", "parameters"]
    for dataset in datasets:
        header += [DATASETS[dataset].label, "difference, 95 % interval"]
    rows = [header]
    by_variant = {(a.variant, a.dataset): a for a in ablations if a.base == base}
    itself = {dataset: alike(_runs(records, base, None, dataset)) for dataset in datasets}
    by_variant |= {("as it is", d): Ablation(base, "as it is", d, runs, None) for d, runs in itself.items() if runs}
    for words in ("as it is", *variants(base)):
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
    """Differences to the network as it is in points, with their intervals: a row for each network, a panel for each data set."""
    paired = [a for a in ablations if a.pair is not None]
    bases = list(dict.fromkeys(a.base for a in paired)) or ["no pairs yet"]
    datasets = list(dict.fromkeys(a.dataset for a in paired)) or [""]
    words = [list(dict.fromkeys(a.variant for a in paired if a.base == base)) for base in bases]
    heights = [2 + len(lines) for lines in words]
    figure = Figure(figsize=(3.2 + 3.2 * len(datasets), 0.3 * sum(heights)))
    panels = figure.subplots(
        len(bases), len(datasets), sharex="col", sharey="row", squeeze=False, height_ratios=heights
    )
    for row, base, lines in zip(panels, bases, words, strict=True):
        for panel, dataset in zip(row, datasets, strict=True):
            panel.axvline(0, color=FAINT, linewidth=1)
            panel.set_title(f"{base}, {DATASETS[dataset].label}" if dataset else base, fontsize=9)
            for a in paired:
                if (a.base, a.dataset) == (base, dataset) and a.pair is not None:
                    _draw_difference(panel, a.pair, lines.index(a.variant))
        row[0].set_yticks(range(len(lines)), lines)
        row[0].invert_yaxis()
    for panel in panels[-1]:
        panel.set_xlabel("points against the network as it is")
    return figure


def _draw_difference(panel: Axes, pair: Pair, place: int) -> None:
    low, high = (100 * bound for bound in pair.result.interval)
    colour = INK if pair.result.verdict == "not told apart" else ACCENT
    panel.plot([low, high], [place, place], color=colour, linewidth=1.5)
    panel.plot(100 * pair.result.difference, place, "o", color=colour, markersize=4)


def _precision(records: Sequence[Record]) -> str:
    """Where it is not single precision, e.g. `, bf16-mixed`."""
    return "".join(f", {name}" for name in sorted({record.precision for record in records} - {"32-true"}))


def write_ablations(records: Sequence[Record], folder: Path) -> tuple[Path, ...]:
    """Write ablations.json, the plot and the report, from the records and the stored answers alone."""
    ablations = ablate(records, folder)
    paired = [a for a in ablations if a.pair is not None]
    values = [
        {
            "base": a.base,
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
    bases = [base for base in COMPACT if any(a.base == base for a in ablations)]
    figure = draw_ablations(ablations)
    save_figure(figure, folder / "report.png")
    epochs = sorted({record.epochs for record in records})
    # With the optimizer, as a recipe may have had another one when the records were made.
    recipes = sorted({f"{record.recipe} (optimizer {record.manifest.recipe.optimizer})" for record in records})
    notes = [
        "Each variant differs from its network in one thing (attention and dynamic also in the loss that the recipe has for them); widths stay, so the parameters differ a little.",
        f"Trained for {' or '.join(map(str, epochs))} epochs by the recipe {' and '.join(recipes)}{_precision(records)}; losses and settings by routing are the recipe's.",
        DYNAMIC_IS_ATTENTION,
        *paired_notes(records),
    ]
    written = write_report(
        folder,
        "report",
        title=TITLE,
        command="shortcaps reproduce ablations",
        notes=notes,
        sentences=[str(a) for a in paired],
        parts=[
            (f"{base}: accuracy in %, and differences in points", ablation_grid(base, records, ablations))
            for base in bases
        ],
        pictures={"Differences to the network as it is": as_svg(figure)},
    )
    return (*written, folder / "ablations.json", folder / "report.png")

"""What the studies' plots share: one colour for each network, and curves with the spread of the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from shortcaps.studies.measured import Measurement
from shortcaps.studies.networks import is_plain
from shortcaps.studies.study import SIGMOID_TWIN, STANDARD_NETWORKS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OF_STANDARD = dict(
    zip(
        (*STANDARD_NETWORKS, SIGMOID_TWIN),
        ("#1d5fa8", "#7aa6d8", "#0b7a75", "#e8963e", "#d1495b", "#8a5a83"),
        strict=True,
    )
)
_CAPSULES, _PLAIN = ("#4fb3a9", "#33658a"), ("#b5838d", "#6d6875")


def networks_of(measurements: Iterable[Measurement]) -> list[str]:
    """Names of the networks, each once: the standard ones in their order, then others in that of the measurements."""
    named = dict.fromkeys(m.network for m in measurements)
    return [*(name for name in _OF_STANDARD if name in named), *(name for name in named if name not in _OF_STANDARD)]


def colours(networks: Sequence[str]) -> dict[str, str]:
    """A colour for each network, cool ones for capsules, warm ones for plain networks; those of the standard ones are the same in every plot."""
    others = [name for name in networks if name not in _OF_STANDARD]
    capsules = [name for name in others if not is_plain(name)]
    plain = [name for name in others if is_plain(name)]
    found = {name: _CAPSULES[n % len(_CAPSULES)] for n, name in enumerate(capsules)}
    found |= {name: _PLAIN[n % len(_PLAIN)] for n, name in enumerate(plain)}
    return {name: _OF_STANDARD.get(name) or found[name] for name in networks}


def panels(count: int, *, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, three in a row."""
    from matplotlib.figure import Figure

    from shortcaps.reporting import figures  # sets the style  # noqa: F401

    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.6 * columns, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    return figure, axes


def curves(
    axes: Axes, measurements: Sequence[Measurement], amounts: Sequence[float], names: Sequence[str], part: str = ""
) -> None:
    """A line for each network: means over seeds, and each seed faintly.

    Args:
        axes: Where to draw.
        measurements: Of all networks.
        amounts: Places on the horizontal axis.
        names: For each the name of a value.
        part: The part of the study.
    """
    chosen = [m for m in measurements if m.part == part and all(name in m.values for name in names)]
    colour = colours(networks_of(measurements))
    for network in networks_of(chosen):
        seeds = [[m.values[name] for name in names] for m in chosen if m.network == network]
        for line in seeds if len(seeds) > 1 else []:
            axes.plot(amounts, line, color=colour[network], alpha=0.2, linewidth=0.8)
        middle = [mean(values) for values in zip(*seeds, strict=True)]
        axes.plot(amounts, middle, color=colour[network], marker="o", markersize=3, label=network)


def bars(
    axes: Axes, measurements: Sequence[Measurement], names: Sequence[str], labels: Sequence[str], part: str = ""
) -> None:
    """A group of bars for each name, a bar for each network that has any of them."""
    chosen = [m for m in measurements if m.part == part and any(name in m.values for name in names)]
    networks = networks_of(chosen)
    colour, width = colours(networks_of(measurements)), min(0.4, 0.8 / max(1, len(networks)))
    for number, network in enumerate(networks):
        for place, name in enumerate(names):
            values = [m.values[name] for m in chosen if m.network == network and name in m.values]
            if values:
                left = place + (number - (len(networks) - 1) / 2) * width
                label = network if place == 0 else None
                axes.bar(left, mean(values), width * 0.92, color=colour[network], label=label)
                axes.plot([left] * len(values), values, ".", color="#1d2733", markersize=2)
    axes.set_xticks(range(len(names)), labels)


def with_legend(figure: Figure, axes: Sequence[Axes]) -> Figure:
    """The figure with one legend for all its panels, below them."""
    entries: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(str(label), handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, frameon=False)
    return figure

"""Plots of how time and memory grow."""

from __future__ import annotations

import math
from pathlib import Path

from shortcaps.bench.scaling import Scaling

COLOURS = {"dense": "#b0413e", "factored": "#8a7b3c", "fused": "#2b6cb0", "compiled": "#4b8f5b"}


def plot_scaling(found: list[Scaling], target: Path) -> None:
    """Write a figure with a column for each quantity: time above, memory below, on logarithmic axes, with the fitted exponents."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    from shortcaps.reporting.figures import save_figure

    quantities = list(dict.fromkeys(scaling.quantity for scaling in found))
    figure = Figure(figsize=(3.4 * len(quantities), 6))
    axes = figure.subplots(2, len(quantities), squeeze=False)
    for column, quantity in enumerate(quantities):
        for scaling in (scaling for scaling in found if scaling.quantity == quantity):
            colour = COLOURS.get(scaling.path)
            label = f"{scaling.path}: ∝ n^{scaling.time_exponent:.2f}"
            axes[0, column].plot(scaling.values, scaling.step_ms, "o-", color=colour, label=label)
            held = [
                (value, memory / 1e6) for value, memory in zip(scaling.values, scaling.memory, strict=True) if memory
            ]
            if held and scaling.memory_exponent is not None and not math.isnan(scaling.memory_exponent):
                label = f"{scaling.path}: ∝ n^{scaling.memory_exponent:.2f}"
                axes[1, column].plot(*zip(*held, strict=True), "o-", color=colour, label=label)
        for row, unit in enumerate(("training step, ms", "peak memory, MB")):
            axis = axes[row, column]
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            values = next(scaling.values for scaling in found if scaling.quantity == quantity)
            axis.set_xticks(values, [str(value) for value in values])
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8, frameon=False)
            axis.set_ylabel(unit if column == 0 else "")
        axes[1, column].set_xlabel(quantity.replace("_", " "))
    case = found[0].case
    figure.suptitle(f"{case.network} {case.family} network, {case.routing} routing, batch {case.batch}", fontsize=11)
    figure.tight_layout()
    save_figure(figure, target)

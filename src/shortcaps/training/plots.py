"""The plots of a report, as inline SVG."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from shortcaps.inference.evaluate import Evaluation
from shortcaps.reporting.figures import ACCENT, FAINT, INK, SECOND, as_it_is, as_svg


def curves(rows: list[dict[str, Any]]) -> str:
    """Training loss and errors by epoch, from the rows of metrics.csv."""
    figure = Figure(figsize=(8.2, 2.7))
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) <= 30 else None
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [row["loss"] for row in rows], color=ACCENT, marker=marker, markersize=4)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    training = [100 * (1 - row["accuracy"]) for row in rows]
    errors = [row["validation_error"] for row in rows]
    validation = [] if None in errors else [100 * error for error in errors]
    right.plot(epochs, training, color=FAINT, marker=marker, markersize=4, label="training")
    if validation:
        right.plot(epochs, validation, color=SECOND, marker=marker, markersize=4, label="validation")
    right.set(xlabel="epoch", ylabel="error (%)")
    if max(training + validation) > 0:  # no logarithm is of an error that was never made
        right.set_yscale("log")
        right.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        right.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        right.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.2)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    figure.tight_layout(w_pad=3)
    return as_svg(figure)


def confusion(evaluation: Evaluation) -> str:
    """The confusion matrix; mistakes are coloured, correct answers only counted."""
    counts = evaluation.confusion.numpy()
    size = len(counts)
    mistakes = counts.astype(float).copy()
    np.fill_diagonal(mistakes, 0)
    figure = Figure(figsize=(min(7.5, 1.6 + 0.48 * size), min(7, 1.2 + 0.44 * size)))
    axes = figure.subplots()
    axes.imshow(mistakes, cmap="Reds", vmin=0, vmax=max(1.0, mistakes.max() * 1.3))
    if size <= 20:
        for true in range(size):
            for said in range(size):
                if counts[true, said]:
                    right = true == said
                    axes.text(
                        said,
                        true,
                        str(counts[true, said]),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color=FAINT if right else INK,
                    )
    names = [as_it_is(name[:12]) for name in evaluation.class_names]
    axes.set(xlabel="answer", ylabel="truth", xticks=range(size), yticks=range(size))
    long = max(map(len, names)) > 2
    axes.set_xticklabels(names, rotation=45 if long else 0, ha="right" if long else "center")
    axes.set_yticklabels(names)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return as_svg(figure)

"""Plots of reports."""

from __future__ import annotations

from matplotlib.figure import Figure

from shortcaps.reporting.figures import as_svg


def plot() -> Figure:
    figure = Figure()
    figure.subplots().plot([1, 2, 3], marker="o")
    return figure


def test_a_figure_drawn_again_gives_the_same_text() -> None:
    assert as_svg(plot()) == as_svg(plot())
    assert "<dc:date>" not in as_svg(plot())

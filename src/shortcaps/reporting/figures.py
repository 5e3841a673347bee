"""The style of plots, in reports and in files."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

matplotlib.use("Agg")
INK, ACCENT, SECOND, FAINT = "#1d2733", "#0b7a75", "#d1495b", "#8a94a0"
matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "shortcaps",
    }
)


def as_it_is(text: str) -> str:
    """Text for matplotlib, which would otherwise take anything between two dollar signs for a formula."""
    return text.replace("$", r"\$")


def as_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element, for a page; the same figure gives the same text, so that reports change only with what they report."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, target: Path) -> None:
    """Write the figure as a PNG on white, atomically."""
    from shortcaps.files import atomic_write

    with atomic_write(target) as file:
        figure.savefig(file, format="png", dpi=140, bbox_inches="tight", facecolor="white")

"""Draws the pictures of the concept pages with the library itself: `python docs/images/make.py`, some seconds."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image, ImageDraw

import shortcaps
from shortcaps.inference.explain import routing_maps
from shortcaps.inference.predict import Predictor

HERE = Path(__file__).parent
TEAL, RED, GREY, INK = "#0b7a75", "#d1495b", "#9aa5ae", "#1d2733"
# Fixed, so that the same drawing is the same file.
plt.rcParams.update(
    {"font.size": 10, "svg.hashsalt": "shortcaps", "axes.spines.top": False, "axes.spines.right": False}
)


def save(figure: Figure, name: str) -> None:
    """Write a figure beside this file, and forget it."""
    metadata = {"Date": None} if name.endswith(".svg") else {}
    figure.savefig(HERE / name, bbox_inches="tight", metadata=metadata, dpi=120)
    plt.close(figure)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    """Draw an arrow."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=1.2))


def box(axes: Axes, x: float, y: float, text: str, colour: str = TEAL, width: float = 1.5) -> None:
    """Draw a box with a text, by its middle."""
    shape = FancyBboxPatch(
        (x - width / 2, y - 0.32), width, 0.64, boxstyle="round,pad=0.03", facecolor="white", edgecolor=colour
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def bare(axes: Axes) -> None:
    """Leave nothing but what was drawn."""
    axes.set_aspect("equal")
    axes.axis("off")


def votes() -> None:
    """How a pose becomes a vote; and votes in the plane, as 2 of their 16 numbers."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3), width_ratios=[1.5, 1, 1])
    for n, name in enumerate(("an eye", "the other", "a mouth")):
        box(left, 0, 2 - n, f"{name}: $p_{n + 1}$", GREY)
        arrow(left, (0.8, 2 - n), (2.2, 1 + 0.12 * (1 - n)))
        left.text(1.5, 1.78 - 0.68 * n, f"$T_{n + 1}$", fontsize=9, ha="center")
    box(left, 3, 1, "a face: $g$")
    left.set(xlim=(-0.9, 3.9), ylim=(-0.6, 2.6), title="each votes for the pose of the whole")
    bare(left)
    random = np.random.default_rng(3)
    for axes, agree in ((middle, 16), (right, 3)):
        near, far = random.normal([0.6, 0.4], 0.12, (agree, 2)), random.uniform(-2, 2, (20 - agree, 2))
        axes.scatter(*near.T, color=TEAL, s=18)
        axes.scatter(*far.T, color=RED, s=18, alpha=0.7)
        axes.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), xticks=[], yticks=[])
        axes.set_title("many agree: present" if agree > 10 else "nobody agrees: absent")
    save(figure, "votes.svg")


def iterations() -> None:
    """Coefficients of inputs that agree and of inputs that do not, by routing and number of iterations."""
    torch.manual_seed(0)
    votes = torch.randn(1, 30, 5, 4, 4)
    votes[0, :20, 0] = torch.randn(4, 4) + 0.15 * torch.randn(20, 4, 4)
    figure, panels = plt.subplots(4, 3, figsize=(9, 6.4), sharex=True)
    for row, name in zip(panels, ("attention", "dynamic", "fuzzy", "em"), strict=True):
        for panel, number in zip(row, (1, 2, 3), strict=True):
            found = shortcaps.route(votes, routing=name, iterations=number, keep_coefficients=True)
            assert found.coefficients is not None
            shares = found.coefficients[0, :, 0] / found.coefficients[0, :, 0].mean()
            panel.bar(range(30), shares.tolist(), color=[TEAL] * 20 + [RED] * 10)
            panel.axhline(1, color=GREY, linewidth=0.8)
            panel.set(xticks=[], ylim=(0, 1.8))
        row[0].set_ylabel(name)
    for panel, number in zip(panels[0], (1, 2, 3), strict=True):
        panel.set_title(f"{number} iteration{'s' if number > 1 else ''}")
    figure.supxlabel("inputs: the green ones agree, the red ones do not")
    figure.supylabel("coefficient, 1 is the mean")
    figure.tight_layout()
    save(figure, "iterations.png")


def shortcut() -> None:
    """Sequential routing, and shortcuts to the classes."""
    figure, panels = plt.subplots(2, 1, figsize=(9, 4.6))
    for panel, has_shortcuts in zip(panels, (False, True), strict=True):
        names = ["image", "stem", "capsules", "capsules", "capsules"]
        for n, name in enumerate(names):
            box(panel, 2.2 * n, 0, name, GREY if n < 2 else TEAL)
        box(panel, 11, 1.5 if has_shortcuts else 0, "classes", INK)
        for n in range(4):
            routed = not has_shortcuts and n >= 2
            arrow(panel, (2.2 * n + 0.8, 0), (2.2 * n + 1.4, 0), RED if routed else INK)
        if has_shortcuts:
            for n in (2, 3, 4):
                arrow(panel, (2.2 * n, 0.38), (10.15, 1.32 + 0.14 * (4 - n)), RED)
        else:
            arrow(panel, (9.6, 0), (10.2, 0), RED)
        panel.set(xlim=(-1, 12), ylim=(-0.7, 2.1 if has_shortcuts else 0.9))
        panel.set_title("with shortcuts" if has_shortcuts else "sequential", loc="left")
        bare(panel)
    figure.text(0.13, 0.02, "red: routing by agreement; dark: local transformations", fontsize=9)
    save(figure, "shortcut.svg")


def maps() -> None:
    """Where the class of a drawn three takes its votes from."""
    points = [
        (0.32, 0.27),
        (0.42, 0.19),
        (0.56, 0.18),
        (0.66, 0.26),
        (0.66, 0.38),
        (0.56, 0.46),
        (0.45, 0.48),
        (0.58, 0.5),
    ]
    points += [(0.69, 0.58), (0.70, 0.71), (0.60, 0.81), (0.45, 0.83), (0.32, 0.76)]
    picture = Image.new("L", (200, 200), "white")
    ImageDraw.Draw(picture).line([(200 * x, 200 * y) for x, y in points], fill="black", width=20, joint="curve")
    predictor = Predictor("mnist-baseline-fuzzy")
    image = predictor.preparation(picture)[None]
    found = routing_maps(predictor.model, image)
    assert predictor.class_names[int(found.classes[0])] == "3"
    figure, panels = plt.subplots(1, 3, figsize=(8, 2.7))
    panels[0].imshow(image[0, 0].numpy(), cmap="gray")
    panels[0].set_title("as the network sees it")
    for number, panel in enumerate(panels[1:]):
        block = found.over_channels()[number][0, -1]
        shown = panel.imshow(block.numpy(), cmap="RdYlGn", vmin=0, vmax=2)
        panel.set_title(f"shortcut {number + 1}, {block.shape[0]}x{block.shape[1]}")
    for panel in panels:
        panel.axis("off")
    figure.colorbar(shown, ax=panels, label="share, 1 is the mean")
    save(figure, "maps.png")


def twins() -> None:
    """Test accuracies of the compact networks and of plain ones, from their records."""
    by_network: dict[str, list[float]] = {}
    for file in sorted((HERE.parents[1] / "results" / "compact").glob("*-seed*.json")):
        record = json.loads(file.read_text())
        if record["dataset"] == "mnist":
            by_network.setdefault(record["network"], []).append(100 * record["test_accuracy"])
    figure, axes = plt.subplots(figsize=(7, 0.5 + 0.45 * len(by_network)))
    for row, (name, values) in enumerate(sorted(by_network.items())):
        has_capsules = name.startswith("compact") and not name.endswith("plain")
        axes.scatter(values, [row] * len(values), color=TEAL if has_capsules else GREY, s=30, zorder=2)
        axes.plot([np.mean(values)] * 2, [row - 0.25, row + 0.25], color=INK, linewidth=1.5)
    axes.set(
        yticks=range(len(by_network)),
        yticklabels=sorted(by_network),
        xlabel="test accuracy on MNIST (%); the line is the mean",
    )
    axes.set_ylim(-0.6, len(by_network) - 0.4)
    axes.grid(axis="x", alpha=0.3)
    save(figure, "twins.svg")


if __name__ == "__main__":
    for draw in (votes, iterations, shortcut, maps, twins):
        draw()

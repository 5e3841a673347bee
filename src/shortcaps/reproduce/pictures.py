"""The paper's pictures, from code: growth of votes and arithmetic, sample images (Fig. 4), the network itself (Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from shortcaps.data import Dataset
from shortcaps.models import PlannedNetwork
from shortcaps.reporting.figures import ACCENT, FAINT, INK, SECOND
from shortcaps.reproduce.complexity import Growth

COLOURS = {"em": "#b0413e", "fuzzy": "#0b7a75", "attention": "#2b6cb0"}


def plot_complexity(points: Sequence[Growth], per_iteration: Mapping[str, float]) -> Figure:
    """Plot how votes and arithmetic grow.

    Above, numbers in all voting tensors of a baseline network; below, arithmetic of one iteration over all of them: operations per
    number, which hardly depend on the shape, times the numbers.
    """
    figure = Figure(figsize=(8.4, 6.2))
    axes = figure.subplots(2, 2, sharex="col")
    for column, quantity in enumerate(("classes", "capsule channels")):
        own = [point for point in points if point.quantity == quantity]
        values = [point.value for point in own]
        shortcut, sequential = [point.shortcut for point in own], [point.sequential for point in own]
        above, below = axes[0, column], axes[1, column]
        above.plot(values, sequential, "s--", color=SECOND, label="without shortcut")
        above.plot(values, shortcut, "o-", color=ACCENT, label="with shortcut")
        above.set_title(f"against {quantity}", fontsize=9, loc="left")
        for routing, operations in per_iteration.items():
            if routing not in COLOURS:  # dynamic's is the same line as attention's
                continue
            below.plot(values, [operations * n for n in sequential], "s--", color=COLOURS[routing], alpha=0.55)
            below.plot(values, [operations * n for n in shortcut], "o-", color=COLOURS[routing], label=routing)
        for axis in (above, below):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(values, list(map(str, values)))
            axis.minorticks_off()
            axis.grid(color=FAINT, alpha=0.25, linewidth=0.5)
        below.set_xlabel(quantity)
    axes[0, 0].set_ylabel("numbers in the voting tensors")
    axes[1, 0].set_ylabel("operations of one iteration\n(counted for Q, times Q)")
    axes[0, 0].legend(frameon=False)
    axes[1, 0].legend(frameon=False, title="solid: with shortcut", title_fontsize=8)
    figure.align_ylabels()
    figure.tight_layout()
    return figure


def draw_samples(sets: Sequence[tuple[Dataset, Dataset]], *, columns: int = 10) -> Figure:
    """Fig. 4: for each data set a row of training images, augmented as in the paper, and a row of test images."""
    figure = Figure(figsize=(columns * 0.72 + 1.6, len(sets) * 1.75))
    axes = figure.subplots(2 * len(sets), columns, squeeze=False)
    for number, (train, test) in enumerate(sets):
        generator = torch.Generator().manual_seed(4)
        for row, (data, view, what) in enumerate(((train, train.augment, "training"), (test, test.view, "test"))):
            chosen = torch.randperm(len(data), generator=generator)[:columns]
            images = view(data.images[chosen], generator)
            line = axes[2 * number + row]
            for axis, image in zip(line, images, strict=True):
                axis.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_frame_on(False)
            line[0].set_ylabel(f"{data.label}\n{what}", rotation=0, ha="right", va="center", labelpad=8)
    figure.subplots_adjust(wspace=0.06, hspace=0.08)
    return figure


def draw_network(model: PlannedNetwork, name: str) -> Figure:
    """Fig. 2: the layers of this network with their shapes, and what routes into the class capsules."""
    plan = model.plan
    size = plan.architecture.pose
    boxes = [("images", f"{plan.channels} x {plan.image_size[0]} x {plan.image_size[1]}")]
    boxes.append(("backbone", " x ".join(map(str, plan.features))))
    first = plan.capsule_layers[0]
    boxes.append(("primary capsules", f"{first.in_channels} x {size}x{size} x {first.in_size[0]} x {first.in_size[1]}"))
    word = "local block" if model.shortcut else "capsule layer"
    for number, layer in enumerate(plan.capsule_layers, 1):
        shape = f"{layer.out_channels} x {size}x{size} x {layer.out_size[0]} x {layer.out_size[1]}"
        boxes.append((f"{word} {number}", f"{shape}\nkernel {layer.kernel[0]}, stride {layer.stride}"))

    figure = Figure(figsize=(1.75 * len(boxes) + 0.4, 4.2 if model.shortcut else 2.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.55, len(boxes) - 0.45)
    axes.set_ylim(-0.75 if not model.shortcut else -2.6, 0.85)
    axes.axis("off")
    axes.set_title(f"{name}: {model.title}", fontsize=10, y=0.9)
    for column, (name, shape) in enumerate(boxes):
        capsule = column >= 2
        _box(axes, column, 0, name, shape, ACCENT if capsule else FAINT)
        if column:
            _arrow(axes, (column - 0.57, 0), (column - 0.43, 0), INK)
    if model.shortcut:
        _draw_shortcuts(axes, model, len(boxes))
    else:
        axes.text(
            (len(boxes) + 1) / 2,
            -0.62,
            f"{model.routing.name} routing in every capsule layer, {model.routing.iterations} iterations; the last layer's are the "
            f"{plan.classes} class capsules",
            ha="center",
            fontsize=8,
            color=INK,
        )
    return figure


def _draw_shortcuts(axes: Axes, model: PlannedNetwork, columns: int) -> None:
    plan, bottom = model.plan, -2.0
    size, passes = plan.architecture.pose, plan.architecture.passes
    for number, layer in enumerate(plan.capsule_layers):
        column = 3 + number
        inputs = layer.in_channels * layer.out_size[0] * layer.out_size[1]
        _arrow(axes, (column, -0.34), (column, bottom + 0.36), ACCENT)
        axes.text(
            column + 0.05,
            -1.0,
            f"{inputs} votes for\neach class",
            fontsize=7.5,
            color=ACCENT,
            ha="left",
            va="center",
        )
        _box(
            axes,
            column,
            bottom,
            f"shortcut {number + 1}",
            f"{model.routing.name}, {model.routing.iterations} iterations",
            SECOND,
        )
        if number:
            _arrow(axes, (column - 0.57, bottom), (column - 0.43, bottom), SECOND)
    last = columns - 1
    # The last local block's output is where the class capsules begin: it enters the first shortcut.
    axes.text(
        1.95,
        bottom + 0.2,
        f"{plan.classes} class capsules, {size}x{size} poses:\nfirst those of local block {number + 1},\nthen those of shortcut {number + 1}",
        fontsize=8,
        ha="center",
        va="center",
        color=INK,
    )
    axes.text(
        1.95, bottom - 0.2, f"{passes} times through all shortcuts", fontsize=8, ha="center", va="center", color=SECOND
    )
    _arrow(axes, (2.43, bottom), (2.57, bottom), SECOND)
    axes.add_patch(
        FancyArrowPatch(
            (last, bottom - 0.34),
            (1.95, bottom - 0.34),
            connectionstyle="bar,fraction=-0.05",
            arrowstyle="-|>",
            mutation_scale=9,
            color=SECOND,
            linewidth=1,
        )
    )


def _box(axes: Axes, x: float, y: float, name: str, shape: str, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - 0.41, y - 0.32),
            0.82,
            0.64,
            boxstyle="round,pad=0,rounding_size=0.06",
            fill=False,
            edgecolor=colour,
            linewidth=1.3,
        )
    )
    axes.text(x, y + 0.12, name, ha="center", va="center", fontsize=8.5, color=INK)
    axes.text(x, y - 0.13, shape, ha="center", va="center", fontsize=7.2, color=INK)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=1, shrinkA=0, shrinkB=0)
    )

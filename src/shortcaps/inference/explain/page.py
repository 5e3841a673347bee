"""The explanation of one image: pictures in a folder, and a page that holds them all."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from shortcaps.files import atomic_write
from shortcaps.inference.explain.equivariance import EquivarianceScore
from shortcaps.inference.explain.maps import RoutingMaps, has_positions, routing_maps
from shortcaps.inference.explain.pictures import grey_picture, heat_over
from shortcaps.inference.explain.transform import TRANSFORMATIONS, UNITS, Traversal, traverse, unchanged
from shortcaps.models import Network
from shortcaps.reporting.figures import ACCENT, FAINT, INK, SECOND, as_it_is, as_svg, save_figure
from shortcaps.reporting.html import as_png, figures, page, section, table

# Smallest side of the pictures of maps, in pixels.
SIDE = 196


@dataclass(frozen=True)
class Explanation:
    """What the capsules of one image show.

    Attributes:
        image: (channels, height, width) in 0–1.
        found: Routing maps, activations and poses, for a batch of one.
        traversals: The image under each of `TRANSFORMATIONS`.
        class_names: Names of the classes.
        has_shortcuts: Whether the network has shortcuts.
        equivariance: The network's score, if it was measured.
    """

    image: Tensor
    found: RoutingMaps
    traversals: dict[str, Traversal]
    class_names: tuple[str, ...]
    has_shortcuts: bool
    equivariance: EquivarianceScore | None = None

    @property
    def layers(self) -> list[str]:
        """Names of the layers that vote for the class capsules, in the order of their maps."""
        return [f"shortcut {n + 1}" for n in range(len(self.found.maps))] if self.has_shortcuts else ["last layer"]

    @property
    def winner(self) -> int:
        """Number of the class that is explained."""
        return int(self.found.classes[0])


def explain(
    model: Network, image: Tensor, *, class_number: int | None = None, score: EquivarianceScore | None = None
) -> Explanation:
    """Explain one image.

    Args:
        model: Any network; without pose capsules only what transformations do is shown.
        image: (channels, height, width) in 0–1.
        class_number: The class to explain; None for the winner.
        score: The network's equivariance score, for the page.
    """
    classes = None if class_number is None else torch.tensor([class_number], device=image.device)
    found = routing_maps(model, image[None], classes)
    names = model.class_names or tuple(map(str, range(model.classes)))
    traversals = {name: traverse(model, image, name) for name in TRANSFORMATIONS}
    return Explanation(image, found, traversals, names, getattr(model, "shortcut", True), score)


def _maps_by_pass(explanation: Explanation) -> Figure | None:
    """Maps over the image: a row for each shortcut with several positions, a column for each pass; None if there is none."""
    named = zip(explanation.layers, explanation.found.over_channels(), strict=True)
    blocks = {name: block for name, block in named if has_positions(block)}
    if not blocks:
        return None
    passes = max(block.shape[1] for block in blocks.values())
    picture = _picture(explanation.image)
    figure = Figure(figsize=(2.1 * (passes + 1), 2.3 * len(blocks)))
    axes = figure.subplots(len(blocks), passes + 1, squeeze=False)
    for row, (name, block) in enumerate(blocks.items()):
        axes[row, 0].imshow(picture, cmap="gray", vmin=0, vmax=255)
        axes[row, 0].set_ylabel(f"{name}\n{block.shape[2]}x{block.shape[3]} positions")
        for turn in range(passes):
            axes[row, turn + 1].imshow(heat_over(picture, block[0, turn]))
            if row == 0:
                axes[row, turn + 1].set_title(f"pass {turn + 1}", fontsize=9)
    _bare(axes)
    figure.tight_layout()
    return figure


def _maps_by_channel(explanation: Explanation, layer: str) -> Figure:
    """Every capsule channel of a shortcut in the last pass: maps, or bars if there is only one position."""
    block = explanation.found.maps[explanation.layers.index(layer)][0, -1]
    if not has_positions(block):
        figure = Figure(figsize=(6.5, 1.6))
        axis = figure.subplots()
        axis.bar(range(1, len(block) + 1), block.flatten().tolist(), color=ACCENT)
        axis.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
        axis.set(xlabel="capsule channel", ylabel="× equal share", xticks=range(1, len(block) + 1))
        return figure
    columns = min(8, len(block))
    lines = -(-len(block) // columns)
    picture = _picture(explanation.image)
    figure = Figure(figsize=(1.25 * columns, 1.4 * lines))
    axes = figure.subplots(lines, columns, squeeze=False)
    for number, axis in enumerate(axes.flat):
        if number < len(block):
            axis.imshow(heat_over(picture, block[number]))
            axis.set_title(f"{number + 1}", fontsize=7, pad=2)
        else:
            axis.set_visible(False)
    _bare(axes)
    figure.tight_layout(pad=0.4)
    return figure


def _class_poses(explanation: Explanation) -> Figure:
    """The pose matrix of every class; the explained class is framed."""
    assert explanation.found.poses is not None, "the caller has looked"
    poses = explanation.found.poses[0].cpu().numpy()
    count = len(poses)
    columns = min(10, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(1.0 * columns, 1.25 * lines))
    axes = figure.subplots(lines, columns, squeeze=False)
    for number, axis in enumerate(axes.flat):
        if number >= count:
            axis.set_visible(False)
            continue
        # Each on its own scale: a loser's numbers may be a hundred times the winner's.
        limit = max(float(np.abs(poses[number]).max()), 1e-6)
        axis.imshow(poses[number], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set_xlabel(f"± {limit:.2g}", fontsize=6, labelpad=1)
        probability = float(explanation.found.probabilities[0, number])
        axis.set_title(f"{as_it_is(explanation.class_names[number][:10])}\n{probability:.2f}", fontsize=7, pad=2)
    _bare(axes)
    for side in axes.flat[explanation.winner].spines.values():
        side.set(visible=True, color=ACCENT, linewidth=2.5)
    figure.tight_layout(pad=0.4)
    return figure


def _transformation_curves(explanation: Explanation) -> Figure:
    """Above, the probabilities of the class and of its strongest rival; below, the numbers of its pose, if it has one."""
    traversals = explanation.traversals
    lines = 1 if explanation.found.poses is None else 2
    figure = Figure(figsize=(2.5 * len(traversals), 2.3 * lines))
    axes = figure.subplots(lines, len(traversals), squeeze=False)
    for column, (name, traversal) in enumerate(traversals.items()):
        probabilities = traversal.probabilities.cpu().numpy()
        others = probabilities.copy()
        others[:, explanation.winner] = 0
        above = axes[0, column]
        own = as_it_is(explanation.class_names[explanation.winner])
        above.plot(traversal.values, probabilities[:, explanation.winner], color=ACCENT, label=own)
        above.plot(traversal.values, others.max(1), color=SECOND, label="best other")
        above.set_ylim(-0.02, 1.02)
        if traversal.poses is not None:
            pose = traversal.poses[:, explanation.winner].flatten(1).cpu().numpy()
            axes[1, column].plot(traversal.values, pose, color=INK, alpha=0.5, linewidth=0.9)
            axes[1, 0].set_ylabel("numbers of the pose")
        axes[-1, column].set_xlabel(UNITS[name])
        for axis in axes[:, column]:
            axis.axvline(unchanged(name), color=FAINT, linewidth=0.7, linestyle=":")
            axis.grid(alpha=0.2)
    axes[0, 0].set_ylabel("probability")
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower center")
    figure.tight_layout()
    return figure


def write_explanation(explanation: Explanation, folder: Path, title: str) -> Path:
    """Write explanation.html, and its pictures as PNG files.

    Args:
        explanation: What to show.
        folder: Where to write the files.
        title: Title of the page.

    Returns:
        The page.
    """
    by_pass = _maps_by_pass(explanation)
    drawings = {
        **({} if by_pass is None else {"routing by pass": by_pass}),
        **{f"{layer} by channel": _maps_by_channel(explanation, layer) for layer in explanation.layers},
        **({} if explanation.found.poses is None else {"poses": _class_poses(explanation)}),
        "transformations": _transformation_curves(explanation),
    }
    for name, figure in drawings.items():
        save_figure(figure, folder / f"{name.replace(' ', '-')}.png")
    target = folder / "explanation.html"
    with atomic_write(target) as file:
        file.write(_page(explanation, drawings, title).encode())
    return target


_CAPTIONS = {
    "routing by pass": "Where the class takes its votes from, averaged over channels, over the image: green is more than an equal "
    "share, red is less. Every pass of the routing compares the votes with the class capsules of the previous pass.",
    "poses": "The pose of every class capsule, each on its own scale, given below it; the title gives its probability, and the frame "
    "marks the class explained here.",
    "transformations": "The image is shifted, rotated, scaled and sheared. Above, the probability of the class and of its strongest "
    "rival; below, if there are capsules, the numbers of its pose, which in an equivariant network follow the image smoothly.",
}


def _page(explanation: Explanation, drawings: dict[str, Figure], title: str) -> str:
    probability = float(explanation.found.probabilities[0, explanation.winner])
    headline = [
        (html.escape(explanation.class_names[explanation.winner]), "the class explained"),
        (f"{probability:.3f}", "its probability"),
    ]
    score = explanation.equivariance
    if score is not None:
        headline.append((f"{score.score:.2f}", f"equivariance score, {score.images:,} images"))
    picture = f"<img src='{as_png(_picture(explanation.image))}' alt='the image' style='border-radius:8px'>"
    sections = [section("The image, as the network sees it", picture)]
    for name, figure in drawings.items():
        caption = _CAPTIONS.get(
            name,
            "Every capsule channel by itself, in the last pass, relative to an equal share.",
        )
        body = f"<p class='soft small'>{caption}</p><div class='plot'>{as_svg(figure)}</div>"
        sections.append(section(name[0].upper() + name[1:], body))
    if score is not None:
        sections.append(section("Equivariance", _equivariance(score)))
    shows = "what the capsules of one image show"
    if explanation.found.poses is None:
        shows = "what transformations of one image do; the network has no pose capsules to show"
    return page(title, shows, [], figures(headline) + "".join(sections))


def _equivariance(score: EquivarianceScore) -> str:
    rows = {
        UNITS[name].split(" (")[0]: f"{value:.2f} explained; poses move by {score.movement[name]:.0%} of their length"
        for name, value in score.by_transformation.items()
    }
    return (
        "<p class='soft small'>How much of the effect of a transformation on the poses is one linear map, the same for all images, "
        "fitted to half of them and tested on the others: 1 is all of it, 0 is no better than an unchanged pose. In the overall score, "
        "a transformation counts by how much it moves the poses.</p>" + table(rows)
    )


def _picture(image: Tensor) -> np.ndarray:
    """The image as bytes, enlarged to at least SIDE pixels."""
    return grey_picture(image, max(1, -(-SIDE // image.shape[-1])))


def _bare(axes: np.ndarray) -> None:
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        for side in axis.spines.values():
            side.set_visible(False)

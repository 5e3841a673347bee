"""The pictures of a report, as inline images."""

from __future__ import annotations

import base64
import io
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from shortcaps.evaluate import Evaluation
from shortcaps.models import CapsuleNetwork

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
    }
)


def as_svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", transparent=True)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def as_png(pixels: np.ndarray) -> str:
    """A data address of an array of grey (height, width) or colour (height, width, 3) bytes."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def curves(rows: list[dict[str, Any]]) -> str:
    figure = Figure(figsize=(8.2, 2.7))
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) <= 30 else None
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [row["loss"] for row in rows], color=ACCENT, marker=marker, markersize=4)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    right.plot(
        epochs,
        [100 * (1 - row["accuracy"]) for row in rows],
        color=FAINT,
        marker=marker,
        markersize=4,
        label="training",
    )
    validation = [100 * row["validation_error"] for row in rows]
    right.plot(epochs, validation, color=SECOND, marker=marker, markersize=4, label="validation")
    right.set(xlabel="epoch", ylabel="error (%)", yscale="log")
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
    """Mistakes are coloured; right answers, which are nearly all, are only counted."""
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
    names = [name[:12] for name in evaluation.class_names]
    axes.set(xlabel="answer", ylabel="truth", xticks=range(size), yticks=range(size))
    long = max(map(len, names)) > 2
    axes.set_xticklabels(names, rotation=45 if long else 0, ha="right" if long else "center")
    axes.set_yticklabels(names)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return as_svg(figure)


def grey_picture(image: Tensor, scale: int) -> np.ndarray:
    """An image (channels, height, width) in 0–1 as bytes, enlarged pixel by pixel; of a stereo pair the left one."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    array = pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels[0].numpy()
    return array.repeat(scale, 0).repeat(scale, 1)


@torch.no_grad()
def routing_maps(model: CapsuleNetwork, images: Tensor, scale: int = 4) -> list[list[str]]:
    """For each image: the image, and for each shortcut what the winning class took from where, laid over it.

    The coefficients are summed over channels and divided by their mean, so that 1 means "as much as everywhere".
    """
    capsules = model.capsules(images)
    winners = capsules.activation.argmax(1)
    result = []
    for n in range(len(images)):
        picture = grey_picture(images[n], scale)
        line = [as_png(picture)]
        for block in capsules.coefficients or ():
            if not model.shortcut or block.shape[-1] * block.shape[-2] == 1:
                continue
            heat = block[n, -1, winners[n]].sum(0)
            heat = torch.nn.functional.interpolate(
                (heat / heat.mean().clamp_min(1e-12))[None, None], size=picture.shape[:2], mode="bilinear"
            )[0, 0]
            line.append(as_png(overlay(picture, heat.numpy())))
        result.append(line)
    return result


def overlay(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """The picture tinted where the heat is above (green) or below (red) 1."""
    grey = (picture if picture.ndim == 2 else picture.mean(2)).astype(float)[..., None] / 255
    strength = np.clip(np.log2(np.clip(heat, 1e-3, None)) / 1.5, -1, 1)[..., None]
    green, red = np.array([0.1, 0.85, 0.75]), np.array([0.9, 0.25, 0.3])
    tint = np.where(strength > 0, green, red)
    mixed = grey * (1 - 0.55 * np.abs(strength)) + tint * 0.55 * np.abs(strength)
    return (np.clip(mixed, 0, 1) * 255).astype(np.uint8)

"""report.html: one self-contained page about a run, which opens offline."""

from __future__ import annotations

import csv
import html
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from shortcaps.data import Dataset
from shortcaps.files import atomic_write
from shortcaps.inference.evaluate import Evaluation, describe_top_k, percent
from shortcaps.inference.explain.pictures import grey_picture, laid_over
from shortcaps.models import CapsuleNetwork, Network
from shortcaps.reporting.html import as_png, figures, page, section, table
from shortcaps.runs.manifest import Manifest
from shortcaps.training.plots import confusion, curves

WORST, MAPS = 24, 6


def write_report(
    run: Path, model: Network, data: Dataset, test: Evaluation, manifest: Manifest, result: dict[str, Any]
) -> Path:
    """Write report.html of a run whose config.json, metrics.csv and result.json exist.

    Returns:
        The page.
    """
    model = model.cpu().float().eval()
    with (run / "metrics.csv").open() as file:
        rows = [{name: float(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)]
    target = run / "report.html"
    page = render(model, data, test, manifest, rows, result)
    with atomic_write(target) as file:
        file.write(page.encode())
    return target


def render(
    model: Network,
    data: Dataset,
    test: Evaluation,
    manifest: Manifest,
    rows: list[dict[str, Any]],
    result: dict[str, Any],
) -> str:
    """The page as HTML."""
    asked = {name: value for section in manifest.asked.values() for name, value in section.items() if name != "name"}
    model_name = manifest.network["name"]
    summary = model.summary()
    low, high = test.interval
    headline = [
        (f"{test.accuracy:.2%}", f"test accuracy, {low:.2%} – {high:.2%}"),
        (f"{result['parameters']:,}", "parameters"),
        (f"{test.macro_f1:.2%}", "macro F1"),
        (f"{test.calibration_error:.3f}", "calibration error"),
        (minutes(result["training_seconds"]), f"training, {len(rows)} epoch{'' if len(rows) == 1 else 's'}"),
    ]
    if isinstance(model, CapsuleNetwork):
        headline.insert(2, (f"{summary.votes:,}", "votes per image, never built"))
    sections = [
        section("Learning", f'<div class="plot">{curves(rows)}</div><p class="soft small">{kept(result)}</p>'),
        section("What is taken for what", f'<div class="plot">{confusion(test)}</div>'),
        section("Worst mistakes", worst_mistakes(data, test)),
    ]
    if isinstance(model, CapsuleNetwork) and model.shortcut:
        sections.append(section("Where the winning class looks", maps(model, data)))
    sections += [
        section("By class", per_class(test)),
        section("The network", f"<pre>{html.escape(str(summary))}</pre>"),
        '<div class="two">'
        + section(
            "Config", table({**asked, **{f"recipe: {name}": value for name, value in manifest.took_effect.items()}})
        )
        + section("Data and environment", table({**asdict(manifest.data), **manifest.environment}))
        + "</div>",
    ]
    subtitle = (
        f"trained on {manifest.data.label}, tested on {len(data):,} images of {data.label}; "
        f"protocol {data.protocol}, seed {asked['seed']}"
    )
    return page(
        f"{model_name}: {model.title}", subtitle, caveats(manifest, data), figures(headline) + "".join(sections)
    )


def caveats(manifest: Manifest, data: Dataset) -> list[str]:
    """What a reader must know before quoting the result."""
    notes = list(data.caveats)
    if max_images := manifest.asked["data"]["max_images"]:
        notes.append(f"A trial run on {max_images:,} images of each split.")
    if manifest.origin is not None:
        notes.append(f"Training began with the weights of {manifest.origin}.")
    return notes


def kept(result: dict[str, Any]) -> str:
    """Which epoch's weights were kept, and why."""
    if result["validation_error"] is None:
        return f"Kept: epoch {result['best_epoch']}, the last; the validation images were trained on as well."
    return f"Kept: epoch {result['best_epoch']}, with the lowest validation error ({result['validation_error']:.2%})."


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def per_class(test: Evaluation) -> str:
    """A table of the accuracy and F1 score of each class, as HTML."""
    counts = test.confusion.sum(1).tolist()
    lines = "".join(
        f"<tr><td>{html.escape(name)}</td><td class='number'>{count:,}</td><td class='number'>{percent(accuracy)}</td>"
        f"<td class='number'>{percent(f1)}</td></tr>"
        for name, count, accuracy, f1 in zip(test.class_names, counts, test.per_class, test.f1, strict=True)
    )
    head = "".join(f"<th class='number'>{name}</th>" for name in ("images", "right", "F1"))
    top = f"<p class='soft small'>Among the best: {describe_top_k(test.top_k)}.</p>" if test.top_k else ""
    return f"<table><tr><th>class</th>{head}</tr>{lines}</table>{top}"


def worst_mistakes(data: Dataset, test: Evaluation) -> str:
    """The wrong answers with the largest lead over the truth, as HTML."""
    truth = test.activations.gather(1, data.labels.unsqueeze(1)).squeeze(1)
    best, answer = test.activations.max(1)
    order = (best - truth).argsort(descending=True)
    wrong = [int(n) for n in order[:WORST] if int(answer[n]) != int(data.labels[n])]
    if not wrong:
        return "<p>None: every answer was right.</p>"
    cells = []
    for n in wrong:
        picture = as_png(grey_picture(data.view(data.images[n : n + 1])[0], 3))
        said, true = test.class_names[int(answer[n])], test.class_names[int(data.labels[n])]
        cells.append(
            f"<figure><img src='{picture}' alt='{html.escape(true)} taken for {html.escape(said)}'>"
            f"<div class='small'><b>{html.escape(said)}</b> <span class='soft'>not {html.escape(true)}</span></div></figure>"
        )
    return f"<div class='gallery'>{''.join(cells)}</div>"


def maps(model: CapsuleNetwork, data: Dataset) -> str:
    """A few test images of different classes, with the routing coefficients of the winning class over them."""
    chosen = []
    for label in data.labels.unique().tolist()[:MAPS]:
        chosen.append(int((data.labels == label).nonzero()[0]))
    images = data.view(data.images[torch.tensor(chosen)])
    answers = model(images).argmax(1).tolist()
    cells = []
    for line, answer in zip(laid_over(model, images), answers, strict=True):
        pictures = "".join(f"<img src='{address}' alt=''>" for address in line)
        cells.append(
            f"<figure><div class='row'>{pictures}</div><div class='small'>{html.escape(data.class_names[answer])}</div></figure>"
        )
    return (
        "<p class='soft small'>The image, then for each shortcut the coefficients with which local capsules vote for the winning "
        "class in the last pass, summed over channels: green takes more than its share, red less.</p>"
        f"<div class='maps'>{''.join(cells)}</div>"
    )

"""report.html: one self-contained page about a run, which opens offline."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path
from typing import Any

import torch

from shortcaps.data import Dataset
from shortcaps.data.cache import written_whole
from shortcaps.evaluate import Evaluation
from shortcaps.models import CapsuleNetwork
from shortcaps.training.plots import as_png, confusion, curves, grey_picture, routing_maps

WORST, MAPS = 24, 6

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66717d; --paper: #fbfbf9; --card: #ffffff; --line: #e3e5e2;
        --accent: #0b7a75; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebee; --soft: #9aa5b1; --paper: #14181d; --card: #1c2229; --line: #2d353e; --accent: #4fc3bd; }
  .plot { background: #f4f4f1; border-radius: 8px; padding: 8px; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.05rem; margin: 0 0 12px; }
.soft { color: var(--soft); } .small { font-size: .85rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px; margin-top: 20px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.figure b { display: block; font-size: 1.5rem; line-height: 1.25; } .figure:first-child b { color: var(--accent); }
.plot svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: 12px; }
.gallery figure, .maps figure { margin: 0; text-align: center; }
.gallery img { width: 84px; height: 84px; image-rendering: pixelated; border-radius: 6px; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 16px; }
.maps .row { display: flex; gap: 6px; justify-content: center; } .maps img { width: 30%; max-width: 112px; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { padding: 4px 8px; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 20px; }
pre { overflow-x: auto; font-size: .8rem; margin: 0; } code { font-size: .9em; } .warn { color: #b4540a; }
"""


def write_report(
    run: Path, model: CapsuleNetwork, data: Dataset, test: Evaluation, config: dict[str, Any], result: dict[str, Any]
) -> Path:
    """Writes report.html of a run whose config.json, metrics.csv and result.json are there."""
    model = model.cpu().float().eval()
    with (run / "metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    target = run / "report.html"
    page = render(model, data, test, config, rows, result)
    with written_whole(target) as file:
        file.write(page.encode())
    return target


def render(
    model: CapsuleNetwork,
    data: Dataset,
    test: Evaluation,
    config: dict[str, Any],
    rows: list[dict[str, Any]],
    result: dict[str, Any],
) -> str:
    train, recipe = config["train"], config["recipe"]
    summary = model.summary()
    title = f"{train['model']} {'shortcut' if train['shortcut'] else 'sequential'} network, {train['routing']} routing"
    low, high = test.interval
    figures = [
        (f"{test.accuracy:.2%}", f"test accuracy, {low:.2%} – {high:.2%}"),
        (f"{result['parameters']:,}", "parameters"),
        (f"{summary.votes:,}", "votes per image, never built"),
        (f"{test.calibration_error:.3f}", "calibration error"),
        (minutes(result["training_seconds"]), f"training, {len(rows)} epochs"),
    ]
    sections = [
        section(
            "Learning",
            f'<div class="plot">{curves(rows)}</div><p class="soft small">Kept: epoch {result["best_epoch"]}, '
            f"with the lowest validation error ({result['validation_error']:.2%}).</p>",
        ),
        section("What is taken for what", f'<div class="plot">{confusion(test)}</div>'),
        section("Worst mistakes", worst_mistakes(data, test)),
    ]
    if model.shortcut:
        sections.append(section("Where the winning class looks", maps(model, data)))
    sections += [
        section("By class", per_class(test)),
        section("The network", f"<pre>{html.escape(str(summary))}</pre>"),
        '<div class="two">'
        + section("Config", table({**train, **{f"recipe: {name}": value for name, value in recipe.items()}}))
        + section("Data and environment", table({**config["data"], **config["environment"]}))
        + "</div>",
    ]
    notes = caveats(config, data)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1><div class='soft'>trained on {html.escape(config['data']['label'])}, tested on "
        f"{len(data):,} images of {html.escape(data.label)}; protocol {html.escape(data.protocol)}, seed {train['seed']}</div>"
        + "".join(f"<p class='warn small'>{html.escape(note)}</p>" for note in notes)
        + "<div class='figures'>"
        + "".join(
            f"<div class='figure'><b>{value}</b><span class='soft small'>{what}</span></div>" for value, what in figures
        )
        + "</div>"
        + "".join(sections)
        + "</main></body></html>"
    )


def caveats(config: dict[str, Any], data: Dataset) -> list[str]:
    """What a reader must know before quoting the figure."""
    notes = []
    if "regenerated" in data.label:
        notes.append(
            "The test set was regenerated from MNIST by affNIST's published description; it is not the published set."
        )
    if "rendered" in data.label:
        notes.append("The images are rendered; this is not smallNORB.")
    if config["train"]["most_images"]:
        notes.append(f"A trial run on {config['train']['most_images']:,} images of each split.")
    if data.protocol == "paper" and data.name not in ("mnist", "fashion-mnist"):
        notes.append("The paper's protocol lets the choice of weights see what the test is like.")
    return notes


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def table(values: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    lines = (
        f"<tr><td class='soft'>{html.escape(k)}</td><td>{html.escape(shown(v))}</td></tr>" for k, v in values.items()
    )
    return f"<div class='wide'><table>{''.join(lines)}</table></div>"


def per_class(test: Evaluation) -> str:
    counts = test.confusion.sum(1).tolist()
    lines = "".join(
        f"<tr><td>{html.escape(name)}</td><td class='number'>{count:,}</td><td class='number'>{accuracy:.2%}</td></tr>"
        for name, count, accuracy in zip(test.class_names, counts, test.per_class, strict=True)
    )
    return f"<table><tr><th>class</th><th class='number'>images</th><th class='number'>right</th></tr>{lines}</table>"


def worst_mistakes(data: Dataset, test: Evaluation) -> str:
    """The wrong answers that were given with the largest lead over the truth."""
    truth = test.probabilities.gather(1, data.labels.unsqueeze(1)).squeeze(1)
    best, answer = test.probabilities.max(1)
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
    for line, answer in zip(routing_maps(model, images), answers, strict=True):
        pictures = "".join(f"<img src='{address}' alt=''>" for address in line)
        cells.append(
            f"<figure><div class='row'>{pictures}</div><div class='small'>{html.escape(data.class_names[answer])}</div></figure>"
        )
    return (
        "<p class='soft small'>The image, then for each shortcut the coefficients with which local capsules vote for the winning "
        "class in the last pass, summed over channels: green takes more than its share, red less.</p>"
        f"<div class='maps'>{''.join(cells)}</div>"
    )

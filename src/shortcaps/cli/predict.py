"""`shortcaps predict`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortcaps.cli.app import app, console, print_error, print_json
from shortcaps.cli.shared import INVERT, PLUGIN, RUN
from shortcaps.environment import best_device
from shortcaps.errors import DataError, RunError

if TYPE_CHECKING:
    from shortcaps.inference.predict import Prediction


@app.command(
    "predict",
    help="""Classify pictures: files, folders, patterns, or - for standard input.

Pictures may have any size and colour. They are resized as in training; for a network trained on digits, black on white is
recognised, and the digit is cropped and centred as in MNIST. A picture that cannot be read or is not there is reported, the
others are classified, and the exit code is 1.

Examples:

    shortcaps predict mnist-baseline-fuzzy digit.png

    shortcaps predict runs/photos-compact-23k-fuzzy scans/ 'more/*.jpg' --csv > answers.csv

    cat digit.png | shortcaps predict mnist-baseline-fuzzy - --json
""",
)
def predict_command(
    run: RUN,
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURE…", help="Files, folders, patterns or -.")],
    invert: INVERT = None,
    batch_size: Annotated[int, typer.Option(help="Pictures per batch.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a column for each class.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps predict`."""
    from shortcaps.inference.predict import Prediction, Predictor, find_pictures

    if as_json and as_csv:
        raise RunError("--json and --csv cannot be combined: choose one")
    predictor = Predictor(run, best_device())

    def sources() -> Iterator[Path | tuple[str, bytes] | Prediction]:
        for word in pictures:
            if word == "-":
                yield "standard input", sys.stdin.buffer.read()
            else:
                try:
                    yield from find_pictures([word])
                except DataError as reason:
                    yield Prediction(word, {}, str(reason).removeprefix(f"{word} "))

    found = list(predictor.predict(list(sources()), invert=invert, batch_size=batch_size))
    for prediction in found:
        if prediction.problem is not None:
            print_error(f"{prediction.source}: {prediction.problem}")
    if as_json:
        print_json([prediction.to_dict() for prediction in found])
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(["file", "class", "probability", *predictor.class_names, "problem"])
        for prediction in found:
            numbers = [f"{prediction.probabilities[name]:.6f}" for name in predictor.class_names if prediction.answer]
            best = [prediction.ranking[0][0], f"{prediction.ranking[0][1]:.6f}"] if prediction.answer else ["", ""]
            rest = numbers or [""] * len(predictor.class_names)
            writer.writerow([prediction.source, *best, *rest, prediction.problem or ""])
    else:
        _print_predictions([prediction for prediction in found if prediction.problem is None])
    if any(prediction.problem is not None for prediction in found):
        sys.exit(1)


def _print_predictions(found: list[Any]) -> None:
    from rich.table import Table

    table = Table("picture", "class", "probability", "next", box=None, header_style="dim")
    table.columns[0].overflow = "fold"
    for prediction in found:
        (answer, probability), *others = prediction.ranking
        rival = f"{others[0][0]} ({others[0][1]:.3f})" if others else ""
        table.add_row(prediction.source, answer, f"{probability:.3f}", rival)
    if found:
        console.print(table)

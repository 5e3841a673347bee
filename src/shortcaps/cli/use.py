"""`shortcaps predict`, `explain`, `export` and `serve`: what a trained network is for."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortcaps.cli.app import app, console, say_what_is_wrong, tell
from shortcaps.environment import best_device
from shortcaps.training.config import RunError, TrainConfig

if TYPE_CHECKING:
    from shortcaps.data import Dataset

RUN = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or a network that comes along: mnist-baseline-fuzzy.")
]
INVERT = Annotated[
    bool | None,
    typer.Option(
        "--invert/--no-invert", help="Exchange light and dark. [default: the rim decides]", show_default=False
    ),
]


@app.command(
    "predict",
    help="""Say what is in pictures: files, folders, patterns, or - for standard input.

Pictures may have any size and colour. They are resized as in training; for a network trained on digits, black on white is
recognised, and a digit is cut out and centred as MNIST's were. What cannot be read is named, the others are answered, and the
exit code is 1.

Examples:

    shortcaps predict mnist-baseline-fuzzy digit.png

    shortcaps predict runs/photos-baseline-fuzzy scans/ 'more/*.jpg' --csv > answers.csv

    cat digit.png | shortcaps predict mnist-baseline-fuzzy - --json
""",
)
def predict_command(
    run: RUN,
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURE…", help="Files, folders, patterns or -.")],
    invert: INVERT = None,
    batch_size: Annotated[int, typer.Option(help="Pictures that are looked at together.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a column for each class.")] = False,
) -> None:
    from shortcaps.predict import Predictor, find_pictures

    if as_json and as_csv:
        raise RunError("--json and --csv exclude each other: choose one")
    predictor = Predictor(run, best_device())

    def sources() -> Iterator[Path | tuple[str, bytes]]:
        for word in pictures:
            if word == "-":
                yield "standard input", sys.stdin.buffer.read()
            else:
                yield from find_pictures([word])

    found = list(predictor.predict(list(sources()), invert=invert, batch_size=batch_size))
    for prediction in found:
        if prediction.problem is not None:
            say_what_is_wrong(f"{prediction.source}: {prediction.problem}")
    if as_json:
        print(json.dumps([prediction.to_dict() for prediction in found], indent=2))
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


@app.command(
    "explain",
    help="""Show what the capsules of one picture do, as pictures and a page.

For each shortcut: where the winning class takes its votes from, channel by channel and pass by pass. The class poses. What
becomes of probability and pose as the picture is shifted, turned, scaled and sheared. And an equivariance score: how much of
what such a transformation does to the poses is one linear map, the same for all images.

Examples:

    shortcaps explain mnist-baseline-fuzzy digit.png

    shortcaps explain runs/affnist-baseline-em digit.png --class 7 --out seven/
""",
)
def explain_command(
    run: RUN,
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="A picture file.")],
    out: Annotated[Path | None, typer.Option(help="A folder. [default: explained-PICTURE]", show_default=False)] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Explain this class. [default: the winner]", show_default=False)
    ] = None,
    invert: INVERT = None,
    score_images: Annotated[
        int, typer.Option(help="Test images for the equivariance score; 0 leaves it out.", min=0)
    ] = 400,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON, for scripts.")] = False,
) -> None:
    from shortcaps.data import DataError, sample_images
    from shortcaps.explain import equivariance_score
    from shortcaps.explain.page import explain, write_explanation
    from shortcaps.predict import Predictor

    predictor = Predictor(run)
    if not picture.is_file():
        raise DataError(f"{picture} {'is a folder: give one picture' if picture.is_dir() else 'does not exist'}")
    try:
        image = predictor.read(picture, invert=invert)
    except DataError as reason:
        raise DataError(f"{picture}: {reason}") from reason
    names = predictor.class_names
    if class_name is not None and class_name not in names:
        raise RunError(f"unknown class {class_name!r}: this network knows {', '.join(names)}")
    score = None
    if score_images:
        try:
            images = sample_images(_data_of(predictor.config, "test"), max(4, score_images))
            score = equivariance_score(predictor.model, images)
        except (DataError, ValueError) as reason:  # no test images, or too few
            tell(f"no equivariance score: {reason}")
    number = None if class_name is None else names.index(class_name)
    explanation = explain(predictor.model, image, class_number=number, score=score)
    target = out or Path(f"explained-{picture.stem}")
    page = write_explanation(explanation, target, f"{picture.name}: {names[explanation.winner]}")
    if as_json:
        figures: dict[str, Any] = {
            "picture": str(picture),
            "class": names[explanation.winner],
            "probabilities": dict(zip(names, explanation.found.probabilities[0].tolist(), strict=True)),
            "pose": explanation.found.poses[0, explanation.winner].tolist(),
            "page": str(page),
        }
        if score is not None:
            figures["equivariance"] = {
                "score": score.score,
                "by_transformation": score.by_transformation,
                "movement": score.movement,
                "images": score.images,
            }
        print(json.dumps(figures, indent=2))
        return
    probability = float(explanation.found.probabilities[0, explanation.winner])
    console.print(f"{names[explanation.winner]}, probability {probability:.3f}", highlight=False, style="bold")
    if score is not None:
        parts = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in score.by_transformation.items())
        console.print(f"equivariance score {score.score:.2f} ({parts}; {score.images} test images)", highlight=False)
    console.print(f"page: {page}", highlight=False)


def _data_of(config: dict[str, Any], split: str) -> Dataset:
    """A split of the data a run was trained on."""
    from shortcaps.data import load

    trained = TrainConfig.from_dict(config["train"])
    return load(trained.data, split, trained.protocol, tell=tell, **trained.data_options)


@app.command(
    "export",
    help="""Write a trained network as an ONNX file, after checking it against PyTorch.

Input `images` (batch, channels, height, width) in 0–1; outputs `probabilities` (each by itself; `predict` divides them by their
sum) and `poses`. Class names and preparation are in the file's metadata. The check runs it in onnxruntime on real images
at batches of 1, 3 and 64.

Examples:

    shortcaps export mnist-baseline-fuzzy

    shortcaps export runs/mnist-baseline-em --out em.onnx --quantize
""",
)
def export_command(
    run: RUN,
    out: Annotated[Path | None, typer.Option(help="[default: RUN.onnx]", show_default=False)] = None,
    int8: Annotated[
        bool, typer.Option("--quantize", help="Also write an int8 file, and measure what it costs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    from shortcaps.export import export, quantize
    from shortcaps.predict import Predictor

    predictor = Predictor(run)
    test = _data_of(predictor.config, "test")
    target = out or Path(f"{Path(run).name}.onnx")
    preparation = predictor.preparation.to_dict()
    images = test.view(test.images[:64])
    done = export(predictor.model, images, target, metadata={"preparation": preparation})
    figures: dict[str, Any] = {
        "file": str(done.file),
        "bytes": done.bytes,
        "max_error": done.error,
        "latency_ms": done.latency_ms,
    }
    if not as_json:
        console.print(
            f"{done.file}: {done.bytes / 1e3:,.0f} kB, differs from PyTorch by at most {done.error:.1e}, "
            f"{done.latency_ms:.2f} ms for one image",
            highlight=False,
        )
    if int8:
        small = quantize(done.file, target.with_suffix(".int8.onnx"), _data_of(predictor.config, "train"), test)
        figures["int8"] = {
            "file": str(small.file),
            "bytes": small.bytes,
            "latency_ms": small.latency_ms,
            "accuracy": small.accuracy,
            "full_accuracy": small.full_accuracy,
            "images": small.images,
        }
        if not as_json:
            change = 100 * (small.accuracy - small.full_accuracy)
            console.print(
                f"{small.file}: {small.bytes / 1e3:,.0f} kB, {small.latency_ms:.2f} ms for one image, accuracy "
                f"{small.accuracy:.2%} instead of {small.full_accuracy:.2%} on {small.images:,} test images "
                f"({change:+.2f} points)",
                highlight=False,
            )
    if as_json:
        print(json.dumps(figures, indent=2))


@app.command(
    "serve",
    help="""Serve a web page and an API for a trained network.

The page: draw, or drop a picture, and see probabilities, routing maps and poses. The API: POST /predict, described at /docs.
Nobody outside this machine can reach it unless --host says so.

Examples:

    shortcaps serve mnist-baseline-fuzzy

    shortcaps serve runs/photos-baseline-fuzzy --port 9000 --host 0.0.0.0
""",
)
def serve_command(
    run: RUN,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=0, max=65535)] = 8000,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more get a 503.", min=1)] = 128,
    body_megabytes: Annotated[float, typer.Option(help="The largest upload.", min=0.001)] = 8.0,
) -> None:
    import socket

    import uvicorn

    from shortcaps.allocator import keep_freed_memory
    from shortcaps.predict import Predictor
    from shortcaps.serve import Limits, create_app

    keep_freed_memory()
    predictor = Predictor(run)
    limits = Limits(queue=queue, body_bytes=int(body_megabytes * 1e6))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once instead of waiting for more to send with them.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2048)  # who connects at once, before the application is up, waits instead of being refused
        except OSError as error:
            raise RunError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        console.print(f"http://{shown}:{listener.getsockname()[1]}  (stop with Ctrl-C)", highlight=False)
        config = uvicorn.Config(
            create_app(predictor, limits),
            log_level="warning",
            # More connections than may wait are turned away by the application, which says when to come back.
            timeout_keep_alive=15,
            h11_max_incomplete_event_size=64_000,
        )
        uvicorn.Server(config).run(sockets=[listener])

"""`shortcaps export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console, print_json
from shortcaps.cli.shared import PLUGIN, RUN, data_of_run


@app.command(
    "export",
    help="""Export a trained network to an ONNX file, checked against PyTorch.

The input is `images` (batch, channels, height, width) in 0–1; the outputs are `activations` (each in 0–1 by itself),
`probabilities` (which sum to 1) and, if the network has capsules, `poses`. Class names and preparation are in the file's
metadata. The check runs the file in onnxruntime on test images, with batch sizes 1, 3 and 64.

Examples:

    shortcaps export mnist-baseline-fuzzy

    shortcaps export runs/mnist-baseline-em --out em.onnx --int8
""",
)
def export_command(
    run: RUN,
    out: Annotated[Path | None, typer.Option(help="The file. [default: RUN.onnx]", show_default=False)] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write an int8 file, and measure its loss of accuracy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps export`."""
    from shortcaps.inference.export import export, quantize
    from shortcaps.inference.predict import Predictor

    predictor = Predictor(run)
    test = data_of_run(predictor.manifest.train, "test")
    target = out or Path(f"{Path(run).name}.onnx")
    preparation = predictor.preparation.to_dict()
    images = test.view(test.images[:64])
    done = export(predictor.network, images, target, metadata={"preparation": preparation})
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
        small = quantize(
            done.file, target.with_suffix(".int8.onnx"), data_of_run(predictor.manifest.train, "train"), test
        )
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
        print_json(figures)

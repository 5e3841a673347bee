"""`shortcaps export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortcaps.cli.app import app, console, note, print_json
from shortcaps.cli.shared import DATA, PLUGIN, RUN, check_images, data_of_run
from shortcaps.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from shortcaps.data import Dataset
    from shortcaps.inference.export import Quantized
    from shortcaps.inference.predict import Predictor


@app.command(
    "export",
    help="""Export a trained network to an ONNX file, checked against PyTorch.

The input is `images` (batch, channels, height, width), float32 in 0–1: an image that is not in this range gets NaN for an answer. The outputs are `activations` (each in 0–1 by itself),
`probabilities` (which sum to 1) and, if the network has capsules, `poses`. Class names and preparation are in the file's
metadata. The check runs the file in onnxruntime, with batch sizes 1, 3 and 64, on the sample of training images that a run
keeps, or on random images if it has none: the data is not needed. For int8 the ranges of activations are estimated from the same
sample; what it costs in accuracy is measured on the test images, if they can be found.

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
    data: DATA = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps export`."""
    import torch

    from shortcaps.inference.export import export, quantize
    from shortcaps.inference.predict import Predictor
    from shortcaps.runs.sample import read_sample

    predictor = Predictor(run)
    network = predictor.network
    shape = (network.channels, *network.image_size)
    sample = read_sample(predictor.run, shape)
    images, shown = sample, "stored training"
    if images is None:
        images, shown = torch.rand(64, *shape, generator=torch.Generator().manual_seed(0)), "random"
    for_int8 = _images_for_int8(predictor, sample, run, data) if int8 else None
    target = out or Path(f"{Path(run).name}.onnx")
    done = export(network, images, target, metadata={"preparation": predictor.preparation.to_dict()})
    figures: dict[str, Any] = {
        "file": str(done.file),
        "bytes": done.bytes,
        "max_error": done.error,
        "compared_on": shown,
        "latency_ms": done.latency_ms,
    }
    if not as_json:
        console.print(
            f"{done.file}: {done.bytes / 1e3:,.0f} kB, differs from PyTorch by at most {done.error:.1e} "
            f"({shown} images), {done.latency_ms:.2f} ms for one image",
            highlight=False,
        )
    if for_int8 is not None:
        small = quantize(done.file, target.with_suffix(".int8.onnx"), *for_int8)
        figures["int8"] = {**asdict(small), "file": str(small.file)}
        if not as_json:
            console.print(_describe(small), highlight=False)
    if as_json:
        print_json(figures)


def _images_for_int8(
    predictor: Predictor, sample: Tensor | None, run: str, data: str | None
) -> tuple[Tensor, Dataset | None]:
    """Training images that ranges are estimated from, and the test images, if they can be found."""
    from shortcaps.data import sample_images
    from shortcaps.inference.export import CALIBRATION_IMAGES

    if sample is None:
        seen = data_of_run(predictor.manifest, "train", data)
        check_images(predictor.network, seen, run)
        sample = sample_images(seen, CALIBRATION_IMAGES)
    try:
        test = data_of_run(predictor.manifest, "test", data)
    except DataError as reason:
        note(f"the accuracy of int8 is not measured: {reason}")
        return sample, None
    check_images(predictor.network, test, run)
    return sample, test


def _describe(small: Quantized) -> str:
    said = (
        f"{small.file}: {small.bytes / 1e3:,.0f} kB, {small.latency_ms:.2f} ms for one image, ranges from "
        f"{small.calibrated_on} training images"
    )
    if small.accuracy is None or small.full_accuracy is None:
        return f"{said}; the same answer for {small.agreement:.1%} of them"
    change = 100 * (small.accuracy - small.full_accuracy)
    return (
        f"{said}; accuracy {small.accuracy:.2%} instead of {small.full_accuracy:.2%} on {small.images:,} test images "
        f"({change:+.2f} points)"
    )

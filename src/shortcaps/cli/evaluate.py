"""`shortcaps evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console, note, print_json
from shortcaps.cli.settings import takes_settings
from shortcaps.cli.shared import PLUGIN, check_images
from shortcaps.data import SPLITS, find_spec, load_dataset
from shortcaps.environment import best_device
from shortcaps.inference.load import load
from shortcaps.runs.config import TrainConfig


@app.command(
    "evaluate",
    help="""Evaluate a trained network on any data set with its image size and classes.

Examples:

    shortcaps evaluate mnist-baseline-fuzzy

    shortcaps evaluate runs/affnist-baseline-fuzzy --data affnist --json
""",
)
@takes_settings(
    ("folder", "image_size", "colour", "fit", "skip_broken", "group_by", "image_memory", "camera"), default="the run's"
)
def evaluate_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a pretrained network: mnist-baseline-fuzzy.")
    ],
    data: Annotated[
        str | None, typer.Option(help="A data set. [default: the one it was trained on]", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "test",
    protocol: Annotated[
        str | None, typer.Option(help="Protocol: default or paper. [default: the run's]", show_default=False)
    ] = None,
    viewpoints: Annotated[
        str | None, typer.Option(help="Viewpoints: novel or familiar, for sets that divide them.")
    ] = None,
    plugin: PLUGIN = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps evaluate`."""
    from rich.table import Table

    from shortcaps.inference.evaluate import describe_top_k, evaluate, percent
    from shortcaps.pretrained import find_run
    from shortcaps.runs.directory import read_manifest
    from shortcaps.runs.located import is_data_of, locate_data

    TrainConfig.of(**settings)  # whether they make sense
    manifest = read_manifest(find_run(run))
    trained = locate_data(manifest, data)
    name = trained.name
    flags = settings | ({} if viewpoints is None else {"viewpoints": viewpoints})
    # Images are shown to the network as in training, as far as the other data set has the same options.
    is_own = data is None or is_data_of(manifest, data)
    known = (*find_spec(name).options, "folder") if is_own else find_spec(name).options
    options = {option: value for option, value in trained.load_options.items() if option in known} | flags
    model = load(run)
    images = load_dataset(name, split, protocol or trained.protocol, **options)
    is_whole = trained.max_images is None and trained.per_class is None
    if is_own and protocol in (None, trained.protocol) and not flags and is_whole:
        before = manifest.data.fingerprints.get(split)  # runs of 0.1 may have none
        if before is not None and not images.has_fingerprint(before):
            note(
                f"the {split} images of {name} have changed since this network was trained: if pictures were moved there from "
                "another split, it may have been trained on some of them"
            )
    if is_own and split == "validation" and trained.refit and images.protocol == trained.protocol:
        note(f"{run} was trained on these images as well (--refit): its accuracy on them says nothing of new ones")
    check_images(model, images, str(run))
    device = best_device()
    found = evaluate(model.to(device), images, device=device)
    if as_json:
        print_json({"run": str(run), "split": split, "protocol": images.protocol, **found.to_dict()})
        return
    low, high = found.interval
    console.print(f"{found.label}, {split}, {found.count:,} images, protocol {images.protocol}", highlight=False)
    console.print(
        f"accuracy {found.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})", highlight=False, style="bold"
    )
    others = [f"macro F1 {found.macro_f1:.2%}", describe_top_k(found.top_k)]
    others.append(f"expected calibration error {found.calibration_error:.3f}")
    console.print(", ".join(filter(None, others)), highlight=False)
    table = Table("class", "images", "right", "F1", "most often taken for", box=None, header_style="dim")
    for number, class_name in enumerate(found.class_names):
        row = found.confusion[number].clone()
        count = int(row.sum())
        row[number] = 0
        other = f"{found.class_names[int(row.argmax())]} ({int(row.max())})" if int(row.max()) else ""
        table.add_row(class_name, f"{count:,}", percent(found.per_class[number]), percent(found.f1[number]), other)
    console.print(table)

"""`shortcaps data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from shortcaps.cli.app import app, console, errors
from shortcaps.cli.settings import takes_settings
from shortcaps.cli.shared import PLUGIN
from shortcaps.data import DATASETS, SPLITS, cache_folder, load_dataset
from shortcaps.errors import DataError
from shortcaps.runs.config import DataConfig


@contextmanager
def _rendering_bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar that appears when there is something to render."""
    bar = Progress(
        TextColumn("rendering"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} objects"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )

    def progress(done: int, of: int) -> None:
        if not bar.tasks or done == 1:
            bar.start()
            bar.add_task("", total=of)
        bar.update(bar.tasks[-1].id, completed=done)

    try:
        yield progress
    finally:
        if bar.tasks:
            bar.stop()


_NAMES_HELP = "\n".join(
    f"- **{name}**: {spec.description}, {'x'.join(map(str, spec.image_size))}"
    for name, spec in ((name, DATASETS[name]) for name in DATASETS.known())
)


@app.command(
    "data",
    help=f"""Fetch and verify a data set, or show some of its images.

{_NAMES_HELP}
- or the path of images of your own: a **folder** with `train/`, `val/` and `test/`, or with one folder for each class; a **CSV file** of
  paths and labels; a folder that Hugging Face's `datasets` has written (docs/own-images.md)

Files are kept in a cache folder; the environment variable SHORTCAPS_CACHE moves it.

Examples:

    shortcaps data mnist

    shortcaps data show affnist --out affnist.png

    shortcaps data show photos/ --colour --augmented --augment photos

    shortcaps data labels.csv --group-by patient --skip-broken

    shortcaps data smallnorb --folder ~/Downloads/norb
""",
)
@takes_settings(
    (
        "protocol",
        "folder",
        "image_size",
        "colour",
        "fit",
        "skip_broken",
        "group_by",
        "image_memory",
        "camera",
        "augment",
    )
)
def data(
    words: Annotated[
        list[str], typer.Argument(metavar="[show] NAME", help="A data set; with `show`, a contact sheet of it.")
    ],
    out: Annotated[Path | None, typer.Option(help="File for the contact sheet. [default: NAME-sheet.png]")] = None,
    augmented: Annotated[
        bool,
        typer.Option("--augmented", help="With `show`: training images, each beside what augmentation makes of it."),
    ] = False,
    plugin: PLUGIN = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps data`."""
    show = words[0] == "show"
    names = words[1:] if show else words
    if len(names) != 1:
        raise DataError(
            f"give one data set, not {len(names) or 'none'}, e.g. `shortcaps data {'show ' if show else ''}mnist`"
        )
    augment = settings.pop("augment", None)
    if (augmented or augment is not None) and not show:
        raise DataError(
            f"--augmented and --augment are for a contact sheet: `shortcaps data show {names[0]} --augmented`"
        )
    chosen = DataConfig(names[0], **settings)
    with _rendering_bar() as progress:
        parts = [
            load_dataset(chosen.name, split, chosen.protocol, progress=progress, **chosen.load_options)
            for split in SPLITS
        ]
    for part in parts:
        shape = "x".join(map(str, part.image_shape))
        console.print(
            f"{part.label}, {part.split}: {len(part):,} images, {shape}, {len(part.class_names)} classes",
            highlight=False,
        )
    if show:
        from shortcaps.data.sheet import augmented_sheet, contact_sheet

        target = out or Path(f"{parts[0].name.strip('/').replace('/', '-')}-sheet.png")
        if augmented or augment is not None:
            training = parts[0]
            augmented_sheet(training, training.augmented_by(augment) if augment else training.augment, target)
        else:
            contact_sheet([parts[0], parts[2]], target)
        console.print(f"contact sheet: {target}", highlight=False)
    elif names[0] in DATASETS:
        console.print(f"ready in {cache_folder()}", highlight=False)

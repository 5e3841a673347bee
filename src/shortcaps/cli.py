"""The command line: parses, delegates, prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import shortcaps
from shortcaps.data import DATASETS, PROTOCOLS, SPLITS, DataError, cache_folder, load, options_of
from shortcaps.training.config import RECIPES, RunError, RunFault, TrainConfig, read_toml

app = typer.Typer(
    name="shortcaps",
    help="Capsule networks with shortcut routing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)


def main() -> None:
    """The `shortcaps` command. A mistake of the user's gets one line and exit code 2, a fault while running exit code 1."""
    try:
        app()
    except (DataError, RunError) as mistake:
        _say_and_exit(str(mistake), 2)
    except RunFault as fault:
        _say_and_exit(str(fault), 1)
    except OSError as fault:
        _say_and_exit(f"{fault.filename or 'a file'}: {fault.strerror or fault}", 1)


def _say_and_exit(message: str, code: int) -> None:
    errors.print(f"shortcaps: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"shortcaps {shortcaps.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def tell(message: str) -> None:
    """A line about what is going on, beside the results on standard output."""
    errors.print(message, markup=False, highlight=False, style="dim", soft_wrap=True)


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


NAMES_HELP = "\n".join(f"- **{name}**: {what}" for name, what in DATASETS.items())


@app.command(
    "data",
    help=f"""Fetch, verify and prepare a data set, or look at one.

{NAMES_HELP}
- or the path of a **folder** of your own, with `train/ val/ test/` or one folder for each class

Files are kept in the cache folder, which SHORTCAPS_CACHE sets.

Examples:

    shortcaps data mnist

    shortcaps data show affnist --out affnist.png

    shortcaps data smallnorb --folder ~/Downloads/norb
""",
)
def data(
    words: Annotated[
        list[str], typer.Argument(metavar="[show] NAME", help="A data set; `show` draws a contact sheet.")
    ],
    folder: Annotated[Path | None, typer.Option(help="Where the published files already lie.")] = None,
    protocol: Annotated[str, typer.Option(help=f"One of {', '.join(PROTOCOLS)}.")] = "default",
    out: Annotated[Path | None, typer.Option(help="Where `show` writes its picture.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images of your own folder.")] = None,
    colour: Annotated[bool, typer.Option("--colour", help="Keep the colours of your own folder.")] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
    camera: Annotated[str | None, typer.Option(help="left, right or stereo, for smallnorb and solids.")] = None,
) -> None:
    show, names = words[0] == "show" and len(words) > 1, words[1:] if words[0] == "show" and len(words) > 1 else words
    if len(names) != 1:
        raise DataError(f"give one data set, not {len(names)}: {' '.join(names)}")
    options = {
        name: value
        for name, value in (
            ("image_size", image_size),
            ("colour", colour or None),
            ("skip_broken", skip_broken or None),
            ("camera", camera),
        )
        if value is not None
    }
    with _rendering_bar() as progress:
        parts = [
            load(names[0], split, protocol, folder=folder, tell=tell, progress=progress, **options) for split in SPLITS
        ]
    for part in parts:
        shape = "x".join(map(str, part.image_shape))
        console.print(
            f"{part.label}, {part.split}: {len(part):,} images, {shape}, {len(part.class_names)} classes",
            highlight=False,
        )
    if show:
        from shortcaps.data.sheet import contact_sheet

        target = out or Path(f"{parts[0].name.strip('/').replace('/', '-')}-sheet.png")
        contact_sheet([parts[0], parts[2]], target)
        console.print(f"contact sheet: {target}", highlight=False)
    elif names[0] in DATASETS:
        console.print(f"ready in {cache_folder()}", highlight=False)


def _setting(name: str, *flags: str) -> Any:
    """An option whose help is that of the config's field, and whose default is said there."""
    setting = next(setting for setting in fields(TrainConfig) if setting.name == name)
    default = "" if setting.default in (None, False) else f" [default: {setting.default}]"
    return typer.Option(*flags, help=setting.metadata["help"].capitalize() + "." + default, show_default=False)


RECIPES_HELP = "\n".join(
    f"- **{name}**: {recipe.epochs} epochs, batch {recipe.batch_size}, lr {recipe.lr:g} ({recipe.schedule}), "
    f"{recipe.loss} loss"
    for name, recipe in RECIPES.items()
)


@app.command(
    "train",
    help=f"""Train a network and test it once.

Recipes:

{RECIPES_HELP}

Settings may stand in a TOML file (`--config`), in which case flags win over it.

Examples:

    shortcaps train

    shortcaps train --data affnist --routing attention --epochs 10

    shortcaps train --data photos/ --image-size 32 --colour

    shortcaps train --resume runs/mnist-baseline-fuzzy
""",
)
def train_command(
    data: Annotated[str | None, _setting("data")] = None,
    model: Annotated[str | None, _setting("model")] = None,
    routing: Annotated[str | None, _setting("routing")] = None,
    shortcut: Annotated[bool | None, _setting("shortcut", "--shortcut/--no-shortcut")] = None,
    recipe: Annotated[str | None, _setting("recipe")] = None,
    protocol: Annotated[str | None, _setting("protocol")] = None,
    epochs: Annotated[int | None, _setting("epochs")] = None,
    batch_size: Annotated[int | None, _setting("batch_size")] = None,
    lr: Annotated[float | None, _setting("lr")] = None,
    loss: Annotated[str | None, _setting("loss")] = None,
    seed: Annotated[int | None, _setting("seed")] = None,
    precision: Annotated[str | None, _setting("precision")] = None,
    compile: Annotated[bool | None, _setting("compile", "--compile/--no-compile")] = None,  # noqa: A002
    devices: Annotated[int | None, _setting("devices")] = None,
    most_images: Annotated[int | None, _setting("most_images")] = None,
    folder: Annotated[str | None, _setting("folder")] = None,
    image_size: Annotated[int | None, _setting("image_size")] = None,
    colour: Annotated[bool | None, _setting("colour", "--colour/--grey")] = None,
    skip_broken: Annotated[bool | None, _setting("skip_broken", "--skip-broken/--no-skip-broken")] = None,
    camera: Annotated[str | None, _setting("camera")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these settings.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory. [default: runs/DATA-MODEL-ROUTING…]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.")] = None,
) -> None:
    arguments = dict(locals())
    from shortcaps.training.display import ConsoleDisplay
    from shortcaps.training.loop import Interrupted, is_first_process, train

    names = {setting.name for setting in fields(TrainConfig)}
    flags = {name: value for name, value in arguments.items() if name in names and value is not None}
    settings = {**(read_toml(config) if config else {}), **flags}
    if resume is not None:
        chosen = _config_to_resume(resume, settings)
        target = resume
        if out is not None and out != resume:
            raise RunError(f"--out {out} is not the run to resume ({resume}): leave it out")
    else:
        chosen = TrainConfig.from_dict(settings)
        target = out or Path("runs") / default_name(chosen)
    display = ConsoleDisplay(console)
    try:
        result = train(chosen, target, resume=resume is not None, display=display)
    except Interrupted as stop:
        if is_first_process():
            display.say(f"{stop}; go on with: shortcaps train --resume {target}")
        sys.exit(128 + stop.number)
    if result is None:
        return
    low, high = result.test.interval
    display.say(
        f"test accuracy on {result.test.label}: {result.test.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})"
    )
    display.say(f"report: {result.run / 'report.html'}")


def default_name(config: TrainConfig) -> str:
    """Says what differs from the defaults."""
    parts = [Path(config.data).name if "/" in config.data else config.data, config.model, config.routing]
    parts += [] if config.shortcut else ["sequential"]
    parts += [] if config.recipe == "fast" else [config.recipe]
    parts += [] if config.protocol == "default" else [f"{config.protocol}-protocol"]
    parts += [] if config.seed == 0 else [f"seed{config.seed}"]
    return "-".join(parts)


def _config_to_resume(run: Path, settings: dict[str, Any]) -> TrainConfig:
    """The run's own config; flags may repeat it but not change it."""
    from shortcaps.training.run import read_run_config

    stored = read_run_config(run)["train"]
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RunError(
                f"--{name.replace('_', '-')} {value} is not what {run} was started with ({stored.get(name)}): "
                "a run is resumed as it was begun; start another with --out"
            )
    return TrainConfig.from_dict(stored)


@app.command(
    "evaluate",
    help="""Test a trained network on any data set whose images and classes fit it.

Examples:

    shortcaps evaluate runs/mnist-baseline-fuzzy

    shortcaps evaluate runs/affnist-baseline-fuzzy --data affnist --json
""",
)
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    data: Annotated[
        str | None, typer.Option(help="A data set. [default: the one it was trained on]", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "test",
    protocol: Annotated[str | None, typer.Option(help="[default: the run's]", show_default=False)] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the published files already lie.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images of a folder. [default: the run's]", show_default=False)
    ] = None,
    colour: Annotated[
        bool | None, typer.Option("--colour/--grey", help="[default: the run's]", show_default=False)
    ] = None,
    skip_broken: Annotated[
        bool | None, typer.Option("--skip-broken", help="Leave out images that cannot be read.")
    ] = None,
    camera: Annotated[
        str | None, typer.Option(help="left, right or stereo. [default: the run's]", show_default=False)
    ] = None,
    viewpoints: Annotated[str | None, typer.Option(help="novel or familiar, for sets that divide viewpoints.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    import torch
    from rich.table import Table

    from shortcaps.evaluate import evaluate
    from shortcaps.training.run import read_run_config

    config = read_run_config(run)
    trained = TrainConfig.from_dict(config["train"])
    name = data or trained.data
    given = {
        "folder": str(folder) if folder else None,
        "image_size": image_size,
        "colour": colour,
        "skip_broken": skip_broken,
        "camera": camera,
        "viewpoints": viewpoints,
    }
    flags = {option: value for option, value in given.items() if value is not None}
    # Images are shown to the network as they were in training, as far as the other data set knows the same settings.
    options = {option: value for option, value in trained.data_options.items() if option in options_of(name)}
    if name != trained.data:
        options.pop("folder", None)
    options |= flags
    model = shortcaps.load(run)
    images = load(name, split, protocol or trained.protocol, tell=tell, **options)
    shape, expected = images.image_shape, (model.plan.channels, *model.plan.image_size)
    if shape != expected:
        raise RunError(
            f"{name} has images of {'x'.join(map(str, shape))}, but {run} was trained on {'x'.join(map(str, expected))}"
        )
    if images.class_names != model.class_names:
        raise RunError(
            f"{name} has the classes {', '.join(images.class_names)}, but {run} knows {', '.join(model.class_names)}"
        )
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    found = evaluate(model.to(device), images, device=device)
    if as_json:
        print(json.dumps({"run": str(run), "split": split, "protocol": images.protocol, **found.to_dict()}, indent=2))
        return
    low, high = found.interval
    console.print(f"{found.label}, {split}, {found.count:,} images, protocol {images.protocol}", highlight=False)
    console.print(
        f"accuracy {found.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})", highlight=False, style="bold"
    )
    console.print(f"expected calibration error {found.calibration_error:.3f}", highlight=False)
    table = Table("class", "images", "right", "most often taken for", box=None, header_style="dim")
    for number, class_name in enumerate(found.class_names):
        row = found.confusion[number].clone()
        count = int(row.sum())
        row[number] = 0
        other = f"{found.class_names[int(row.argmax())]} ({int(row.max())})" if int(row.max()) else ""
        table.add_row(class_name, f"{count:,}", f"{found.per_class[number]:.2%}", other)
    console.print(table)

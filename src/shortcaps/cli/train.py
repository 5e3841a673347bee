"""`shortcaps train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console
from shortcaps.cli.settings import spelling, takes_settings
from shortcaps.cli.shared import PLUGIN
from shortcaps.environment import is_first_process
from shortcaps.errors import RunError
from shortcaps.models import recommend_model
from shortcaps.runs.config import FLAGS, TrainConfig, read_settings


@app.command(
    "train",
    help="""Train a network and test it once.

A recipe says how to train: `shortcaps recipe list` lists them, `shortcaps recipe copy fast my.toml` copies one to edit, and
`--recipe my.toml` uses the copy.

The network is the paper's `baseline`, or for a folder of your own a compact one that takes images of any size, by their size and number:
`compact-160k` for at least 2,000 colour images of at least 48 px, otherwise `compact-23k`. `--model` chooses another.

Settings may also be in a TOML file (`--config`); options take precedence over it. Its table `[model.settings]` changes the
architecture of the network (docs/routings.md).

Examples:

    shortcaps train

    shortcaps train --data affnist --routing attention --epochs 10

    shortcaps train --data photos/ --image-size 32 --colour

    shortcaps train --plugin my_routing.py --routing nearest

    shortcaps train --resume runs/mnist-baseline-fuzzy

    shortcaps train --from runs/mnist-baseline-fuzzy --epochs 5

    shortcaps train --from runs/letters-compact-23k-fuzzy --data signs/ --freeze backbone

The last two begin with the network and the weights of a finished run, at a tenth of its learning rate, and leave a new run: the
first trains it further, the second for other classes.
""",
)
@takes_settings(FLAGS)
def train_command(
    plugin: PLUGIN = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory. [default: runs/DATA-MODEL-ROUTING…]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory of an interrupted run to resume.")] = None,
    logger: Annotated[
        list[str] | None,
        typer.Option(
            help="Also log metrics with: csv, tensorboard, wandb or mlflow; may be given several times.",
            show_default=False,
        ),
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps train`."""
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.training.display import ConsoleDisplay
    from shortcaps.training.loggers import make_loggers
    from shortcaps.training.run import train
    from shortcaps.training.signals import Interrupted
    from shortcaps.training.start import settings_from

    settings = {**(read_settings(config) if config else {}), **settings}
    for word in ("data", "start"):  # they are looked for before all others are checked
        value = settings.get(word, "")
        if not isinstance(value, str | Path) or "\0" in str(value):
            raise RunError(f"{word} {value!r} should be a name or a path")
    moved, chosen_network = None, ""
    if resume is not None:
        moved = settings.pop("data", None)
        chosen = _config_to_resume(resume, settings)
        target = resume
        if out is not None and out != resume:
            raise RunError(f"--out {out} is not the run to resume ({resume}): leave it out")
    else:
        if "start" in settings:
            settings = settings_from(settings["start"], settings)
        elif name := _network_for_own_images(settings):
            settings["model"] = name
            chosen_network = f"network: {name}, as no --model was given; it takes images of any size"
        chosen = TrainConfig.of(**settings)
        target = out or Path("runs") / _default_name(chosen)
    display = ConsoleDisplay(console, first=chosen_network)
    loggers = make_loggers(logger or []) if is_first_process() else []
    keep_freed_memory()
    try:
        result = train(chosen, target, resume=resume is not None, data=moved, display=display, callbacks=loggers)
    except Interrupted as stop:
        if is_first_process():
            plugins = "".join(f" --plugin {name}" for name in plugin or [])
            display.say(f"{stop}; resume with: shortcaps train{plugins} --resume {target}")
        sys.exit(128 + stop.number)
    if result is None:
        return
    low, high = result.test.interval
    display.say(
        f"test accuracy on {result.test.label}: {result.test.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})"
    )
    display.say(f"report: {result.run / 'report.html'}")


def _network_for_own_images(settings: dict[str, Any]) -> str | None:
    """The recommended network, if images of the user's own are to be trained on and nothing is said of the network."""
    from shortcaps.data import DATASETS, find_spec
    from shortcaps.data.own.load import count_pictures

    data = settings.get("data")
    if data is None or data in DATASETS or settings.keys() & {"model", "shortcut", "network"}:
        return None
    images = count_pictures(Path(data).expanduser())
    side = settings.get("image_size") or find_spec(data).image_size
    return recommend_model(side, 3 if settings.get("colour") else 1, images)


def _default_name(config: TrainConfig) -> str:
    """The default name of a run: what differs from the defaults."""
    data, model, default = config.data, config.model, TrainConfig()
    parts = [(Path(data.name).name if "/" in data.name else data.name).removesuffix(".csv"), model.name]
    parts += [model.routing] if config.has_routing else []
    parts += [] if model.shortcut else ["sequential"]
    parts += [] if config.optim.recipe is None else [Path(config.optim.recipe).stem]
    parts += [] if data.protocol == default.data.protocol else [f"{data.protocol}-protocol"]
    parts += ["refit"] if data.refit else []
    parts += [] if model.start is None else ["from", Path(model.start).name]
    parts += [] if config.run.seed == default.run.seed else [f"seed{config.run.seed}"]
    return "-".join(parts)


def _config_to_resume(run: Path, settings: dict[str, Any]) -> TrainConfig:
    """The run's own config; options may repeat it but not change it."""
    from shortcaps.runs.directory import read_manifest

    stored = read_manifest(run).train
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RunError(
                f"{spelling(name)} {value} is not what {run} was started with ({stored.get(name)}): "
                "a run resumes with the settings it was started with; start another with --out"
            )
    return stored

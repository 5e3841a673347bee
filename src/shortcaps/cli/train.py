"""`shortcaps train`."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console
from shortcaps.environment import is_first_process
from shortcaps.errors import RunError
from shortcaps.models import MODELS
from shortcaps.runs.config import HIGHEST_LR, RECIPES, TrainConfig, read_toml


def _setting(name: str, *flags: str) -> Any:
    """An option whose help is that of the config's field, and whose default is said there."""
    setting = next(setting for setting in fields(TrainConfig) if setting.name == name)
    default = "" if setting.default is None or setting.default is False else f" [default: {setting.default}]"
    return typer.Option(*flags, help=setting.metadata["help"] + "." + default, show_default=False)


RATES_HELP = ", ".join(f"{name} {rate:g}" for name, rate in HIGHEST_LR.items())
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

Highest lr unless `--lr` says otherwise: {RATES_HELP}.

Settings may stand in a TOML file (`--config`), in which case flags win over it; there `[network]` and
`[network.routing_settings]` change the network and its routing (docs/routings.md).

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
    placement: Annotated[str | None, _setting("placement")] = None,
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
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.training.display import ConsoleDisplay
    from shortcaps.training.loop import Interrupted, train

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
    keep_freed_memory()
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
    parts = [Path(config.data).name if "/" in config.data else config.data, config.model]
    parts += [config.routing] if MODELS[config.model].has_routing else []
    parts += [] if config.shortcut else ["sequential"]
    parts += [] if config.recipe == "fast" else [config.recipe]
    parts += [] if config.protocol == "default" else [f"{config.protocol}-protocol"]
    parts += [] if config.seed == 0 else [f"seed{config.seed}"]
    return "-".join(parts)


def _config_to_resume(run: Path, settings: dict[str, Any]) -> TrainConfig:
    """The run's own config; flags may repeat it but not change it."""
    from shortcaps.runs.directory import read_run_config

    config = read_run_config(run)
    stored = config["train"]
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RunError(
                f"--{name.replace('_', '-')} {value} is not what {run} was started with ({stored.get(name)}): "
                "a run is resumed as it was begun; start another with --out"
            )
    chosen = TrainConfig.from_dict(stored)
    if asdict(chosen.effective_recipe) != config["recipe"]:
        raise RunError(
            f"{run} was begun with another version of the recipe {chosen.recipe!r}: it cannot be resumed with this one; "
            "start another with --out"
        )
    return chosen

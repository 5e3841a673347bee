"""`shortcaps train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console
from shortcaps.cli.settings import takes_settings
from shortcaps.cli.shared import PLUGIN
from shortcaps.environment import is_first_process
from shortcaps.errors import RunError
from shortcaps.runs.config import FLAGS, TrainConfig, read_settings


@app.command(
    "train",
    help="""Train a network and test it once.

A recipe says how to train: `shortcaps recipe list` lists them, `shortcaps recipe copy fast my.toml` copies one to edit, and
`--recipe my.toml` uses the copy.

Settings may also be in a TOML file (`--config`); options take precedence over it. Its table `[model.settings]` changes the
architecture of the network (docs/routings.md).

Examples:

    shortcaps train

    shortcaps train --data affnist --routing attention --epochs 10

    shortcaps train --data photos/ --image-size 32 --colour

    shortcaps train --plugin my_routing.py --routing nearest

    shortcaps train --resume runs/mnist-baseline-fuzzy
""",
)
@takes_settings(FLAGS)
def train_command(
    plugin: PLUGIN = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings below.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory. [default: runs/DATA-MODEL-ROUTING…]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run directory of an interrupted run to resume.")] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps train`."""
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.training.display import ConsoleDisplay
    from shortcaps.training.run import train
    from shortcaps.training.signals import Interrupted

    settings = {**(read_settings(config) if config else {}), **settings}
    if resume is not None:
        chosen = _config_to_resume(resume, settings)
        target = resume
        if out is not None and out != resume:
            raise RunError(f"--out {out} is not the run to resume ({resume}): leave it out")
    else:
        chosen = TrainConfig.of(**settings)
        target = out or Path("runs") / _default_name(chosen)
    display = ConsoleDisplay(console)
    keep_freed_memory()
    try:
        result = train(chosen, target, resume=resume is not None, display=display)
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


def _default_name(config: TrainConfig) -> str:
    """The default name of a run: what differs from the defaults."""
    data, model, default = config.data, config.model, TrainConfig()
    parts = [Path(data.name).name if "/" in data.name else data.name, model.name]
    parts += [model.routing] if config.has_routing else []
    parts += [] if model.shortcut else ["sequential"]
    parts += [] if config.optim.recipe is None else [Path(config.optim.recipe).stem]
    parts += [] if data.protocol == default.data.protocol else [f"{data.protocol}-protocol"]
    parts += [] if config.run.seed == default.run.seed else [f"seed{config.run.seed}"]
    return "-".join(parts)


def _config_to_resume(run: Path, settings: dict[str, Any]) -> TrainConfig:
    """The run's own config; options may repeat it but not change it."""
    from shortcaps.runs.directory import read_manifest

    stored = read_manifest(run).train
    for name, value in settings.items():
        if stored.get(name) != value:
            raise RunError(
                f"--{name.replace('_', '-')} {value} is not what {run} was started with ({stored.get(name)}): "
                "a run resumes with the settings it was started with; start another with --out"
            )
    return stored

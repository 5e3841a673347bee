"""Arguments and data that several commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shortcaps.plugins import load_plugin

if TYPE_CHECKING:
    from shortcaps.data import Dataset
    from shortcaps.runs.config import TrainConfig

RUN = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or a network that comes along: mnist-baseline-fuzzy.")
]
INVERT = Annotated[
    bool | None,
    typer.Option(
        "--invert/--no-invert", help="Exchange light and dark. [default: the rim decides]", show_default=False
    ),
]


def _load_plugins(plugins: list[str] | None) -> list[str]:
    for plugin in plugins or []:
        load_plugin(plugin)
    return plugins or []


# Eager, so that what a plug-in registers is there when the other options are looked at.
PLUGIN = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        callback=_load_plugins,
        is_eager=True,
        show_default=False,
        help="Code of your own that registers routings, networks, data sets or recipes; may be given several times.",
    ),
]


def data_of_run(trained: TrainConfig, split: str) -> Dataset:
    """A split of the data a run was trained on."""
    from shortcaps.data import load_dataset

    return load_dataset(trained.data.name, split, trained.data.protocol, **trained.data.load_options)

"""Arguments that several commands share, and the data of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shortcaps.plugins import load_plugin

if TYPE_CHECKING:
    from shortcaps.data import Dataset
    from shortcaps.runs.config import TrainConfig

RUN = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or a pretrained network: mnist-baseline-fuzzy.")
]
INVERT = Annotated[
    bool | None,
    typer.Option(
        "--invert/--no-invert", help="Exchange light and dark. [default: decided by the border]", show_default=False
    ),
]


def _load_plugins(plugins: list[str] | None) -> list[str]:
    for plugin in plugins or []:
        load_plugin(plugin)
    return plugins or []


# Eager, so that the parts of a plug-in are registered before the other options are parsed.
PLUGIN = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        callback=_load_plugins,
        is_eager=True,
        show_default=False,
        help="Python code that registers parts of your own; may be given several times.",
    ),
]


def data_of_run(trained: TrainConfig, split: str) -> Dataset:
    """Load a split of the data that a run was trained on."""
    from shortcaps.data import load_dataset

    return load_dataset(trained.data.name, split, trained.data.protocol, **trained.data.load_options)

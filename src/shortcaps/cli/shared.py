"""Arguments and data that several commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortcaps.runs.config import TrainConfig

if TYPE_CHECKING:
    from shortcaps.data import Dataset

RUN = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or a network that comes along: mnist-baseline-fuzzy.")
]
INVERT = Annotated[
    bool | None,
    typer.Option(
        "--invert/--no-invert", help="Exchange light and dark. [default: the rim decides]", show_default=False
    ),
]


def data_of_run(config: dict[str, Any], split: str) -> Dataset:
    """A split of the data a run was trained on."""
    from shortcaps.data import load_dataset

    trained = TrainConfig.from_dict(config["train"])
    return load_dataset(trained.data, split, trained.protocol, **trained.data_options)

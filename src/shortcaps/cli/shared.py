"""Arguments that several commands share, and the data of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shortcaps.errors import RunError
from shortcaps.plugins import load_plugin

if TYPE_CHECKING:
    from shortcaps.data import Dataset
    from shortcaps.models import Network
    from shortcaps.runs.manifest import Manifest

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


DATA = Annotated[
    str | None,
    typer.Option("--data", help="Where the data of the run is now. [default: where it was]", show_default=False),
]


def data_of_run(manifest: Manifest, split: str, data: str | None = None) -> Dataset:
    """Load a split of the data that a run was trained on.

    Args:
        manifest: Of the run.
        split: `train`, `validation` or `test`.
        data: Where the data is now, if the user says so.

    Raises:
        DataError: It is nowhere, or cannot be read.
    """
    from shortcaps.data import load_dataset
    from shortcaps.runs.located import locate_data

    found = locate_data(manifest, data)
    return load_dataset(found.name, split, found.protocol, **found.load_options)


def check_images(model: Network, images: Dataset, run: str) -> None:
    """Raise RunError where a network cannot be shown these images, or where its answers would be to other classes.

    Args:
        model: The network.
        images: What it is to be shown.
        run: What the user called it.
    """
    shape, expected = images.image_shape, (model.channels, *model.image_size)
    if shape != expected:
        raise RunError(
            f"{images.name} has images of {'x'.join(map(str, shape))}, but {run} was trained on {'x'.join(map(str, expected))}"
        )
    if images.class_names != model.class_names:
        raise RunError(
            f"{images.name} has the classes {', '.join(images.class_names)}, but {run} knows {', '.join(model.class_names)}"
        )

"""A trained network from a run directory: JSON and safetensors, nothing that could run code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shortcaps.models import CapsuleNetwork


def load(run: str | Path) -> CapsuleNetwork:
    """The network of a run, or one that comes with the package, with its trained weights, ready for evaluation.

    Its class names are in `model.class_names`.

    >>> import shortcaps
    >>> shortcaps.load("mnist-baseline-fuzzy").class_names[3]
    '3'
    """
    from shortcaps.models import create_model
    from shortcaps.pretrained import find_run
    from shortcaps.training.config import RunError
    from shortcaps.training.run import RunDirectory, read_run_config, read_tensors

    path = find_run(run)
    config = read_run_config(path)
    file = RunDirectory(path).weights_file
    if not file.is_file():
        raise RunError(f"{path} has no weights yet: its training has not ended")
    try:
        model = create_model(**config["network"])
        model.load_state_dict(read_tensors(file))
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise RunError(f"{file} does not fit config.json: {error}") from error
    model.class_names = tuple(config["data"]["class_names"])
    return model.eval()

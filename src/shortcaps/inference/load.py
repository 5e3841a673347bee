"""A trained network from a run directory: JSON and safetensors, nothing that could run code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shortcaps.models import CapsuleNetwork, Network


def load(run: str | Path) -> CapsuleNetwork:
    """The network of a run, or one that comes with the package, with its trained weights, ready for evaluation.

    Its class names are in `model.class_names`.

    >>> import shortcaps
    >>> shortcaps.load("mnist-baseline-fuzzy").class_names[3]
    '3'
    """
    return with_capsules(load_network(run), run)


def with_capsules(model: Network, run: str | Path) -> CapsuleNetwork:
    """The same network, for what needs pose capsules; raises RunError where it has none."""
    from shortcaps.errors import RunError
    from shortcaps.models import CapsuleNetwork

    if not isinstance(model, CapsuleNetwork):
        raise RunError(
            f"{run} holds a {model.title}, which has no pose capsules: it can be evaluated and asked for predictions, "
            "but not explained"
        )
    return model


def load_network(run: str | Path) -> Network:
    """The same for any run, also of a network that was only trained for comparison."""
    from shortcaps.errors import RunError
    from shortcaps.models import create_model
    from shortcaps.pretrained import find_run

    try:
        from shortcaps.runs.directory import RunDirectory, read_run_config, read_tensors
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"loading a network needs {missing.name}, which is not installed: pip install 'shortcaps[use]'",
            name=missing.name,
        ) from missing
    path = find_run(run)
    config = read_run_config(path)
    file = RunDirectory(path).weights_file
    if not file.is_file():
        raise RunError(f"{path} has no weights yet: its training has not ended")
    try:
        model = create_model(**_as_settings(config["network"]))
        model.load_state_dict(read_tensors(file))
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise RunError(f"{file} does not fit config.json: {error}") from error
    model.class_names = tuple(config["data"]["class_names"])
    return model.eval()


def _as_settings(network: dict[str, Any]) -> dict[str, Any]:
    """What `create_model` takes, also from runs of 0.1, which say `preset` and `stem_width`."""
    settings = dict(network)
    if "preset" in settings:
        settings["name"] = settings.pop("preset")
    old = {"stem_channels": "width", "stem_kernel": "kernel", "stem_stride": "stride"}
    stem = {new: settings.pop(name) for name, new in old.items() if name in settings}
    return settings | ({"backbone_settings": stem} if stem else {})

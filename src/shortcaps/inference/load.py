"""Loading a trained network from a run directory: JSON and safetensors, nothing that could run code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shortcaps.models import CapsuleNetwork, Network


def load(run: str | Path, *, epoch: int | None = None) -> Network:
    """Load a trained network, ready for evaluation.

    Args:
        run: A run directory, or one of `shortcaps.pretrained.pretrained_names()`.
        epoch: The epoch, counted from 1, after which the network is taken, of a run that keeps them (`--keep-epochs`); None for the
            selected weights.

    Returns:
        The network, with its class names in `model.class_names`; a `CapsuleNetwork` if it has capsules.

    Raises:
        RunError: It is not a run, its training has not finished, or weights and config do not fit each other. A network with a part
            from a plug-in requires that plug-in to be loaded first (`shortcaps.load_plugin`); the message names it.

    Examples:
        >>> import shortcaps
        >>> shortcaps.load("mnist-baseline-fuzzy").class_names[3]
        '3'
    """
    from shortcaps.errors import RunError
    from shortcaps.models import create_model
    from shortcaps.pretrained import find_run
    from shortcaps.registry import UnknownPart

    try:
        from shortcaps.runs.directory import RunDirectory, read_manifest
        from shortcaps.runs.network import check_network
        from shortcaps.runs.weights import read_header, read_tensors
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        raise ModuleNotFoundError(
            f"loading a network needs {package}, which is not installed: pip install 'shortcaps[use]'", name=package
        ) from missing
    path = find_run(run)
    manifest = read_manifest(path)
    file = RunDirectory(path).weights_file if epoch is None else RunDirectory(path).epoch_file(epoch)
    if not file.is_file():
        raise RunError(
            f"{path} has no weights yet: its training has not finished"
            if epoch is None
            else f"{path} has no weights of epoch {epoch}: train with --keep-epochs"
        )
    try:
        header = read_header(file)
        with manifest.naming_plugins():
            classes = len(manifest.data.class_names)
            check_network(manifest.network, classes, header, is_plugin=bool(manifest.plugins))
        tensors = read_tensors(file)
    except (RunError, UnknownPart) as error:
        raise RunError(f"{path} cannot be used: {error}") from error
    except ValueError as error:
        raise RunError(" ".join(str(error).split())) from error
    try:
        model = create_model(**manifest.network)
        model.load_state_dict(tensors)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:  # of a plug-in, which may not have been checked
        raise RunError(f"{file} does not fit config.json: {' '.join(str(error).split())}") from error
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise RunError(f"{file} holds numbers that are not finite, in {name}: train the network again")
    model.class_names = manifest.data.class_names
    return model.eval()


def require_capsules(model: Network, run: str | Path) -> CapsuleNetwork:
    """The network itself, if it has pose capsules.

    Raises:
        RunError: It has none.
    """
    from shortcaps.errors import RunError
    from shortcaps.models import CapsuleNetwork

    if not isinstance(model, CapsuleNetwork):
        raise RunError(
            f"{run} holds a {model.title}, which has no pose capsules: it can be evaluated and used for predictions, "
            "but not explained"
        )
    return model

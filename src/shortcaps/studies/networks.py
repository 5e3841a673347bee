"""The networks of a study by name, and what each is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from shortcaps.errors import RunError
from shortcaps.models import MODELS
from shortcaps.reproduce.cells import OPPONENTS, Cell
from shortcaps.reproduce.compact import opponents as opponents_of_compact
from shortcaps.routing import ROUTINGS
from shortcaps.runs.config import ModelConfig, TrainConfig


def cell_of(network: str, dataset: str) -> Cell:
    """The cell of a network on a data set.

    Args:
        network: `MODEL`, `MODEL/ROUTING` or `MODEL/sequential/ROUTING`, e.g. `cnn-23k` or `baseline/fuzzy`.
        dataset: Name of the data set.

    Raises:
        RunError: The name is none of a network.
    """
    model, *more = network.split("/")
    routing = more[-1] if more else None
    family = None if routing is None else "sequential" if more[0] == "sequential" else "shortcut"
    if model not in MODELS:
        raise RunError(MODELS.unknown(model))
    if len(more) > (2 if family == "sequential" else 1) or (family == "sequential" and len(more) != 2):
        raise RunError(f"{network!r} is no name of a network: give MODEL, MODEL/ROUTING or MODEL/sequential/ROUTING")
    if routing is not None and routing not in ROUTINGS:
        raise RunError(ROUTINGS.unknown(routing))
    return Cell(model, family, routing, dataset)


def name_of(config: TrainConfig) -> str:
    """The name of the network that a config describes; the routing is left out where it is the only one or the preset's own."""
    model = config.model
    if not config.has_routing:
        return model.name
    if not model.shortcut:
        return f"{model.name}/sequential/{model.routing}"
    is_choice = "shortcut" in MODELS[model.name].settings or model.routing != ModelConfig().routing
    return f"{model.name}/{model.routing}" if is_choice else model.name


def is_plain(network: str) -> bool:
    """Whether a network has no capsules.

    Raises:
        RunError: It is not known, e.g. because it comes from a plug-in.
    """
    model = network.partition("/")[0]
    if model not in MODELS:
        raise RunError(
            f"{MODELS.unknown(model)}; if it is of a plug-in, name that with --plugin, or move its records away"
        )
    return MODELS[model].kind == "plain"


def opponents(network: str, measured: Sequence[str]) -> list[str]:
    """What a network with capsules is compared with, of those that were measured.

    Its twin, the plain CNN of its size and the twin with sigmoids; every plain network if none of them is known.
    """
    if is_plain(network):
        return []
    model, *more = network.split("/")
    of_paper = OPPONENTS.get((model, "sequential" if "sequential" in more else "shortcut"))
    compact = (*opponents_of_compact(model), f"{model}-sigmoid")
    own = [of_paper] if of_paper else [name for name in compact if name in MODELS]
    return [name for name in own or measured if name in measured and is_plain(name)]

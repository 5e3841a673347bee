"""Routing: from votes to capsules. Four algorithms, each written once against `Votes`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from shortcaps.routing.attention import Attention
from shortcaps.routing.base import ROUTINGS, Capsules, Routing, list_routings, pose_length, register_routing, squash
from shortcaps.routing.dynamic import Dynamic
from shortcaps.routing.em import EM
from shortcaps.routing.factored import FactoredVotes
from shortcaps.routing.fuzzy import Fuzzy
from shortcaps.routing.votes import DenseVotes, Votes

__all__ = [
    "EM",
    "ROUTINGS",
    "Attention",
    "Capsules",
    "DenseVotes",
    "Dynamic",
    "FactoredVotes",
    "Fuzzy",
    "Routing",
    "Votes",
    "list_routings",
    "make_routing",
    "pose_length",
    "register_routing",
    "route",
    "squash",
]


def make_routing(routing: str | Routing, **settings: Any) -> Routing:
    """A routing by its name and settings: `make_routing("fuzzy", iterations=3, fuzziness=1.5)`.

    Args:
        routing: One of `list_routings()`, or a `Routing`, which is returned as it is.
        **settings: Of the routing.

    Raises:
        ValueError: The name is unknown, or a setting has a value that makes no sense.
        TypeError: The routing has no such setting.
    """
    if isinstance(routing, Routing):
        if settings:
            raise TypeError(f"{routing} is already made: give its settings ({', '.join(settings)}) where you make it")
        return routing
    kind = ROUTINGS[routing]
    known = [setting.name for setting in fields(kind)]
    for name in settings:
        if name not in known:
            raise TypeError(f"{routing} routing has no setting {name!r}: it has {', '.join(known)}")
    return kind(**settings)


def route(
    votes: Votes | Tensor,
    routing: str | Routing = "fuzzy",
    *,
    start: Tensor | None = None,
    activations: Tensor | None = None,
    thresholds: dict[str, Tensor] | None = None,
    keep_coefficients: bool = False,
    **settings: Any,
) -> Capsules:
    """Route votes of your own.

    Args:
        votes: (batch, inputs, outputs, rows, cols) for matrix capsules, (batch, inputs, outputs, size) for vector capsules, or any
            `Votes`.
        routing: A name or a `Routing`.
        start: The latest higher capsules to begin from; from scratch where it is None.
        activations: (batch, inputs), how much each input exists; 1 where it is None.
        thresholds: A routing's trainable numbers, (outputs,) each; their starting values where they are None.
        keep_coefficients: Whether coefficients and memberships are wanted.
        **settings: Of a routing given by name.

    >>> import torch, shortcaps
    >>> capsules = shortcaps.route(torch.rand(2, 30, 5, 4, 4), routing="fuzzy", iterations=3)
    >>> capsules.pose.shape, capsules.activation.shape
    (torch.Size([2, 5, 4, 4]), torch.Size([2, 5]))
    """
    algorithm = make_routing(routing, **settings)
    vectors = isinstance(votes, Tensor) and votes.ndim == 4
    if isinstance(votes, Tensor):
        votes = DenseVotes(votes.unsqueeze(-1) if vectors else votes)
    if vectors and start is not None:
        start = start.unsqueeze(-1)
    capsules = algorithm(
        votes,
        start=start,
        activations=activations,
        thresholds=thresholds or {},
        keep_coefficients=keep_coefficients,
    )
    if vectors:
        capsules.pose = capsules.pose.squeeze(-1)
    return capsules

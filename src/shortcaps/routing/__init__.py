"""Routing: from votes to capsules. Four algorithms, each written once against `Votes`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from shortcaps.routing.attention import Attention
from shortcaps.routing.base import (
    ROUTINGS,
    Capsules,
    Readout,
    Routing,
    list_routings,
    pose_length,
    register_routing,
    squash,
)
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
    "Readout",
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
    """Create a routing from its name and settings: `make_routing("fuzzy", iterations=3, fuzziness=1.5)`.

    Args:
        routing: One of `list_routings()`, or a `Routing`, which is returned unchanged.
        **settings: Settings of the routing.

    Raises:
        ValueError: The name is unknown, or a setting is out of range.
        TypeError: The routing has no such setting.
    """
    if isinstance(routing, Routing):
        if settings:
            raise TypeError(f"{routing} already has its settings: give {', '.join(settings)} when you create it")
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
        start: The latest higher capsules (batch, outputs, rows, cols) or (batch, outputs, size); None to begin from equal shares.
        activations: (batch, inputs), those of the lower capsules, each in 0–1; None if all are 1.
        thresholds: The routing's trainable numbers by name, (outputs,) each; their initial values if None.
        keep_coefficients: Whether coefficients and memberships are requested.
        **settings: Settings of a routing given by name.

    Returns:
        The higher capsules: pose (batch, outputs, rows, cols) or (batch, outputs, size), activation (batch, outputs).

    Examples:
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

"""What all routings share: the interface, its result, and the arithmetic that more than one of them needs."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from shortcaps.routing.votes import Votes

NO_THRESHOLDS: Mapping[str, Tensor] = {}


@dataclass
class Capsules:
    """Higher capsules: what a routing returns.

    pose: (batch, outputs, rows, cols)
    activation: (batch, outputs), the probability that the capsule's entity is there; None where it was not asked for
    coefficients: (batch, inputs, outputs), the weights `r` of Eq. (5) that formed the pose; None unless asked for
    memberships: (batch, inputs, outputs), how each input divides itself among the outputs (they sum to 1 over the
        outputs); None unless asked for
    """

    pose: Tensor
    activation: Tensor | None = None
    coefficients: Tensor | None = None
    memberships: Tensor | None = None


@dataclass(frozen=True)
class Routing(ABC):
    """A routing algorithm: settings only, no trainable numbers and no state.

    Call it with votes. `start` holds the latest higher capsules (shortcut routing); without it the routing begins from
    equal shares (sequential routing). `activations` (batch, inputs) says how much each input exists.

    To add a routing: subclass this in a file of its own, implement `route`, and add the class to `ROUTINGS` in
    `shortcaps/routing/__init__.py`. `shortcaps.testing.check_routing` tells which laws it obeys.
    """

    name: ClassVar[str]
    squashes: ClassVar[bool] = False
    """Whether a pose carries its probability as its length, so that local layers squash their poses as well."""
    uses_activations: ClassVar[bool] = False
    """Whether a sequential network has to provide activations beside the poses."""

    iterations: int = field(default=2, metadata={"help": "updates of the higher capsules in one call, at least 1"})

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations {self.iterations} is too small: a routing needs at least 1")

    def thresholds(self, *, activates: bool) -> dict[str, float]:
        """The trainable numbers that each output has, by name, with their starting values.

        `activates` is False where nobody will ask for the activation: a number used only for it would never learn.
        """
        return {}

    @abstractmethod
    def sweeps(self, *, from_start: bool) -> int:
        """How often one call goes over every number of every vote, each time with one multiply–add."""

    @abstractmethod
    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
    ) -> Capsules:
        """The algorithm. Returns everything it has at hand; `__call__` drops what was not asked for."""

    def __call__(
        self,
        votes: Votes,
        *,
        start: Tensor | None = None,
        activations: Tensor | None = None,
        thresholds: Mapping[str, Tensor] = NO_THRESHOLDS,
        activate: bool = True,
        keep_coefficients: bool = False,
    ) -> Capsules:
        centre_shape = (votes.batch, votes.outputs, votes.rows, votes.cols)
        if start is not None and tuple(start.shape) != centre_shape:
            raise ValueError(f"start has shape {tuple(start.shape)}: these votes need {centre_shape}")
        if activations is not None and tuple(activations.shape) != (votes.batch, votes.inputs):
            raise ValueError(
                f"activations have shape {tuple(activations.shape)}: these votes need {(votes.batch, votes.inputs)}"
            )
        if start is not None:
            start = start.to(votes.dtype)
        if activations is not None:
            activations = activations.to(votes.dtype)
        with _full_precision(votes.device):
            # Native code keeps no coefficients, so they are had from the algorithm itself.
            capsules = None if keep_coefficients else votes.run(self, start, activations, thresholds, activate)
            if capsules is None:
                capsules = self.route(votes, start, activations, thresholds, activate)
        if not keep_coefficients:
            capsules.coefficients = capsules.memberships = None
        return capsules


def _full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Matrix products inside a routing keep their precision even under autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def threshold(thresholds: Mapping[str, Tensor], name: str, default: float, like: Tensor) -> Tensor:
    """A routing's trainable number, or its starting value where the caller has none (`shortcaps.route`)."""
    return thresholds[name].to(like.dtype) if name in thresholds else like.new_full((1,), default)


def squash(poses: Tensor) -> Tensor:
    """`s ||s|| / (1 + ||s||^2)` over the last two dimensions: the direction stays, the length falls into [0, 1).

    Safe at zero: the value is 0 and so is the gradient, since `vector_norm` takes 0 as its subgradient there.
    """
    length = torch.linalg.vector_norm(poses, dim=(-2, -1), keepdim=True)
    return poses * (length / (1 + length.square()))


def pose_length(poses: Tensor) -> Tensor:
    """The length of each pose, (…, rows, cols) → (…); Eq. (11) when the pose is squashed."""
    return torch.linalg.vector_norm(poses, dim=(-2, -1))


def equal_shares(votes: Votes) -> Tensor:
    """Every input divides itself equally among the outputs: (batch, inputs, outputs)."""
    return torch.full(
        (votes.batch, votes.inputs, votes.outputs), 1 / votes.outputs, dtype=votes.dtype, device=votes.device
    )


def scaled_by_activation(memberships: Tensor, activations: Tensor | None) -> Tensor:
    """A lower capsule counts as much as it exists."""
    return memberships if activations is None else memberships * activations.unsqueeze(-1)


def shares_over_inputs(log_weights: Tensor, activations: Tensor | None) -> Tensor:
    """Weights (batch, inputs, outputs), given as logarithms, scaled to sum to 1 over the inputs.

    Subtracting each output's largest weight first keeps an output that hardly any input belongs to from becoming 0 / 0.
    """
    if activations is None:
        return log_weights.softmax(1)
    weights = scaled_by_activation((log_weights - log_weights.amax(1, keepdim=True).detach()).exp(), activations)
    return weights / (weights.sum(1, keepdim=True) + 1e-12)

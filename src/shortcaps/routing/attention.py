"""Attention routing, Eq. (5)–(7) and (11): an input attends to the outputs its votes agree with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from shortcaps.kernels.spec import NativeSpec
from shortcaps.routing.base import (
    Capsules,
    Routing,
    equal_shares,
    pose_length,
    register_routing,
    scaled_by_activation,
    squash,
)
from shortcaps.routing.votes import Votes


@register_routing
@dataclass(frozen=True)
class Attention(Routing):
    """Each iteration attends anew: the scores depend on the latest higher capsules alone, not on earlier ones.

    Attributes:
        iterations: Updates of the higher capsules in one call, at least 1.
    """

    name = "attention"
    squashes = True
    native = NativeSpec(kind=0, state_size=lambda iterations, outputs, size: iterations * outputs * size)

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        """Eq. (6) and Eq. (5) in each iteration; from scratch the first needs no Eq. (6)."""
        return 2 * self.iterations - (0 if from_start else 1)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        """Attention routing, as `Routing.route` describes."""
        pose = start
        for _ in range(self.iterations):
            if pose is None:
                coefficients = equal_shares(votes)
            else:
                scores = votes.agreement(pose)  # Eq. (6)
                coefficients = scores.softmax(-1)  # Eq. (7), over the outputs
            weights = scaled_by_activation(coefficients, activations)
            pose = squash(votes.weighted_sum(weights))  # Eq. (5), and the squash of Eq. (11)
        assert pose is not None, "there is at least one iteration"
        activation = pose_length(pose) if activate else None  # Eq. (11)
        if not keep_coefficients:
            return Capsules(pose, activation)
        return Capsules(pose, activation, weights, memberships=coefficients)

"""Dynamic routing (Sabour et al., 2017) from the latest higher capsules: agreement is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.kernels.spec import NativeSpec
from shortcaps.routing.base import Capsules, Routing, pose_length, register_routing, scaled_by_activation, squash
from shortcaps.routing.votes import Votes


@register_routing
@dataclass(frozen=True)
class Dynamic(Routing):
    """Each iteration adds its agreement to the scores of the previous ones.

    Attributes:
        iterations: Updates of the higher capsules in one call, at least 1.
    """

    name = "dynamic"
    squashes = True
    native = NativeSpec(kind=1, state_size=lambda iterations, outputs, size: iterations * outputs * size)

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        """Agreement and sum in each iteration; from scratch the first has no agreement."""
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
        """Dynamic routing, as `Routing.route` describes."""
        pose = start
        scores = torch.zeros((votes.batch, votes.inputs, votes.outputs), dtype=votes.dtype, device=votes.device)
        for _ in range(self.iterations):
            if pose is not None:
                scores = scores + votes.agreement(pose)  # b ← b + <v, g>
            coefficients = scores.softmax(-1)  # c = softmax(b), over the outputs
            weights = scaled_by_activation(coefficients, activations)
            pose = squash(votes.weighted_sum(weights))  # g = squash(Σ c v)
        assert pose is not None, "there is at least one iteration"
        activation = pose_length(pose) if activate else None  # Eq. (11)
        if not keep_coefficients:
            return Capsules(pose, activation)
        return Capsules(pose, activation, weights, memberships=coefficients)

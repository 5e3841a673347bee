"""Fuzzy routing, Eq. (5), (8)–(10), (12) and (13): fuzzy c-means with the higher capsules as cluster centres."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shortcaps.kernels.spec import NativeSpec
from shortcaps.routing.base import (
    Capsules,
    Routing,
    check_floor,
    equal_shares,
    register_routing,
    shares_over_inputs,
    threshold,
)
from shortcaps.routing.votes import Votes


@register_routing
@dataclass(frozen=True)
class Fuzzy(Routing):
    """An input belongs to an output according to how near its vote is to the centre, compared with the other outputs.

    Attributes:
        iterations: Updates of the higher capsules in one call, at least 1.
        fuzziness: m_f of Eq. (9); above 1, and harder the nearer to 1.
        sharpness: λ of Eq. (13).
        floor: Added to squared distances, so that none is zero.
    """

    name = "fuzzy"
    uses_activations = True
    native = NativeSpec(
        kind=2,
        softness="fuzziness",
        sharpness="sharpness",
        floor="floor",
        beta="beta",
        state_size=lambda iterations, outputs, size: iterations * outputs * size + (2 * iterations + 1) * outputs,
    )

    fuzziness: float = 2.0
    sharpness: float = 1.0
    floor: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.fuzziness < math.inf:
            size = "too large" if self.fuzziness == math.inf else "too small"
            raise ValueError(
                f"fuzziness m_f = {self.fuzziness} is {size}: Eq. (9) needs a finite number above 1, e.g. 2"
            )
        check_floor(self.floor)

    def thresholds(self, *, activates: bool) -> dict[str, float]:
        """β of Eq. (13), if the activation is used."""
        return {"beta": 0.0} if activates else {}

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        """Eq. (8) and Eq. (5) in each iteration, and Eq. (12) once; from scratch the first needs no Eq. (8)."""
        return 2 * self.iterations - (0 if from_start else 1) + (1 if activates else 0)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        """Fuzzy routing, as `Routing.route` describes."""
        pose = start
        for _ in range(self.iterations):
            if pose is None:
                log_memberships = equal_shares(votes).log()
            else:
                log_distances = (votes.distance(pose) + self.floor).log()  # Eq. (8), as ln d²
                # Eq. (9): 1 / Σ_k (d_m / d_k)^(2 / (m_f - 1)) is the softmax over k of -ln d² / (m_f - 1)
                log_memberships = (-log_distances / (self.fuzziness - 1)).log_softmax(-1)
            coefficients = shares_over_inputs(self.fuzziness * log_memberships, activations)  # Eq. (10)
            pose = votes.weighted_sum(coefficients)  # Eq. (5)
        assert pose is not None, "there is at least one iteration"
        activation = None
        if activate:
            variance = (coefficients * votes.distance(pose)).sum(1)  # Eq. (12)
            beta = threshold(thresholds, "beta", 0.0, like=pose)
            log_deviation = (variance + self.floor).log() / 2
            activation = torch.sigmoid(self.sharpness * (beta - log_deviation))  # Eq. (13)
        if not keep_coefficients:
            return Capsules(pose, activation)
        return Capsules(pose, activation, coefficients, memberships=log_memberships.exp())

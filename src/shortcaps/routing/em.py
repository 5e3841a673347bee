"""EM routing (Hinton et al., 2018): the higher capsules are Gaussians, fitted to the votes by E and M steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.kernels.spec import NativeSpec
from shortcaps.routing.base import (
    Capsules,
    Routing,
    check_floor,
    equal_shares,
    register_routing,
    scaled_by_activation,
    shares_over_inputs,
    threshold,
)
from shortcaps.routing.votes import Votes


@register_routing
@dataclass(frozen=True)
class EM(Routing):
    """Gaussians fitted to the votes by E and M steps in turn.

    From given capsules it begins with their variance under equal shares; from scratch it begins with an M step under equal shares.

    Attributes:
        iterations: M steps in one call, at least 1.
        sharpness: λ of the activation, for one number of a pose and an equal share of the inputs: it is divided by both counts, so
            that it means the same in every layer.
        temperature: Divides the log-density of a vote in the E step. 1 is EM; the number of numbers in a pose takes their mean
            instead of their sum, so that inputs are divided among outputs softly.
        floor: Added to every variance.
    """

    name = "em"
    uses_activations = True
    native = NativeSpec(
        kind=3,
        softness="temperature",
        sharpness="sharpness",
        floor="floor",
        beta="beta_activate",
        beta_use="beta_use",
        state_size=lambda iterations, outputs, size: (
            (2 * iterations + 1) * outputs * size + 3 * (iterations + 1) * outputs
        ),
    )

    sharpness: float = 1.0
    temperature: float = 1.0
    floor: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floor(self.floor)
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} is too small: it must be above 0, e.g. 1")

    def thresholds(self, *, activates: bool) -> dict[str, float]:
        """The costs β_use and β_activate: EM uses the activation in its E step, so they are always trained."""
        return {"beta_use": 0.0, "beta_activate": 0.0}

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        """E step, mean and variance in each iteration.

        From scratch, equal shares replace the first E step; from given capsules, a variance is computed first.
        """
        return 3 * self.iterations + (1 if from_start else -1)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        """EM routing, as `Routing.route` describes."""
        shares = equal_shares(votes)
        log_shares = shares.log()
        mean = start
        if mean is not None:
            coefficients = shares_over_inputs(log_shares, activations)
            variance = votes.weighted_squares(coefficients, mean) + self.floor
            logit = self._activation_logit(shares, variance, activations, thresholds)
        for _ in range(self.iterations):
            if mean is not None:
                log_shares = self._expectation(votes, mean, variance, logit)
                shares = log_shares.exp()
            # M step
            coefficients = shares_over_inputs(log_shares, activations)
            mean = votes.weighted_sum(coefficients)
            variance = votes.weighted_squares(coefficients, mean) + self.floor
            logit = self._activation_logit(shares, variance, activations, thresholds)
        assert mean is not None, "there is at least one iteration"
        activation = torch.sigmoid(logit) if activate else None
        if not keep_coefficients:
            return Capsules(mean, activation)
        return Capsules(mean, activation, coefficients, memberships=shares)

    def _expectation(self, votes: Votes, mean: Tensor, variance: Tensor, logit: Tensor) -> Tensor:
        """E step: `R ∝ a N(v | mean, variance)^(1/τ)` over the outputs, as logarithms."""
        normaliser = (variance.log() + math.log(2 * math.pi)).sum((-2, -1)).unsqueeze(1)
        log_density = -0.5 / self.temperature * (votes.scaled_distance(mean, 1 / variance) + normaliser)
        return (F.logsigmoid(logit).unsqueeze(1) + log_density).log_softmax(-1)

    def _activation_logit(
        self, shares: Tensor, variance: Tensor, activations: Tensor | None, thresholds: Mapping[str, Tensor]
    ) -> Tensor:
        """`λ (β_a - Σ_h cost_h)` with `cost_h = (β_u + ln σ_h) Σ_i r_i`; an output that explains no input costs nothing."""
        inputs, outputs = shares.shape[1:]
        size = variance.shape[-2] * variance.shape[-1]
        assigned = scaled_by_activation(shares, activations).sum(1)
        beta_use = threshold(thresholds, "beta_use", 0.0, like=variance)
        beta_activate = threshold(thresholds, "beta_activate", 0.0, like=variance)
        per_input = (beta_use[..., None, None] + variance.log() / 2).sum((-2, -1))
        return self.sharpness * (beta_activate - per_input * assigned / (size * inputs / outputs))

"""Votes that are never built and never leave the cache: a whole routing in one call of the native library."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shortcaps.kernels.library import is_transformed
from shortcaps.kernels.route_op import run_route
from shortcaps.routing.base import Capsules, Readout, Routing
from shortcaps.routing.factored import FactoredVotes


class FusedVotes(FactoredVotes):
    """Factored votes that run a routing natively if it has a `native` spec, and answer any other as factored votes do.

    Args:
        poses: As for `FactoredVotes`.
        transforms: Likewise.
        apply_relu: Whether the poses still have to pass a ReLU before they vote.
    """

    def __init__(self, poses: Tensor, transforms: Tensor, *, apply_relu: bool = False) -> None:
        super().__init__(poses, transforms)
        self._apply_relu = apply_relu

    @property
    def poses(self) -> Tensor:
        """The poses that vote. Native code applies the ReLU itself, so only a routing without it asks for them."""
        return torch.relu(self._poses) if self._apply_relu else self._poses

    def run(
        self,
        routing: Routing,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        readout: Readout | None = None,
    ) -> Capsules | None:
        """The whole routing in native code; None for a routing that has none."""
        spec = routing.native
        if spec is None:
            return None
        if readout is not None and is_transformed(*readout):
            # Native code knows no transforms of torch.func; where the readout alone is transformed, the routing need not know them.
            capsules = self.run(routing, start, activations, thresholds, activate)
            return None if capsules is None else capsules.read_by(readout)
        pose, activation = run_route(
            self._poses,
            self.transforms,
            start,
            activations,
            *spec.thresholds(thresholds),
            *((None, None) if readout is None else readout),
            spec.kind,
            routing.iterations,
            activate,
            *spec.settings(routing),
            rectified=self._apply_relu,
        )
        return Capsules(pose, activation if activate else None)

"""Votes that are never built and never leave the cache: a whole routing in one call of the native library."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shortcaps.kernels.route_op import run_route
from shortcaps.routing.base import Capsules, Readout, Routing
from shortcaps.routing.factored import FactoredVotes


class FusedVotes(FactoredVotes):
    """Factored votes that run a routing natively if it has a `native` spec, and answer any other as factored votes do."""

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
        pose, activation = run_route(
            self.poses,
            self.transforms,
            start,
            activations,
            *spec.thresholds(thresholds),
            *(readout or (None, None)),
            spec.kind,
            routing.iterations,
            activate,
            *spec.settings(routing),
        )
        return Capsules(pose, activation if activate else None)

"""Votes that are never built and never leave the cache: a whole routing in one call of the native library."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shortcaps.kernels.route_op import run_route
from shortcaps.routing.attention import Attention
from shortcaps.routing.base import Capsules, Routing
from shortcaps.routing.dynamic import Dynamic
from shortcaps.routing.em import EM
from shortcaps.routing.factored import FactoredVotes
from shortcaps.routing.fuzzy import Fuzzy

# The numbers of RoutingKind in routing.h.
KINDS: dict[type[Routing], int] = {Attention: 0, Dynamic: 1, Fuzzy: 2, EM: 3}


class FusedVotes(FactoredVotes):
    """Factored votes that run the four routings natively, and answer any other routing as factored votes do."""

    def run(
        self,
        routing: Routing,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
    ) -> Capsules | None:
        kind = KINDS.get(type(routing))
        if kind is None:
            return None
        settings = (
            getattr(routing, "fuzziness", getattr(routing, "temperature", 1.0)),
            getattr(routing, "sharpness", 1.0),
            getattr(routing, "floor", 0.0),
        )
        beta = thresholds.get("beta", thresholds.get("beta_activate"))
        pose, activation = run_route(
            self.poses,
            self.transforms,
            start,
            activations,
            beta,
            thresholds.get("beta_use"),
            kind,
            routing.iterations,
            activate,
            *settings,
        )
        return Capsules(pose, activation if activate else None)

"""Routing problems in factored form, for tests that compare paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from shortcaps import routing as routings
from shortcaps.kernels import library
from shortcaps.routing import Capsules, Readout, Routing, Votes
from shortcaps.routing.paths import make_votes

ROUTINGS: list[Routing] = [kind() for kind in routings.ROUTINGS.values()]
NATIVE_ROUTINGS = [routing for routing in ROUTINGS if routing.native is not None]
NATIVE = pytest.mark.skipif(not library.AVAILABLE, reason="the native library was not built: there was no C++ compiler")
FUSED = pytest.param("fused", marks=NATIVE)
THREADED = pytest.param("fused, three threads", marks=NATIVE)
PATHS = ["dense", "factored", FUSED]
PATHS_AND_THREADS = [*PATHS, THREADED]


def routing_name(routing: object) -> str:
    return routing.name if isinstance(routing, Routing) else str(routing)


@dataclass(frozen=True)
class FactoredProblem:
    """Poses (batch, groups, members, rows, cols), transforms (groups, outputs, rows, rows), a way to begin and perhaps a readout and a ReLU."""

    poses: Tensor
    transforms: Tensor
    start: Tensor | None
    activations: Tensor | None
    thresholds: dict[str, Tensor]
    readout: Readout | None = None
    rectified: bool = False

    def votes(self, path: str) -> Votes:
        path, _, threads = path.partition(", ")
        torch.set_num_threads(3 if threads else 1)
        return make_votes(self.poses, self.transforms, path, apply_relu=self.rectified)

    def solve(self, routing: Routing, path: str, *, keep_coefficients: bool = False) -> Capsules:
        return routing(
            self.votes(path),
            start=self.start,
            activations=self.activations,
            thresholds=self.thresholds,
            keep_coefficients=keep_coefficients,
            readout=self.readout,
        )

    def tensors(self) -> dict[str, Tensor]:
        named = {"poses": self.poses, "transforms": self.transforms, **self.thresholds}
        if self.start is not None:
            named["start"] = self.start
        if self.activations is not None:
            named["activations"] = self.activations
        if self.readout is not None:
            named |= {"readout": self.readout.weight, "readout_bias": self.readout.bias}
        return named

    def map(self, change: Callable[[Tensor], Tensor]) -> FactoredProblem:
        return replace(
            self,
            poses=change(self.poses),
            transforms=change(self.transforms),
            start=None if self.start is None else change(self.start),
            activations=None if self.activations is None else change(self.activations),
            thresholds={name: change(value) for name, value in self.thresholds.items()},
            readout=None if self.readout is None else Readout(*map(change, self.readout)),
        )

    def requiring_grad(self) -> FactoredProblem:
        return self.map(lambda tensor: tensor.detach().clone().requires_grad_())

    def gradients(self, routing: Routing, path: str) -> dict[str, Tensor]:
        """Gradients of a fixed random projection of pose and activation."""
        problem = self.requiring_grad()
        capsules = problem.solve(routing, path)
        assert capsules.activation is not None
        generator = torch.Generator().manual_seed(1)
        loss = sum(
            (part * torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.dtype)).sum()
            for part in (capsules.pose, capsules.activation)
        )
        loss.backward()
        return {
            name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for name, tensor in problem.tensors().items()
        }


def factored_problem(
    routing: Routing,
    *,
    shortcut: bool,
    batch: int = 2,
    groups: int = 3,
    members: int = 4,
    outputs: int = 3,
    rows: int = 3,
    cols: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
    readout: bool = False,
    rectified: bool = False,
) -> FactoredProblem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return FactoredProblem(
        poses=scale * normal(batch, groups, members, rows, cols),
        transforms=normal(groups, outputs, rows, rows) * rows**-0.5,
        start=scale * normal(batch, outputs, rows, cols) if shortcut else None,
        activations=None if shortcut else torch.sigmoid(normal(batch, groups * members)),
        thresholds={name: normal(outputs) * 0.5 for name in routing.thresholds(activates=True)},
        readout=Readout(normal(outputs, rows, cols), normal(outputs)) if readout else None,
        rectified=rectified,
    )

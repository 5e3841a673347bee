"""Which implementation answers for the votes of a layer."""

from __future__ import annotations

from torch import Tensor

import shortcaps.kernels.local_op
import shortcaps.kernels.route_op  # noqa: F401  (these two register the operators)
from shortcaps.kernels import library
from shortcaps.routing.base import Routing, full_precision
from shortcaps.routing.factored import FactoredVotes
from shortcaps.routing.fused import FusedVotes
from shortcaps.routing.votes import DenseVotes, Votes, at_least_float32

PATHS = {
    "auto": "the fastest path that gives the same numbers here",
    "dense": "votes built in full: slow and large, the reference",
    "factored": "votes never built; runs wherever PyTorch runs",
    "fused": "votes never built, whole routings in native code; on the CPU, in float32 and float64",
}


def check_path(path: str) -> str:
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}: choose one of {', '.join(PATHS)}")
    return path


def make_votes(poses: Tensor, transforms: Tensor, path: str = "auto") -> Votes:
    """Votes of poses (batch, groups, members, rows, cols) through transforms (groups, outputs, rows, rows)."""
    poses, transforms = at_least_float32(poses), at_least_float32(transforms)
    if runs_natively(path, poses, transforms):
        return FusedVotes(poses, transforms)
    votes = FactoredVotes(poses, transforms)
    if path != "dense":
        return votes
    with full_precision(poses.device):
        return DenseVotes(votes.dense())


def runs_natively(path: str, *tensors: Tensor) -> bool:
    """Whether a layer with this path uses native code for these tensors."""
    if path == "fused" and not library.AVAILABLE:
        raise RuntimeError(f"path 'fused' needs the native library, which is {library.description()}")
    return path in ("auto", "fused") and library.accepts(*tensors)


def describe_path(path: str, routing: Routing) -> str:
    """Which path runs on this machine's CPU with this routing, in words."""
    if path == "auto":
        path = "fused" if library.AVAILABLE else "factored"
    if path == "fused" and routing.native is None:
        path = "factored"
    return f"{path} ({library.description()})" if path == "fused" else f"{path} ({PATHS[path]})"

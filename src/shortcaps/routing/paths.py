"""Paths: which implementation computes the votes of a layer."""

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
    "auto": "the fastest path available",
    "dense": "votes built in full: slow and large, the reference",
    "factored": "votes never built; runs wherever PyTorch runs",
    "fused": "votes never built, whole routings in native code; on the CPU, in float32 and float64",
}


def check_path(path: str) -> str:
    """Return the path if it is one of `PATHS`; raise ValueError otherwise."""
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}: choose one of {', '.join(PATHS)}")
    return path


def make_votes(poses: Tensor, transforms: Tensor, path: str = "auto") -> Votes:
    """Votes by one of the paths.

    Args:
        poses: (batch, groups, members, rows, cols).
        transforms: (groups, outputs, rows, rows).
        path: One of `PATHS`.

    Raises:
        RuntimeError: The path is `fused` and there is no native library.
    """
    poses, transforms = at_least_float32(poses), at_least_float32(transforms)
    require_library(path)
    if runs_natively(path, poses, transforms):
        return FusedVotes(poses, transforms)
    votes = FactoredVotes(poses, transforms)
    if path != "dense":
        return votes
    with full_precision(poses.device):
        return DenseVotes(votes.dense())


def require_library(path: str) -> None:
    """Raise RuntimeError if the path is `fused` and there is no native library."""
    if path == "fused" and not library.AVAILABLE:
        raise RuntimeError(f"path 'fused' needs the native library, which is {library.description()}")


def runs_natively(path: str, *tensors: Tensor) -> bool:
    """Whether a layer with this path uses native code for these tensors."""
    return path in ("auto", "fused") and library.accepts(*tensors)


def describe_path(path: str, routing: Routing) -> str:
    """The path that this routing takes on the CPU of this machine, in words."""
    if path == "auto":
        path = "fused" if library.AVAILABLE else "factored"
    if path == "fused" and routing.native is None:
        path = "factored"
    return f"{path} ({library.description()})" if path == "fused" else f"{path} ({PATHS[path]})"

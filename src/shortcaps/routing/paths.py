"""Paths: which implementation computes the votes of a layer."""

from __future__ import annotations

import torch
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


DENSE_NUMBERS = 2**23
"""Where there is no native code, `auto` builds votes of up to this many numbers in full, 32 MB in float32. In eager mode on the CPU a training
step with fuzzy or EM routing then takes 0.55 to 0.66 of the time that factored votes need, which are computed anew in every iteration, and
about as long with the other routings (docs/performance.md). What PyTorch keeps for the backward pass is several times as large, so larger ones
stay factored."""


def make_votes(
    poses: Tensor, transforms: Tensor, path: str = "auto", *, routing: Routing | None = None, apply_relu: bool = False
) -> Votes:
    """Votes by one of the paths.

    Args:
        poses: (batch, groups, members, rows, cols).
        transforms: (groups, outputs, rows, rows).
        path: One of `PATHS`.
        routing: The routing that will use them, if it is known: one without native code is not helped by the native path.
        apply_relu: Whether the poses still have to pass a ReLU before they vote. Native code applies it as it reads them.

    Raises:
        RuntimeError: The path is `fused` and there is no native library.
    """
    poses, transforms = at_least_float32(poses), at_least_float32(transforms)
    require_library(path)
    has_kernel = routing is None or routing.native is not None or path == "fused"
    if has_kernel and runs_natively(path, poses, transforms):
        return FusedVotes(poses, transforms, apply_relu=apply_relu)
    votes = FactoredVotes(torch.relu(poses) if apply_relu else poses, transforms)
    if path != "dense" and not (path == "auto" and _should_be_built(votes)):
        return votes
    with full_precision(poses.device):
        return DenseVotes(votes.dense())


def _should_be_built(votes: FactoredVotes) -> bool:
    """Whether votes without native code are faster built in full, or can only be differentiated that way."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return False
    if library.is_transformed(votes.poses, votes.transforms):
        return True
    numbers = votes.batch * votes.inputs * votes.outputs * votes.rows * votes.cols
    return votes.device.type == "cpu" and numbers <= DENSE_NUMBERS


def require_library(path: str) -> None:
    """Raise RuntimeError if the path is `fused` and there is no native library."""
    if path == "fused" and not library.AVAILABLE:
        raise RuntimeError(f"path 'fused' needs the native library, which is {library.description()}")


def runs_natively(path: str, *tensors: Tensor) -> bool:
    """Whether a layer with this path uses native code for these tensors."""
    if path == "auto" and library.is_transformed(*tensors):
        return False
    return path in ("auto", "fused") and library.accepts(*tensors)


def describe_path(path: str, routing: Routing) -> str:
    """The path that this routing takes on the CPU of this machine, in words."""
    if path == "auto" and not (library.AVAILABLE and routing.native is not None):
        return "dense for small layers, factored for large ones (there is no native code for it)"
    if path == "auto":
        path = "fused"
    if path == "fused" and routing.native is None:
        path = "factored"
    return f"{path} ({library.description()})" if path == "fused" else f"{path} ({PATHS[path]})"

"""Which implementation answers for the votes of a layer."""

from __future__ import annotations

from torch import Tensor

from shortcaps.routing.factored import FactoredVotes
from shortcaps.routing.votes import DenseVotes, Votes

PATHS = {
    "auto": "the fastest path that gives the same numbers here",
    "dense": "votes built in full: slow and large, the reference",
    "factored": "votes never built; runs wherever PyTorch runs",
}


def check_path(path: str) -> str:
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}: choose one of {', '.join(PATHS)}")
    return path


def make_votes(poses: Tensor, transforms: Tensor, path: str = "auto") -> Votes:
    """Votes of poses (batch, groups, members, rows, cols) through transforms (groups, outputs, rows, rows)."""
    votes = FactoredVotes(poses, transforms)
    return DenseVotes(votes.dense()) if path == "dense" else votes

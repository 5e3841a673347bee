"""Votes that are never built: `v = T p`, with the pose `p` and the transformation `T` kept apart.

Inputs come in *groups* that share their transformations: in a shortcut a group is a capsule channel and its members are
the positions, in a capsule convolution a group is one (kernel offset, channel) pair and has one member.

Every answer a routing asks for is a gradient of one of two scalar forms,

    F(w, T, p, g)    = sum w <T p, g>                  agreement = dF/dw, weighted_sum     = dF/dg
    S(w, q, T, p, g) = sum w q (T p - g)^2             distances = dS/dw, weighted_squares = dS/dq

so the backward pass of each answer needs nothing but the other answers of the same form. They are written here once,
in pieces over the groups, and recomputed in the backward pass: autograd saves only the arguments.

F is evaluated through `<T p, g> = <p, T' g>` and `sum w (T p) = T (sum w p)`, which costs a quarter of the votes.
The same trick for S, `||T p||^2 - 2 <T p, g> + ||g||^2`, is cheaper too but cancels: a trained fuzzy network pulls the
votes of the right class to within 1e-5 of their squared length, and float32 then keeps no more than two digits of the
distance. S is therefore computed from the difference itself, a piece at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from shortcaps.routing.votes import Votes, at_least_float32

# A piece of the votes may be as large as this many times the poses it comes from, ...
PIECE_PER_POSES = 2
# ... and need not be smaller than this many numbers for each routing problem.
SMALLEST_PIECE = 4096
# A traced graph holds every piece as operations of its own, so there they are fewer and larger.
TRACED_PIECES = 2


class FactoredVotes(Votes):
    """Votes `T p`, never built. Input `group * members + member` is the `member`-th capsule of its group.

    Args:
        poses: (batch, groups, members, rows, cols).
        transforms: (groups, outputs, rows, rows), shared by the members of a group.

    Raises:
        ValueError: The shapes do not fit each other.
    """

    def __init__(self, poses: Tensor, transforms: Tensor) -> None:
        if poses.ndim != 5 or transforms.ndim != 4:
            raise ValueError(
                f"poses {tuple(poses.shape)} and transforms {tuple(transforms.shape)}: give "
                "(batch, groups, members, rows, cols) and (groups, outputs, rows, rows)"
            )
        groups, outputs, rows, inner = transforms.shape
        if poses.shape[1] != groups or poses.shape[3] != inner or rows != inner:
            raise ValueError(
                f"poses {tuple(poses.shape)} do not fit transforms {tuple(transforms.shape)}: "
                "their groups and rows must be equal, and a transform must be square"
            )
        self._poses, self.transforms = at_least_float32(poses), at_least_float32(transforms)
        self.batch, self.groups, self.members, self.rows, self.cols = self._poses.shape
        self.inputs, self.outputs = self.groups * self.members, outputs

    @property
    def poses(self) -> Tensor:
        """The poses that vote: (batch, groups, members, rows, cols)."""
        return self._poses

    def agreement(self, centres: Tensor) -> Tensor:
        """`<T p, g>` as `<p, T' g>`: (batch, inputs, outputs)."""
        return _Agreement.apply(self.transforms, self.poses, centres).reshape(self._per_vote)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """`Σ w (T p)` as `T (Σ w p)`: (batch, outputs, rows, cols)."""
        return _WeightedSum.apply(self._grouped(weights), self.transforms, self.poses)

    def distance(self, centres: Tensor) -> Tensor:
        """`||T p - g||²`, from the difference itself: (batch, inputs, outputs)."""
        return self.scaled_distance(centres, torch.ones_like(centres))

    def scaled_distance(self, centres: Tensor, precision: Tensor) -> Tensor:
        """`Σ_h precision_h (T p - g)_h²`: (batch, inputs, outputs)."""
        return _ScaledDistance.apply(precision, self.transforms, self.poses, centres).reshape(self._per_vote)

    def weighted_squares(self, weights: Tensor, centres: Tensor) -> Tensor:
        """`Σ w (T p - g)²` for each number of a pose: (batch, outputs, rows, cols)."""
        return _WeightedSquares.apply(self._grouped(weights), self.transforms, self.poses, centres)

    def dense(self) -> Tensor:
        """All votes, built in full: (batch, inputs, outputs, rows, cols)."""
        votes = torch.einsum("gmrk,bgskc->bgsmrc", self.transforms, self.poses)
        return votes.flatten(1, 2)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the poses."""
        return self._poses.dtype

    @property
    def device(self) -> torch.device:
        """Device of the poses."""
        return self._poses.device

    @property
    def _per_vote(self) -> tuple[int, int, int]:
        return self.batch, self.inputs, self.outputs

    def _grouped(self, weights: Tensor) -> Tensor:
        return weights.reshape(self.batch, self.groups, self.members, self.outputs)


# einsum letters: b batch, g group, s member, m output, r row of the vote, k row of the pose, c column


def _pieces(groups: int, per_group: int, poses: Tensor) -> Iterator[slice]:
    """Slices of the groups such that a piece with `per_group` numbers for each group stays small."""
    limit = max(PIECE_PER_POSES * math.prod(poses.shape[1:]), SMALLEST_PIECE)
    step = max(1, limit // per_group)
    if torch.compiler.is_compiling():
        step = max(step, -(-groups // TRACED_PIECES))
    for first in range(0, groups, step):
        yield slice(first, min(first + step, groups))


def _pieces_of_form(transforms: Tensor, poses: Tensor) -> Iterator[slice]:
    groups, outputs, rows, _ = transforms.shape
    yield from _pieces(groups, outputs * rows * poses.shape[-1], poses)


def _pieces_of_votes(transforms: Tensor, poses: Tensor) -> Iterator[slice]:
    groups, outputs, rows, _ = transforms.shape
    yield from _pieces(groups, poses.shape[2] * outputs * rows * poses.shape[-1], poses)


def _carry_back(transforms: Tensor, centres: Tensor) -> Tensor:
    """`T' g`: the centre as one group of inputs would have to pose to vote for it."""
    return torch.einsum("gmrk,bmrc->bgmkc", transforms, centres)


def _pool(weights: Tensor, poses: Tensor) -> Tensor:
    """`sum w p` over the members of a group."""
    return torch.einsum("bgsm,bgskc->bgmkc", weights, poses)


def _form_by_weights(transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
    """dF/dw = <T p, g>."""
    return torch.cat(
        [
            torch.einsum("bgskc,bgmkc->bgsm", poses[:, piece], _carry_back(transforms[piece], centres))
            for piece in _pieces_of_form(transforms, poses)
        ],
        dim=1,
    )


def _form_by_centres(weights: Tensor, transforms: Tensor, poses: Tensor) -> Tensor:
    """dF/dg = sum w (T p)."""
    total: Tensor | None = None
    for piece in _pieces_of_form(transforms, poses):
        part = torch.einsum("gmrk,bgmkc->bmrc", transforms[piece], _pool(weights[:, piece], poses[:, piece]))
        total = part if total is None else total + part
    assert total is not None, "there is at least one group"
    return total


def _form_by_factors(weights: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """dF/dT and dF/dp."""
    by_transforms, by_poses = [], []
    for piece in _pieces_of_form(transforms, poses):
        carried = _carry_back(transforms[piece], centres)
        by_poses.append(torch.einsum("bgsm,bgmkc->bgskc", weights[:, piece], carried))
        by_transforms.append(torch.einsum("bmrc,bgmkc->gmrk", centres, _pool(weights[:, piece], poses[:, piece])))
    return torch.cat(by_transforms), torch.cat(by_poses, dim=1)


class _Form(torch.autograd.Function):
    """Saves its inputs only. Backward passes consist of PyTorch's operators, so they can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class _Agreement(_Form):
    @staticmethod
    def forward(transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
        return _form_by_weights(transforms, poses, centres)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        transforms, poses, centres = ctx.saved_tensors
        by_transforms, by_poses = _form_by_factors(upstream, transforms, poses, centres)
        return by_transforms, by_poses, _form_by_centres(upstream, transforms, poses)


class _WeightedSum(_Form):
    @staticmethod
    def forward(weights: Tensor, transforms: Tensor, poses: Tensor) -> Tensor:
        return _form_by_centres(weights, transforms, poses)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        weights, transforms, poses = ctx.saved_tensors
        by_transforms, by_poses = _form_by_factors(weights, transforms, poses, upstream)
        return _form_by_weights(transforms, poses, upstream), by_transforms, by_poses


def _differences(transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
    """`T p - g` for a piece of the groups."""
    return torch.einsum("gmrk,bgskc->bgsmrc", transforms, poses) - centres[:, None, None]


def _scatter_by_weights(precision: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
    """dS/dw = sum_h q (T p - g)^2."""
    return torch.cat(
        [
            torch.einsum(
                "bgsmrc,bmrc->bgsm", _differences(transforms[piece], poses[:, piece], centres).square(), precision
            )
            for piece in _pieces_of_votes(transforms, poses)
        ],
        dim=1,
    )


def _scatter_by_precision(weights: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
    """dS/dq = sum_i w (T p - g)^2."""
    total: Tensor | None = None
    for piece in _pieces_of_votes(transforms, poses):
        squares = _differences(transforms[piece], poses[:, piece], centres).square()
        part = torch.einsum("bgsm,bgsmrc->bmrc", weights[:, piece], squares)
        total = part if total is None else total + part
    assert total is not None, "there is at least one group"
    return total


def _scatter_by_rest(
    weights: Tensor, precision: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dS/dT, dS/dp and dS/dg, all through dS/dv = 2 w q (T p - g)."""
    by_transforms, by_poses = [], []
    by_centres = torch.zeros_like(centres)
    for piece in _pieces_of_votes(transforms, poses):
        by_votes = _differences(transforms[piece], poses[:, piece], centres)
        by_votes = by_votes * (2 * weights[:, piece, :, :, None, None]) * precision[:, None, None]
        by_transforms.append(torch.einsum("bgsmrc,bgskc->gmrk", by_votes, poses[:, piece]))
        by_poses.append(torch.einsum("bgsmrc,gmrk->bgskc", by_votes, transforms[piece]))
        by_centres = by_centres - by_votes.sum((1, 2))
    return torch.cat(by_transforms), torch.cat(by_poses, dim=1), by_centres


class _ScaledDistance(_Form):
    @staticmethod
    def forward(precision: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
        return _scatter_by_weights(precision, transforms, poses, centres)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        precision, transforms, poses, centres = ctx.saved_tensors
        by_precision = _scatter_by_precision(upstream, transforms, poses, centres) if ctx.needs_input_grad[0] else None
        return by_precision, *_scatter_by_rest(upstream, precision, transforms, poses, centres)


class _WeightedSquares(_Form):
    @staticmethod
    def forward(weights: Tensor, transforms: Tensor, poses: Tensor, centres: Tensor) -> Tensor:
        return _scatter_by_precision(weights, transforms, poses, centres)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        weights, transforms, poses, centres = ctx.saved_tensors
        by_weights = _scatter_by_weights(upstream, transforms, poses, centres)
        return by_weights, *_scatter_by_rest(weights, upstream, transforms, poses, centres)

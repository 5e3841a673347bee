"""`shortcaps::route`: a whole routing as one PyTorch operator, with its gradient.

Both operators know their shapes without running (fake rules), so `torch.compile(fullgraph=True)` passes through them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from shortcaps.routing.kernels.library import RoutingProblem, address, native, without_gaps


def _problem(
    poses: Tensor,
    others: list[Any],
    kind: int,
    iterations: int,
    activate: bool,
    fuzziness: float,
    sharpness: float,
    floor: float,
) -> RoutingProblem:
    transforms, start, activations, beta, beta_use = others
    batch, groups, members, rows, cols = poses.shape
    return RoutingProblem(
        kind=kind,
        iterations=iterations,
        activate=activate,
        threads=torch.get_num_threads(),
        is_double=poses.dtype == torch.float64,
        batch=batch,
        groups=groups,
        members=members,
        outputs=transforms.shape[1],
        rows=rows,
        cols=cols,
        pose_strides=(ctypes.c_int64 * 5)(*poses.stride()),
        fuzziness=fuzziness,
        sharpness=sharpness,
        floor=floor,
        poses=address(poses),
        transforms=address(transforms),
        start=address(start),
        activations=address(activations),
        beta=address(beta),
        beta_use=address(beta_use),
    )


def _contiguous(*tensors: Tensor | None) -> list[Any]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


@torch.library.custom_op("shortcaps::route", mutates_args=(), device_types="cpu")
def route_op(
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    kind: int,
    iterations: int,
    activate: bool,
    fuzziness: float,
    sharpness: float,
    floor: float,
) -> tuple[Tensor, Tensor]:
    """Poses (batch, outputs, rows, cols) and activations (batch, outputs), or (0,) where they are not asked for."""
    library = native()
    assert library is not None, "FusedVotes is made only where the library is there"
    batch, _, _, rows, cols = poses.shape
    outputs = transforms.shape[1]
    pose = poses.new_empty((batch, outputs, rows, cols))
    activation = poses.new_empty((batch, outputs) if activate else (0,))
    if batch:
        poses = without_gaps(poses)
        others = _contiguous(transforms, start, activations, beta, beta_use)
        problem = _problem(poses, others, kind, iterations, activate, fuzziness, sharpness, floor)
        problem.pose, problem.activation = address(pose), address(activation)
        library.shortcaps_route_forward(problem)
    return pose, activation


@route_op.register_fake
def _route_shapes(poses, transforms, start, activations, beta, beta_use, kind, iterations, activate, *_):  # type: ignore[no-untyped-def]
    batch, _, _, rows, cols = poses.shape
    outputs = transforms.shape[1]
    return (
        poses.new_empty((batch, outputs, rows, cols)),
        poses.new_empty((batch, outputs) if activate else (0,)),
    )


@torch.library.custom_op("shortcaps::route_backward", mutates_args=(), device_types="cpu")
def route_backward_op(
    pose_grad: Tensor,
    activation_grad: Tensor,
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    kind: int,
    iterations: int,
    activate: bool,
    fuzziness: float,
    sharpness: float,
    floor: float,
) -> list[Tensor]:
    """Gradients of poses, transforms, start, activations, beta and beta_use; (0,) for what was not given."""
    library = native()
    assert library is not None, "FusedVotes is made only where the library is there"
    grads = _empty_gradients(poses, transforms, start, activations, beta, beta_use)
    if poses.shape[0]:
        poses = without_gaps(poses)
        others = _contiguous(transforms, start, activations, beta, beta_use)
        problem = _problem(poses, others, kind, iterations, activate, fuzziness, sharpness, floor)
        upstream = _contiguous(pose_grad, activation_grad)
        problem.pose_grad, problem.activation_grad = (address(tensor) for tensor in upstream)
        names = ("poses", "transforms", "start", "activations", "beta", "beta_use")
        for name, gradient in zip(names, grads, strict=True):
            setattr(problem, f"{name}_grad", address(gradient))
        library.shortcaps_route_backward(problem)
    else:
        for gradient in grads:
            gradient.zero_()
    return grads


@route_backward_op.register_fake
def _gradient_shapes(pose_grad, activation_grad, poses, transforms, start, activations, beta, beta_use, *_):  # type: ignore[no-untyped-def]
    return _empty_gradients(poses, transforms, start, activations, beta, beta_use)


def _empty_gradients(poses: Tensor, transforms: Tensor, *others: Tensor | None) -> list[Tensor]:
    return [
        torch.empty_like(without_gaps(poses)),
        transforms.new_empty(transforms.shape),
        *(poses.new_empty((0,) if tensor is None else tensor.shape) for tensor in others),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.settings = inputs[6:]


def _backward(ctx: Any, pose_grad: Tensor, activation_grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    grads = torch.ops.shortcaps.route_backward(pose_grad, activation_grad, *tensors, *ctx.settings)
    given = [None if tensor is None else gradient for tensor, gradient in zip(tensors, grads, strict=True)]
    return (*given, *(None for _ in ctx.settings))


route_op.register_autograd(_backward, setup_context=_setup_context)

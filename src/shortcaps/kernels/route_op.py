"""`shortcaps::route`: a whole routing as one PyTorch operator, with its gradient.

Both operators know their shapes without running (fake rules), so `torch.compile(fullgraph=True)` traces through them. What the backward
pass needs besides the inputs (the capsules after each iteration and a few sums) is a third result of the forward pass, the state, if
requested.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from shortcaps.kernels.checks import check_count, check_first, check_like
from shortcaps.kernels.library import (
    RoutingProblem,
    address,
    call,
    choose,
    needs_grad,
    refuse_second_derivatives,
    without_gaps,
)
from shortcaps.kernels.spec import spec_of


def _problem(
    poses: Tensor,
    others: list[Any],
    kind: int,
    iterations: int,
    activate: bool,
    keep_state: bool,
    softness: float,
    sharpness: float,
    floor: float,
    rectified: bool,
) -> RoutingProblem:
    transforms, start, activations, beta, beta_use, readout, readout_bias = others
    batch, groups, members, rows, cols = poses.shape
    return RoutingProblem(
        kind=kind,
        iterations=iterations,
        activate=activate,
        keep_state=keep_state,
        threads=torch.get_num_threads(),
        is_double=poses.dtype == torch.float64,
        rectified=rectified,
        batch=batch,
        groups=groups,
        members=members,
        outputs=transforms.shape[1],
        rows=rows,
        cols=cols,
        pose_strides=(ctypes.c_int64 * 5)(*poses.stride()),
        softness=softness,
        sharpness=sharpness,
        floor=floor,
        poses=address(poses),
        transforms=address(transforms),
        start=address(start),
        activations=address(activations),
        beta=address(beta),
        beta_use=address(beta_use),
        readout=address(readout),
        readout_bias=address(readout_bias),
    )


def _check(
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    iterations: int,
    activate: bool,
    readout: Tensor | None,
    readout_bias: Tensor | None,
) -> None:
    check_count("iterations", iterations)
    check_first("poses", poses, "batch, groups, members, rows, cols")
    batch, groups, members, rows, cols = poses.shape
    outputs = transforms.shape[1] if transforms.ndim > 1 else 0
    check_like(poses, "transforms", transforms, (groups, outputs or None, rows, rows), "groups, outputs, rows, rows")
    # A single image notices a call for each that is not given.
    if start is not None:
        check_like(poses, "start", start, (batch, outputs, rows, cols), "batch, outputs, rows, cols")
    if activations is not None:
        check_like(poses, "activations", activations, (batch, groups * members), "batch, groups · members")
    if beta is not None:
        check_like(poses, "beta", beta, (outputs,), "outputs")
    if beta_use is not None:
        check_like(poses, "beta_use", beta_use, (outputs,), "outputs")
    if readout is not None:
        check_like(poses, "readout", readout, (outputs, rows, cols), "outputs, rows, cols")
    if readout_bias is not None:
        check_like(poses, "readout_bias", readout_bias, (outputs,), "outputs")
    if (readout is None) != (readout_bias is None):
        raise ValueError("readout and readout_bias belong together: give both or none")
    if readout is not None and not activate:
        raise ValueError("a readout is of activations: it needs activate=True")


def _check_backward(
    pose_grad: Tensor,
    activation_grad: Tensor,
    state: Tensor,
    poses: Tensor,
    transforms: Tensor,
    kind: int,
    iterations: int,
    activate: bool,
) -> None:
    """Check what the backward pass gets beyond the inputs."""
    by_pose, by_activation, kept = _result_shapes(poses, transforms, kind, iterations, activate, True)
    check_like(poses, "pose_grad", pose_grad, by_pose, "batch, outputs, rows, cols")
    layout = "batch, outputs" if activate else "no activation was requested"
    check_like(poses, "activation_grad", activation_grad, by_activation, layout)
    check_like(poses, "state", state, kept, "samples in whole blocks, numbers that route keeps with keep_state")


def _result_shapes(
    poses: Tensor, transforms: Tensor, kind: int, iterations: int, activate: bool, keep_state: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    batch, _, _, rows, cols = poses.shape
    outputs = transforms.shape[1]
    whole_blocks = (batch + 15) // 16 * 16  # no instruction set has more lanes
    numbers = spec_of(kind).state_size(iterations, outputs, rows * cols)
    return (
        (batch, outputs, rows, cols),
        (batch, outputs) if activate else (0,),
        (whole_blocks, numbers) if keep_state else (0,),
    )


def _contiguous(*tensors: Tensor | None) -> list[Any]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _route_natively(
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    kind: int,
    iterations: int,
    activate: bool,
    keep_state: bool,
    softness: float,
    sharpness: float,
    floor: float,
    readout: Tensor | None = None,
    readout_bias: Tensor | None = None,
    rectified: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A routing in native code.

    Args:
        poses: (batch, groups, members, rows, cols).
        transforms: (groups, outputs, rows, rows).
        start: The latest higher capsules (batch, outputs, rows, cols), or None.
        activations: (batch, groups · members), or None.
        beta: (outputs,), or None.
        beta_use: (outputs,), or None.
        kind: The routing's number in `RoutingKind` (routing.h).
        iterations: At least 1.
        activate: Whether activations are requested.
        keep_state: Whether the backward pass will need the state.
        softness: A setting of the kernel, see `NativeSpec`.
        sharpness: Likewise.
        floor: Likewise.
        readout: (outputs, rows, cols), the weights of a `Readout`, or None.
        readout_bias: (outputs,), or None.
        rectified: Whether a ReLU is applied to the poses as they are read; their gradient is masked accordingly.

    Returns:
        Poses (batch, outputs, rows, cols), activations (batch, outputs) and the state; (0,) for what is not requested.
    """
    _check(poses, transforms, start, activations, beta, beta_use, iterations, activate, readout, readout_bias)
    shapes = _result_shapes(poses, transforms, kind, iterations, activate, keep_state)
    pose, activation, state = (poses.new_empty(shape) for shape in shapes)
    if batch := poses.shape[0]:
        if keep_state:
            state[batch:] = 0  # what lies beyond the last block is never written
        poses = without_gaps(poses)
        others = _contiguous(transforms, start, activations, beta, beta_use, readout, readout_bias)
        problem = _problem(poses, others, kind, iterations, activate, keep_state, softness, sharpness, floor, rectified)
        problem.pose, problem.activation, problem.state = address(pose), address(activation), address(state)
        call("route_forward", problem)
    return pose, activation, state


def run_route(
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    readout: Tensor | None,
    readout_bias: Tensor | None,
    kind: int,
    iterations: int,
    activate: bool,
    *settings: float,
    rectified: bool = False,
) -> tuple[Tensor, Tensor]:
    """Route natively, called directly or as an operator; arguments as for `torch.ops.shortcaps.route`.

    Returns:
        Poses (batch, outputs, rows, cols) and activations (batch, outputs), or (0,) if not requested.
    """
    tensors = (poses, transforms, start, activations, beta, beta_use)
    read = (readout, readout_bias)
    operator = choose(_route_natively, torch.ops.shortcaps.route, *tensors, *read)
    keep_state = needs_grad(*tensors, *read)
    pose, activation, _ = operator(*tensors, kind, iterations, activate, keep_state, *settings, *read, rectified)
    return pose, activation


_route_op = torch.library.custom_op("shortcaps::route", _route_natively, mutates_args=(), device_types="cpu")


@_route_op.register_fake
def _route_shapes(  # type: ignore[no-untyped-def]
    poses,
    transforms,
    start,
    activations,
    beta,
    beta_use,
    kind,
    iterations,
    activate,
    keep_state,
    softness,
    sharpness,
    floor,
    readout=None,
    readout_bias=None,
    rectified=False,
):
    _check(poses, transforms, start, activations, beta, beta_use, iterations, activate, readout, readout_bias)
    shapes = _result_shapes(poses, transforms, kind, iterations, activate, keep_state)
    return tuple(poses.new_empty(shape) for shape in shapes)


@torch.library.custom_op("shortcaps::route_backward", mutates_args=(), device_types="cpu")
def _route_backward_op(
    pose_grad: Tensor,
    activation_grad: Tensor,
    state: Tensor,
    poses: Tensor,
    transforms: Tensor,
    start: Tensor | None,
    activations: Tensor | None,
    beta: Tensor | None,
    beta_use: Tensor | None,
    kind: int,
    iterations: int,
    activate: bool,
    softness: float,
    sharpness: float,
    floor: float,
    readout: Tensor | None = None,
    readout_bias: Tensor | None = None,
    rectified: bool = False,
) -> list[Tensor]:
    """Gradients of poses, transforms, start, activations, beta, beta_use, readout and readout_bias; (0,) for what was not given."""
    _check(poses, transforms, start, activations, beta, beta_use, iterations, activate, readout, readout_bias)
    _check_backward(pose_grad, activation_grad, state, poses, transforms, kind, iterations, activate)
    grads = _empty_gradients(poses, transforms, start, activations, beta, beta_use, readout, readout_bias)
    if poses.shape[0]:
        poses = without_gaps(poses)
        others = _contiguous(transforms, start, activations, beta, beta_use, readout, readout_bias)
        problem = _problem(poses, others, kind, iterations, activate, False, softness, sharpness, floor, rectified)
        upstream = _contiguous(pose_grad, activation_grad, state)
        problem.pose_grad, problem.activation_grad, problem.state = (address(tensor) for tensor in upstream)
        names = ("poses", "transforms", "start", "activations", "beta", "beta_use", "readout", "readout_bias")
        for name, gradient in zip(names, grads, strict=True):
            setattr(problem, f"{name}_grad", address(gradient))
        call("route_backward", problem)
    else:
        for gradient in grads:
            gradient.zero_()
    return grads


@_route_backward_op.register_fake
def _gradient_shapes(  # type: ignore[no-untyped-def]
    pose_grad,
    activation_grad,
    state,
    poses,
    transforms,
    start,
    activations,
    beta,
    beta_use,
    kind,
    iterations,
    activate,
    softness,
    sharpness,
    floor,
    readout=None,
    readout_bias=None,
    rectified=False,
):
    _check(poses, transforms, start, activations, beta, beta_use, iterations, activate, readout, readout_bias)
    _check_backward(pose_grad, activation_grad, state, poses, transforms, kind, iterations, activate)
    return _empty_gradients(poses, transforms, start, activations, beta, beta_use, readout, readout_bias)


def _empty_gradients(poses: Tensor, transforms: Tensor, *others: Tensor | None) -> list[Tensor]:
    return [
        torch.empty_like(without_gaps(poses)),
        transforms.new_empty(transforms.shape),
        *(poses.new_empty((0,) if tensor is None else tensor.shape) for tensor in others),
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    state = output[2]
    ctx.mark_non_differentiable(state)
    tensors, ctx.settings, read, ctx.rectified = inputs[:6], inputs[6:-3], inputs[-3:-1], inputs[-1]
    ctx.save_for_backward(*tensors, *read, state)


def _backward(ctx: Any, pose_grad: Tensor, activation_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, state = ctx.saved_tensors
    others, read = tensors[:-2], tensors[-2:]
    kind, iterations, activate, kept, *settings = ctx.settings
    if not kept:
        state = torch.ops.shortcaps.route(*others, kind, iterations, activate, True, *settings, *read, ctx.rectified)[2]
    grads = torch.ops.shortcaps.route_backward(
        pose_grad, activation_grad, state, *others, kind, iterations, activate, *settings, *read, ctx.rectified
    )
    given = [None if tensor is None else gradient for tensor, gradient in zip(tensors, grads, strict=True)]
    return (*given[:-2], *(None for _ in ctx.settings), *given[-2:], None)


_route_op.register_autograd(_backward, setup_context=_setup_context)
_route_backward_op.register_autograd(refuse_second_derivatives)

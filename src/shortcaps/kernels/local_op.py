"""`shortcaps::pre_vote`, `shortcaps::mix` and `shortcaps::squash`: a local block as PyTorch operators with gradients.

The first two store their results with the batch innermost, the order that the native routing reads fastest; the shape is that of any
capsule map.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from shortcaps.kernels.checks import check_count, check_first, check_like
from shortcaps.kernels.library import (
    LocalProblem,
    MixProblem,
    SquashProblem,
    address,
    call,
    choose,
    refuse_second_derivatives,
    without_gaps,
)

MAPS = "batch, cols, channels, rows, height, width"
Order = tuple[int, int, int, int, int, int]


# Orders of the dimensions in memory, outermost first: a sample after the other; a place after the other, as convolutions with channels innermost
# leave maps; and, for all that is written here, the batch innermost. With each the order that takes it back.
_BY_SAMPLE, _BY_PLACE, _BY_NUMBER = (0, 1, 2, 3, 4, 5), (0, 4, 5, 1, 2, 3), (1, 2, 3, 4, 5, 0)
_BACK: dict[Order, Order] = {_BY_SAMPLE: _BY_SAMPLE, _BY_PLACE: (0, 3, 4, 5, 1, 2), _BY_NUMBER: (5, 0, 1, 2, 3, 4)}


def _ordered(maps: Tensor, order: Order) -> Tensor:
    """The same values, stored in this order; no copy if they already are."""
    return maps.permute(order).contiguous().permute(_BACK[order])


def _empty_in(order: Order, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return like.new_empty([shape[d] for d in order]).permute(_BACK[order])


def _batch_innermost(maps: Tensor) -> Tensor:
    return _ordered(maps, _BY_NUMBER)


def _check_pre_vote(
    maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int, result_grad: Tensor | None = None
) -> None:
    check_count("stride", stride)
    check_first("maps", maps, MAPS)
    batch, _, channels, rows, height, width = maps.shape
    layout = "channels, kernel height, kernel width, rows, rows"
    check_like(maps, "transform", transform, (channels, None, None, rows, rows), layout)
    if transform.shape[1] > height or transform.shape[2] > width:
        kernel = f"{transform.shape[1]}x{transform.shape[2]}"
        raise ValueError(
            f"maps has shape {tuple(maps.shape)}: height and width must be at least {kernel}, the size of the kernel"
        )
    check_like(maps, "scale", scale, (batch, channels, height, width), "batch, channels, height, width")
    if result_grad is not None:
        check_like(maps, "result_grad", result_grad, _result_shape(maps, transform, stride), MAPS)


def _result_shape(maps: Tensor, transform: Tensor, stride: int) -> tuple[int, ...]:
    *others, height, width = maps.shape
    return *others, (height - transform.shape[1]) // stride + 1, (width - transform.shape[2]) // stride + 1


def _empty_with_batch_innermost(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return _empty_in(_BY_NUMBER, like, shape)


def _problem(maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int, result: Tensor) -> LocalProblem:
    batch, cols, channels, rows, height, width = maps.shape
    return LocalProblem(
        threads=torch.get_num_threads(),
        is_double=maps.dtype == torch.float64,
        batch=batch,
        cols=cols,
        channels=channels,
        rows=rows,
        height=height,
        width=width,
        kernel_height=transform.shape[1],
        kernel_width=transform.shape[2],
        stride=stride,
        out_height=result.shape[4],
        out_width=result.shape[5],
        map_strides=(ctypes.c_int64 * 6)(*maps.stride()),
        maps=address(maps),
        transform=address(transform),
        scale=address(scale),
    )


def _pre_vote_natively(maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int) -> Tensor:
    """Eq. (3) in native code.

    Args:
        maps: (batch, cols, channels, rows, height, width).
        transform: (channels, kernel, kernel, rows, rows).
        scale: (batch, channels, height, width), a factor for each capsule; it gets no gradient. None for 1.
        stride: Stride of the kernel.

    Returns:
        (batch, cols, channels, rows, height', width').
    """
    _check_pre_vote(maps, transform, scale, stride)
    result = _empty_with_batch_innermost(maps, _result_shape(maps, transform, stride))
    if maps.shape[0]:
        maps, transform = without_gaps(maps), transform.contiguous()
        scale = None if scale is None else scale.contiguous()
        problem = _problem(maps, transform, scale, stride, result)
        problem.out = address(result)
        call("local_forward", problem)
    return result


_pre_vote_op = torch.library.custom_op("shortcaps::pre_vote", _pre_vote_natively, mutates_args=(), device_types="cpu")


@_pre_vote_op.register_fake
def _fake_pre_vote(maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int) -> Tensor:
    _check_pre_vote(maps, transform, scale, stride)
    return _empty_with_batch_innermost(maps, _result_shape(maps, transform, stride))


@torch.library.custom_op("shortcaps::pre_vote_backward", mutates_args=(), device_types="cpu")
def _pre_vote_backward_op(
    result_grad: Tensor, maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int
) -> tuple[Tensor, Tensor]:
    """Gradients of maps and transform, in their shapes, from that of the result."""
    _check_pre_vote(maps, transform, scale, stride, result_grad)
    maps, transform = without_gaps(maps), transform.contiguous()
    scale = None if scale is None else scale.contiguous()
    maps_grad, transform_grad = torch.empty_like(maps), torch.zeros_like(transform)
    if maps.shape[0]:
        result_grad = _batch_innermost(result_grad)
        problem = _problem(maps, transform, scale, stride, result_grad)
        problem.out_grad = address(result_grad)
        problem.maps_grad, problem.transform_grad = address(maps_grad), address(transform_grad)
        call("local_backward", problem)
    return maps_grad, transform_grad


@_pre_vote_backward_op.register_fake
def _gradient_shapes(
    result_grad: Tensor, maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int
) -> tuple[Tensor, Tensor]:
    _check_pre_vote(maps, transform, scale, stride, result_grad)
    return torch.empty_like(without_gaps(maps)), torch.empty_like(transform.contiguous())


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, int], output: Tensor) -> None:
    maps, transform, scale, ctx.stride = inputs
    ctx.save_for_backward(maps, transform, scale)


def _backward(ctx: Any, result_grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    return *torch.ops.shortcaps.pre_vote_backward(result_grad, *ctx.saved_tensors, ctx.stride), None, None


_pre_vote_op.register_autograd(_backward, setup_context=_setup_context)


def _check_mix(mix: Tensor, maps: Tensor, result_grad: Tensor | None = None) -> None:
    check_first("maps", maps, MAPS)
    check_like(maps, "mix", mix, (None, maps.shape[2]), "out channels, in channels")
    if result_grad is not None:
        check_like(maps, "result_grad", result_grad, _mixed_shape(mix, maps), MAPS)


def _mixed_shape(mix: Tensor, maps: Tensor) -> tuple[int, ...]:
    return *maps.shape[:2], mix.shape[0], *maps.shape[3:]


def _mix_problem(mix: Tensor, maps: Tensor) -> MixProblem:
    batch, cols, channels, rows, height, width = maps.shape
    return MixProblem(
        threads=torch.get_num_threads(),
        is_double=maps.dtype == torch.float64,
        cols=cols,
        in_channels=channels,
        out_channels=mix.shape[0],
        numbers=rows * height * width * batch,
        mix=address(mix),
        maps=address(maps),
    )


def _mix_natively(mix: Tensor, maps: Tensor) -> Tensor:
    """Eq. (2) in native code.

    Args:
        mix: (out_channels, in_channels).
        maps: (batch, cols, in_channels, rows, height, width).

    Returns:
        (batch, cols, out_channels, rows, height, width).
    """
    _check_mix(mix, maps)
    result = _empty_with_batch_innermost(maps, _mixed_shape(mix, maps))
    if maps.numel():
        mix, maps = mix.contiguous(), _batch_innermost(maps)
        problem = _mix_problem(mix, maps)
        problem.out = address(result)
        call("mix_forward", problem)
    return result


_mix_op = torch.library.custom_op("shortcaps::mix", _mix_natively, mutates_args=(), device_types="cpu")


@_mix_op.register_fake
def _fake_mix(mix: Tensor, maps: Tensor) -> Tensor:
    _check_mix(mix, maps)
    return _empty_with_batch_innermost(maps, _mixed_shape(mix, maps))


@torch.library.custom_op("shortcaps::mix_backward", mutates_args=(), device_types="cpu")
def _mix_backward_op(result_grad: Tensor, mix: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of mix and maps, in their shapes, from that of the result."""
    _check_mix(mix, maps, result_grad)
    mix_grad, maps_grad = torch.zeros_like(mix.contiguous()), _empty_with_batch_innermost(maps, maps.shape)
    if maps.numel():
        mix, maps, result_grad = mix.contiguous(), _batch_innermost(maps), _batch_innermost(result_grad)
        problem = _mix_problem(mix, maps)
        problem.out_grad = address(result_grad)
        problem.mix_grad, problem.maps_grad = address(mix_grad), address(maps_grad)
        call("mix_backward", problem)
    return mix_grad, maps_grad


@_mix_backward_op.register_fake
def _mix_gradient_shapes(result_grad: Tensor, mix: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    _check_mix(mix, maps, result_grad)
    return torch.empty_like(mix.contiguous()), _empty_with_batch_innermost(maps, maps.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _mix_backward(ctx: Any, result_grad: Tensor) -> tuple[Tensor, Tensor]:
    mix_grad, maps_grad = torch.ops.shortcaps.mix_backward(result_grad, *ctx.saved_tensors)
    return mix_grad, maps_grad


_mix_op.register_autograd(_mix_backward, setup_context=_keep_inputs)


def _check_squash(maps: Tensor, result_grad: Tensor | None = None) -> None:
    check_first("maps", maps, MAPS)
    check_like(maps, "result_grad", result_grad, maps.shape, MAPS)


def _order(maps: Tensor) -> Order:
    """The order in which `squash` takes maps: their own if it can, else with the batch innermost."""
    if maps.shape[0] > 1:
        for order in (_BY_SAMPLE, _BY_PLACE):
            if maps.permute(order).is_contiguous():
                return order
    return _BY_NUMBER


def _squash_problem(poses: Tensor, order: Order) -> SquashProblem:
    batch, cols, channels, rows, height, width = poses.shape
    if order == _BY_SAMPLE:
        outer, places = batch, height * width
    elif order == _BY_PLACE:
        outer, places = batch * height * width, 1
    else:
        outer, places = 1, batch * height * width
    return SquashProblem(
        threads=torch.get_num_threads(),
        is_double=poses.dtype == torch.float64,
        outer=outer,
        cols=cols,
        channels=channels,
        rows=rows,
        places=places,
        poses=address(poses),
    )


def _squash_natively(maps: Tensor) -> Tensor:
    """`squash` of every pose of capsule maps (batch, cols, channels, rows, height, width)."""
    _check_squash(maps)
    order = _order(maps)
    result = _empty_in(order, maps, maps.shape)
    if maps.numel():
        maps = _ordered(maps, order)
        problem = _squash_problem(maps, order)
        problem.out = address(result)
        call("squash_forward", problem)
    return result


_squash_op = torch.library.custom_op("shortcaps::squash", _squash_natively, mutates_args=(), device_types="cpu")


@_squash_op.register_fake
def _fake_squash(maps: Tensor) -> Tensor:
    _check_squash(maps)
    return _empty_in(_order(maps), maps, maps.shape)


@torch.library.custom_op("shortcaps::squash_backward", mutates_args=(), device_types="cpu")
def _squash_backward_op(result_grad: Tensor, maps: Tensor) -> Tensor:
    """Gradient of the maps from that of the result."""
    _check_squash(maps, result_grad)
    order = _order(maps)
    gradient = _empty_in(order, maps, maps.shape)
    if maps.numel():
        result_grad, maps = _ordered(result_grad, order), _ordered(maps, order)
        problem = _squash_problem(maps, order)
        problem.out_grad, problem.poses_grad = address(result_grad), address(gradient)
        call("squash_backward", problem)
    return gradient


@_squash_backward_op.register_fake
def _squash_gradient_shape(result_grad: Tensor, maps: Tensor) -> Tensor:
    _check_squash(maps, result_grad)
    return _empty_in(_order(maps), maps, maps.shape)


def _squash_backward(ctx: Any, result_grad: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.shortcaps.squash_backward(result_grad, *ctx.saved_tensors)
    return gradient


_squash_op.register_autograd(_squash_backward, setup_context=_keep_inputs)
_pre_vote_backward_op.register_autograd(refuse_second_derivatives)
_mix_backward_op.register_autograd(refuse_second_derivatives)
_squash_backward_op.register_autograd(refuse_second_derivatives)


def run_pre_vote(maps: Tensor, transform: Tensor, scale: Tensor | None, stride: int) -> Tensor:
    """Eq. (3), called directly or as an operator, whichever the situation allows.

    Args:
        maps: (batch, cols, channels, rows, height, width).
        transform: (channels, kernel, kernel, rows, rows).
        scale: (batch, channels, height, width), a factor for each capsule; it gets no gradient. None for 1.
        stride: Stride of the kernel.

    Returns:
        (batch, cols, channels, rows, height', width').
    """
    operator = choose(_pre_vote_natively, torch.ops.shortcaps.pre_vote, maps, transform, scale)
    result: Tensor = operator(maps, transform, scale, stride)
    return result


def run_mix(mix: Tensor, maps: Tensor) -> Tensor:
    """Eq. (2), called directly or as an operator.

    Args:
        mix: (out_channels, in_channels).
        maps: (batch, cols, in_channels, rows, height, width).

    Returns:
        (batch, cols, out_channels, rows, height, width).
    """
    result: Tensor = choose(_mix_natively, torch.ops.shortcaps.mix, mix, maps)(mix, maps)
    return result


def run_squash(maps: Tensor) -> Tensor:
    """`squash` of every pose of capsule maps (batch, cols, channels, rows, height, width), called directly or as an operator."""
    result: Tensor = choose(_squash_natively, torch.ops.shortcaps.squash, maps)(maps)
    return result

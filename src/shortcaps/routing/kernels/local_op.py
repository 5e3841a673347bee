"""`shortcaps::pre_vote`: the depth-wise capsule convolution as one PyTorch operator, with its gradient.

Its result lies in memory with the batch innermost, which is the order the native routing reads fastest; its shape is that
of any capsule map.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from shortcaps.routing.kernels.library import LocalProblem, address, native, without_gaps


def batch_innermost(maps: Tensor) -> Tensor:
    """The same values, laid out with the batch innermost; no copy where they are already."""
    return maps.movedim(0, -1).contiguous().movedim(-1, 0)


def _empty_result(maps: Tensor, transform: Tensor, stride: int) -> Tensor:
    batch, cols, channels, rows, height, width = maps.shape
    out_height, out_width = (height - transform.shape[1]) // stride + 1, (width - transform.shape[2]) // stride + 1
    return maps.new_empty((cols, channels, rows, out_height, out_width, batch)).movedim(-1, 0)


def _problem(maps: Tensor, transform: Tensor, stride: int, result: Tensor) -> LocalProblem:
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
    )


@torch.library.custom_op("shortcaps::pre_vote", mutates_args=(), device_types="cpu")
def pre_vote_op(maps: Tensor, transform: Tensor, stride: int) -> Tensor:
    """Eq. (3): maps (batch, cols, channels, rows, height, width), transform (channels, kernel, kernel, rows, rows)."""
    library = native()
    assert library is not None, "called only where the library is there"
    result = _empty_result(maps, transform, stride)
    if maps.shape[0]:
        maps, transform = without_gaps(maps), transform.contiguous()
        problem = _problem(maps, transform, stride, result)
        problem.out = address(result)
        library.shortcaps_local_forward(problem)
    return result


@pre_vote_op.register_fake
def _result_shape(maps: Tensor, transform: Tensor, stride: int) -> Tensor:
    return _empty_result(maps, transform, stride)


@torch.library.custom_op("shortcaps::pre_vote_backward", mutates_args=(), device_types="cpu")
def pre_vote_backward_op(result_grad: Tensor, maps: Tensor, transform: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    library = native()
    assert library is not None, "called only where the library is there"
    maps, transform = without_gaps(maps), transform.contiguous()
    maps_grad, transform_grad = torch.empty_like(maps), torch.zeros_like(transform)
    if maps.shape[0]:
        result_grad = batch_innermost(result_grad)
        problem = _problem(maps, transform, stride, result_grad)
        problem.out_grad = address(result_grad)
        problem.maps_grad, problem.transform_grad = address(maps_grad), address(transform_grad)
        library.shortcaps_local_backward(problem)
    return maps_grad, transform_grad


@pre_vote_backward_op.register_fake
def _gradient_shapes(result_grad: Tensor, maps: Tensor, transform: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(without_gaps(maps)), torch.empty_like(transform.contiguous())


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    maps, transform, ctx.stride = inputs
    ctx.save_for_backward(maps, transform)


def _backward(ctx: Any, result_grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *torch.ops.shortcaps.pre_vote_backward(result_grad, *ctx.saved_tensors, ctx.stride), None


pre_vote_op.register_autograd(_backward, setup_context=_setup_context)

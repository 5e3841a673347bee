"""Views and operations on capsule maps (batch, cols, channels, rows, height, width)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shortcaps.kernels.library import is_transformed
from shortcaps.kernels.local_op import run_squash
from shortcaps.routing import pose_length
from shortcaps.routing.paths import require_library, runs_natively


def check_maps(maps: Tensor, channels: int, pose: int, kernel: tuple[int, int]) -> None:
    """Raise ValueError unless a layer with these channels, pose size and kernel can take the maps."""
    if maps.ndim != 6 or maps.shape[2] != channels or maps.shape[3] != pose:
        raise ValueError(
            f"capsule maps have shape {tuple(maps.shape)}: this layer takes (batch, cols, {channels} channels, "
            f"{pose} rows, height, width)"
        )
    if maps.shape[4] < kernel[0] or maps.shape[5] < kernel[1]:
        raise ValueError(
            f"capsule maps of {maps.shape[4]}x{maps.shape[5]} are too small for a kernel of {kernel[0]}x{kernel[1]}"
        )


def split_into_capsules(features: Tensor, channels: int, pose: int) -> Tensor:
    """Feature maps (batch, cols·channels·rows, height, width) as capsule maps (batch, cols, channels, rows, height, width)."""
    return features.unflatten(1, (pose, channels, pose))


def squash_map(maps: Tensor, path: str = "auto") -> Tensor:
    """`squash` of every pose of capsule maps (batch, cols, channels, rows, height, width).

    Raises:
        RuntimeError: The path is `fused` and there is no native library.
    """
    require_library(path)
    if runs_natively(path, maps):
        return run_squash(maps)
    length = pose_length(maps.movedim((1, 3), (-2, -1)))[:, None, :, None]
    return maps * (length / (1 + length.square()))


def poses_by_channel(maps: Tensor) -> Tensor:
    """Capsule maps as (batch, channels, height·width, rows, cols): the members of a channel are its positions."""
    return maps.permute(0, 2, 4, 5, 3, 1).flatten(2, 3)


def capsules_at_one_position(maps: Tensor) -> Tensor:
    """Capsule maps of height and width 1 as (batch, channels, rows, cols)."""
    return maps.squeeze(-1).squeeze(-1).permute(0, 2, 3, 1)


def patches(maps: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
    """What each output position sees: (batch, height', width', kernel, kernel, channels, rows, cols).

    Args:
        maps: Capsule maps (batch, cols, channels, rows, height, width).
        kernel: Height and width of the kernel.
        stride: Its stride.
    """
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or is_transformed(maps)
    if is_traced or not maps.requires_grad:
        return _windows(maps, kernel, stride)
    windows: Tensor = _Patches.apply(maps, kernel, stride)
    return windows


def _windows(maps: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
    return maps.unfold(4, kernel[0], stride).unfold(5, kernel[1], stride).permute(0, 4, 5, 6, 7, 2, 3, 1)


class _Patches(torch.autograd.Function):
    """The windows of a map, with a backward pass that adds whole capsules; PyTorch's own adds number by number."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
        ctx.shape, ctx.kernel, ctx.stride = maps.shape, kernel, stride
        return _windows(maps, kernel, stride).contiguous()

    @staticmethod
    def backward(ctx: Any, by_windows: Tensor) -> tuple[Tensor, None, None]:
        batch, cols, channels, rows, height, width = ctx.shape
        down, across = by_windows.shape[1:3]
        by_maps = by_windows.new_zeros((batch, height, width, channels, rows, cols))
        for i in range(ctx.kernel[0]):
            for j in range(ctx.kernel[1]):
                seen = by_maps[:, i : i + ctx.stride * down : ctx.stride, j : j + ctx.stride * across : ctx.stride]
                seen += by_windows[:, :, :, i, j]
        return by_maps.permute(0, 5, 3, 4, 1, 2), None, None

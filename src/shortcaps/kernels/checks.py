"""Checks of operator arguments, made before any pointer is passed on: native code trusts what it is given.

The same checks run where only shapes are computed (fake tensors), so that a compiled network fails while it is traced. They cost a few
microseconds per call, and format a message only if something is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless the number is at least 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}: it must be at least 1")


def check_first(name: str, tensor: Tensor, layout: str) -> None:
    """Check the tensor that the others are compared with.

    Args:
        name: What to call it in a message.
        tensor: The tensor. Only its first dimension, the batch, may be empty.
        layout: Its dimensions, e.g. `"batch, groups, members, rows, cols"`.

    Raises:
        TypeError: Native code does not support its dtype.
        ValueError: It is not on the CPU, or does not have these dimensions.
    """
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {tensor.dtype}: native code needs torch.float32 or torch.float64")
    if not (tensor.is_cpu or tensor.is_meta):  # meta tensors have a shape but no address (library.py)
        raise ValueError(f"{name} is on {tensor.device}: native code needs it on the cpu")
    shape = tensor.shape
    if len(shape) != layout.count(",") + 1 or 0 in shape[1:]:
        raise ValueError(f"{name} has shape {tuple(shape)}: it must be ({layout}), and only the batch may be empty")


def check_like(first: Tensor, name: str, tensor: Tensor | None, shape: tuple[int | None, ...], layout: str) -> None:
    """Check a tensor against the first.

    Args:
        first: The tensor whose dtype and device it must have.
        name: What to call it in a message.
        tensor: The tensor; None, for one that is not given, passes.
        shape: The shape it must have; None for a dimension of any size but 0.
        layout: Its dimensions, for the message.

    Raises:
        TypeError: Its dtype differs.
        ValueError: Its device or its shape differs.
    """
    if tensor is None:
        return
    if tensor.dtype != first.dtype:
        raise TypeError(
            f"{name} has dtype {tensor.dtype}: it must be {first.dtype}, as all tensors must have the same dtype"
        )
    if tensor.device != first.device:
        raise ValueError(
            f"{name} is on {tensor.device}: it must be on {first.device}, as all tensors must be on the same device"
        )
    found = tensor.shape
    if found != shape and not _fits(found, shape):
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(found)}: it must be ({needed}), for ({layout})")


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if len(found) != len(shape):
        return False
    for size, needed in zip(found, shape, strict=True):
        if size != needed and (needed is not None or size < 1):
            return False
    return True

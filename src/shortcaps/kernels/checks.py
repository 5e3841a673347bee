"""What operators need of their arguments, looked at before any pointer is passed on: native code believes what it is told.

The same looks are taken where shapes are only computed (fake tensors), so a compiled network fails while it is traced.
They cost some microseconds a call, and their messages only where something is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


def check_count(name: str, value: int) -> None:
    """Raises a ValueError unless the number is at least 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}: at least 1 is needed")


def check_first(name: str, tensor: Tensor, layout: str) -> None:
    """Checks the tensor that the others are compared with.

    Args:
        name: What to call it in a message.
        tensor: The tensor. Only its first dimension, the batch, may be empty.
        layout: Its dimensions, e.g. `"batch, groups, members, rows, cols"`.

    Raises:
        TypeError: It holds other numbers than native code can compute with.
        ValueError: It is not where native code runs, or it has not these dimensions.
    """
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {tensor.dtype}: native code needs torch.float32 or torch.float64")
    if not (tensor.is_cpu or tensor.is_meta):  # meta: asked for its shape alone, and has no address (library.py)
        raise ValueError(f"{name} is on {tensor.device}: native code needs it on the cpu")
    shape = tensor.shape
    if len(shape) != layout.count(",") + 1 or 0 in shape[1:]:
        raise ValueError(f"{name} has shape {tuple(shape)}: ({layout}) is needed, and only the batch may be empty")


def check_like(first: Tensor, name: str, tensor: Tensor | None, shape: tuple[int | None, ...], layout: str) -> None:
    """Checks a tensor against the first.

    Args:
        first: The tensor whose dtype and device it must have.
        name: What to call it in a message.
        tensor: The tensor; None, one that is not given, passes.
        shape: The shape it must have; None for a dimension of any size but 0.
        layout: Its dimensions, for the message.

    Raises:
        TypeError: Its dtype is another.
        ValueError: Its device or its shape is another.
    """
    if tensor is None:
        return
    if tensor.dtype != first.dtype:
        raise TypeError(
            f"{name} has dtype {tensor.dtype}: {first.dtype} is needed, as all tensors have to be of one dtype"
        )
    if tensor.device != first.device:
        raise ValueError(
            f"{name} is on {tensor.device}: {first.device} is needed, as all tensors have to be on one device"
        )
    found = tensor.shape
    if found != shape and not _fits(found, shape):
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(found)}: ({needed}) is needed, for ({layout})")


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if len(found) != len(shape):
        return False
    for size, needed in zip(found, shape, strict=True):
        if size != needed and (needed is not None or size < 1):
            return False
    return True

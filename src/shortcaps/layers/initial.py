"""First values of weights."""

from __future__ import annotations

from torch import Tensor, nn


def draw_normal(weight: Tensor, std: float) -> None:
    """Fill a weight from a normal distribution with mean 0, in place; a meta tensor, which has no values, is left alone.

    Every trained network is first built of meta tensors, to compare its shapes with the file's (`runs.network`), and PyTorch loads its compiler
    to draw numbers for those: two seconds and 75 MB for nothing.
    """
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)

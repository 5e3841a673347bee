"""Batch norm over all processes. PyTorch's own works on GPUs only; this one works wherever `torch.distributed` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class SumOverProcesses(torch.autograd.Function):
    """A sum that every process gets; the gradient of each summand is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, part: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, upstream: Tensor) -> Tensor:
        """The sum of the gradients over all processes."""
        total = upstream.contiguous().clone()
        dist.all_reduce(total)
        return total


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """Normalises with the mean and variance of the whole batch, not only of this process's part."""

    is_shared = True

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name PyTorch gives it)
        """Normalise features (batch, channels, height, width)."""
        if not self.training or not self.is_shared:
            return super().forward(input)
        count = input.numel() // input.shape[1] * dist.get_world_size()
        exact = input.to(
            torch.promote_types(input.dtype, torch.float32)
        )  # statistics in bfloat16 would be off by 0.4 %
        mean = SumOverProcesses.apply(exact.sum((0, 2, 3))) / count
        centred = exact - mean[None, :, None, None]
        variance = SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        self._track(mean.detach(), variance.detach() * (count / max(1, count - 1)))
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        normalised = centred * scale[None, :, None, None]
        if self.bias is not None:
            normalised = normalised + self.bias[None, :, None, None]
        return normalised.to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, if it has any; without a momentum they are means over all batches."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


@contextmanager
def apart() -> Iterator[None]:
    """Within, each process normalises with the statistics of its own images: the others may have none to share."""
    SyncedBatchNorm2d.is_shared = False
    try:
        yield
    finally:
        SyncedBatchNorm2d.is_shared = True


def synchronise_batch_norm(model: nn.Module) -> None:
    """Turn every batch norm of the model into a synced one, in place; the names of parameters do not change."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncedBatchNorm2d

"""Several processes, each with a copy of the network: what they exchange after a backward pass, and how they agree.

PyTorch's `DistributedDataParallel` sums gradients in buckets that it arranges anew after the first step, and a floating-point sum depends
on its order: a run that was resumed would differ from one that was not in the last bit. Here all gradients are summed as one tensor, in
the order of the parameters, so that every step is the same function of the state before it.
"""

from __future__ import annotations

import atexit

import torch
import torch.distributed as dist
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from shortcaps.training.synced import SyncedBatchNorm2d


class Replicas(DDPStrategy):
    """Processes as Fabric's `ddp` starts them, with the network left as it is."""

    def setup_environment(self) -> None:
        """Join the other processes, and leave them before Python ends.

        Fabric leaves a group on GPUs only. A thread of a group on CPUs that lets go of a tensor after Python has ended takes the process
        down with it, once in some hundred runs.
        """
        super().setup_environment()
        atexit.register(_leave)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """The module itself; `average_gradients` does what a wrapper would."""
        return module


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over all processes.

    A parameter that was used by some processes counts as a gradient of zero in the others; one that none of them used gets no gradient,
    as in a single process.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    used = parts[0].new_tensor([float(p.grad is not None) for p in parameters])
    together = torch.cat([*(part.reshape(-1) for part in parts), used]).div_(dist.get_world_size())
    dist.all_reduce(together)
    *means, used = together.split([*(p.numel() for p in parameters), len(parameters)])
    for parameter, part, mean, share in zip(parameters, parts, means, used.tolist(), strict=True):
        if share > 0:
            parameter.grad = part.copy_(mean.view_as(part))


def share_buffers(model: nn.Module) -> None:
    """Give all processes the first one's buffers, where they may differ: in any layer but a synced batch norm."""
    for module in model.modules():
        if not isinstance(module, SyncedBatchNorm2d):
            for buffer in module.buffers(recurse=False):
                dist.broadcast(buffer, 0)


def largest_of_all(numbers: Tensor) -> Tensor:
    """The largest of each of these numbers over all processes."""
    found = numbers.clone()
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found

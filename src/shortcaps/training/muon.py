"""Muon: convolutions learn in steps that are orthogonal matrices, everything else by AdamW."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor

MOMENTUM = 0.95
"""Decay of the running mean of gradients."""
TURNS = 5
"""Newton-Schulz iterations: enough for all singular values that matter."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the iteration x → a x + b x³ + c x⁵ on singular values, which lifts small ones fast and lets large ones move about 1 (Jordan et al., 2024)."""
LENGTH = 0.2
"""Root mean square of a step over the rate, about that of Adam (Liu et al., 2025): so a recipe's rate means the same for both."""


def orthogonalise(matrices: Tensor) -> Tensor:
    """About U Vᵀ of matrices U S Vᵀ: every direction in which they point at all gets a length of 0.7 to 1.2.

    Args:
        matrices: (…, rows, cols).

    Returns:
        (…, rows, cols); zero where a matrix is zero.
    """
    # The products below are squares of the shorter side.
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalise(matrices.mT).mT
    a, b, c = COEFFICIENTS
    # By their largest entry first, since squares of small numbers are zero.
    largest = matrices.abs().amax((-2, -1), keepdim=True)
    found = matrices / largest.clamp_min(torch.finfo(matrices.dtype).tiny)
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp_min(1)
    shape, found = found.shape, found.reshape(-1, *found.shape[-2:])
    for _ in range(TURNS):
        squares = torch.bmm(found, found.mT)
        factors = torch.baddbmm(squares, squares, squares, beta=b, alpha=c)
        found = torch.baddbmm(found, factors, found, beta=a)
    return found.view(shape)


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `orthogonal=True`, whose weights (outputs, …) are read as matrices (outputs, inputs).

    A gradient of a convolution has few large singular values, in whose directions Adam moves a weight; here all directions are moved alike.

    Args:
        groups: Groups of parameters, each with `orthogonal`.
        lr: Learning rate.
        fused: Whether AdamW's own part is computed by one operator.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, *, fused: bool) -> None:
        super().__init__(groups, lr=lr, fused=fused)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all weights once."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._take_orthogonal_step(group)
        return loss

    @torch.no_grad()
    def _take_orthogonal_step(self, group: dict[str, Any]) -> None:
        # Matrices of one shape take their step together: they are small, and what a step costs is the number of operators.
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                momentum = self._nesterov_momentum(weight)
                alike[momentum.shape, momentum.dtype, momentum.device].append((weight, momentum))
        for (shape, *_), members in alike.items():
            steps = orthogonalise(torch.stack([momentum for _, momentum in members]))
            steps.mul_(LENGTH * max(shape) ** 0.5)
            for (weight, _), step in zip(members, steps, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(step.view(weight.shape), alpha=-group["lr"])

    def _nesterov_momentum(self, weight: Tensor) -> Tensor:
        """The running mean of a weight's gradients as it would be after this gradient once more: (outputs, inputs)."""
        assert weight.grad is not None, "only weights with a gradient take a step"
        state = self.state[weight]
        if not state:
            # AdamW wants to find a number of steps with every weight when it is restored.
            state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
        state["step"] += 1
        mean = state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
        return weight.grad.lerp(mean, MOMENTUM).flatten(1)

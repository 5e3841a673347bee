"""The optimiser, and the rate at which each weight learns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import nn

from shortcaps.recipes import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Adam, or with weight decay AdamW, which leaves numbers that belong to a channel or class alone.

    Args:
        model: The network. A module of it may have `relative_rates`, factors on the learning rate of its own parameters by their names.
        recipe: Its rate and weight decay.
        device: Where the network is.

    Returns:
        The optimiser, whose groups each have their factor under `rate`.
    """
    fused = device.type in ("cpu", "cuda")
    rates = _relative_rates(model)
    parameters = list(model.parameters())
    if not recipe.weight_decay:
        return torch.optim.Adam(_by_rate(parameters, rates, 0.0), lr=recipe.lr, fused=fused)
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups = _by_rate(matrices, rates, recipe.weight_decay) + _by_rate(vectors, rates, 0.0)
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step, to which every group has its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["rate"]


def _relative_rates(model: nn.Module) -> dict[nn.Parameter, float]:
    """What the modules say of their own parameters; others learn at the rate itself."""
    return {
        module.get_parameter(name): rate
        for module in model.modules()
        for name, rate in getattr(module, "relative_rates", {}).items()
    }


def _by_rate(parameters: list[nn.Parameter], rates: dict[nn.Parameter, float], decay: float) -> list[dict[str, Any]]:
    """Groups of neighbours: a checkpoint numbers parameters in this order, which must not depend on their rates."""
    # AdamW multiplies decay and rate; a weight shrinks by the same share of itself in a step, whatever its rate is.
    return [
        {"params": list(alike), "rate": rate, "weight_decay": decay / rate}
        for rate, alike in groupby(parameters, lambda parameter: rates.get(parameter, 1.0))
    ]

"""The optimiser, and the rate at which each weight learns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import nn

from shortcaps.recipes import Recipe
from shortcaps.training.muon import Muon


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Adam, or with weight decay AdamW, which leaves numbers that belong to a channel or class alone; or Muon, if the recipe says so.

    Args:
        model: The network. A module of it may have `relative_rates`, factors on the learning rate of its own parameters by their names.
        recipe: Its optimiser, rate and weight decay.
        device: Where the network is.

    Returns:
        The optimiser, whose groups each have their factor under `rate`.
    """
    fused = device.type in ("cpu", "cuda")
    rates = _relative_rates(model)
    parameters = list(model.parameters())
    by_muon = recipe.optimizer == "muon"
    if not by_muon and not recipe.weight_decay:
        return torch.optim.Adam(_by_rate(parameters, rates, 0.0), lr=recipe.lr, fused=fused)
    kernels = _kernels(model) if by_muon else set[torch.Tensor]()
    parts = [
        ([p for p in parameters if p in kernels], recipe.weight_decay, True),
        ([p for p in parameters if p not in kernels and p.ndim > 1], recipe.weight_decay, False),
        ([p for p in parameters if p.ndim <= 1], 0.0, False),
    ]
    groups = [
        {**group, "orthogonal": orthogonal}
        for part, decay, orthogonal in parts
        for group in _by_rate(part, rates, decay)
    ]
    return (Muon if by_muon else torch.optim.AdamW)(groups, lr=recipe.lr, fused=fused)


def _kernels(model: nn.Module) -> set[torch.Tensor]:
    """Weights of convolutions that map all channels to all, and so are matrices."""
    return {module.weight for module in model.modules() if isinstance(module, nn.Conv2d) and module.groups == 1}


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

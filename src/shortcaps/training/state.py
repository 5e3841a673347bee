"""Everything that changes while training, and its way into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shortcaps.models import Network
from shortcaps.runs.config import Recipe
from shortcaps.runs.directory import Checkpoint


class State:
    """Everything that changes while training: weights, their average, the optimiser, progress."""

    def __init__(self, model: Network, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
        self.model, self.optimizer, self.recipe = model, optimizer, recipe
        self.average = (
            {name: tensor.clone() for name, tensor in model.state_dict().items()} if recipe.averaging else None
        )
        self.best: dict[str, Tensor] = {}
        self.progress: dict[str, Any] = {
            "step": 0,
            "best_error": None,
            "best_epoch": 0,
            "rows": [],
            "seconds": 0.0,
            "losses": [],
            "correct": 0,
            "seen": 0,
            "resumed": [],
        }

    @property
    def step(self) -> int:
        return int(self.progress["step"])

    @torch.no_grad()
    def update_average(self) -> None:
        if self.average is None:
            return
        # Early weights are soon forgotten: the average begins short and grows to its full length.
        decay = min(self.recipe.averaging, (1 + self.step) / (10 + self.step))
        current = self.model.state_dict()
        floating = [name for name, tensor in current.items() if tensor.is_floating_point()]
        torch._foreach_lerp_([self.average[n] for n in floating], [current[n] for n in floating], 1 - decay)
        for name in current.keys() - set(floating):
            self.average[name].copy_(current[name])

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its averaged weights."""
        if self.average is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        try:
            yield
        finally:
            self.model.load_state_dict(own)

    def to_checkpoint(self) -> Checkpoint:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in (self.average or {}).items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
        return Checkpoint(tensors, self.progress)

    def restore(self, checkpoint: Checkpoint) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        if self.average is not None:
            for name, tensor in part("average.").items():
                self.average[name].copy_(tensor)
        self.best = part("best.")
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part("optimizer.").items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.progress = checkpoint.progress

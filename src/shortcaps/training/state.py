"""Everything that changes while training, and its way into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from shortcaps.models import Network
from shortcaps.recipes import Recipe
from shortcaps.runs.directory import Checkpoint


@dataclass(frozen=True)
class EpochMetrics:
    """A row of metrics.csv.

    Attributes:
        epoch: Counted from 1.
        step: Steps so far.
        loss: Mean over the epoch.
        accuracy: On the training images, as a fraction.
        validation_error: As a fraction; None where the validation images are trained on.
        lr: Learning rate of the last step.
        images_per_second: Training speed.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    validation_error: float | None
    lr: float
    images_per_second: float


@dataclass(frozen=True)
class Resumption:
    """A point at which a run was resumed in another environment.

    Attributes:
        after_step: Steps before it.
        environment: Versions, commit and machine from there on.
    """

    after_step: int
    environment: Mapping[str, str]


@dataclass
class Progress:
    """How far a run has come: what of its state is no tensor.

    Attributes:
        step: Steps taken.
        best_error: Lowest validation error so far, a share; None where nothing is validated.
        best_epoch: When that was, counted from 1; the last epoch where nothing is validated.
        rows: The epochs so far.
        seconds: Time spent training.
        losses: Of this epoch's steps.
        correct: Right answers in this epoch.
        seen: Images seen in this epoch.
        resumed: Where the environment changed.
    """

    step: int = 0
    best_error: float | None = None
    best_epoch: int = 0
    rows: list[EpochMetrics] = field(default_factory=list)
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    correct: int = 0
    seen: int = 0
    resumed: list[Resumption] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """From what `asdict` returned; runs of 0.1 may have no `resumed`.

        Raises:
            ValueError: A value is missing or of the wrong type.
        """
        return TypeAdapter(cls).validate_python(dict(values))


class State:
    """Everything that changes while training: weights, their average, the optimiser, progress.

    Args:
        model: The network.
        optimizer: Its optimiser.
        recipe: Decides whether weights are averaged.
    """

    def __init__(self, model: Network, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
        self.model, self.optimizer, self.recipe = model, optimizer, recipe
        self.average = (
            {name: tensor.clone() for name, tensor in model.state_dict().items()} if recipe.averaging else None
        )
        self.best: dict[str, Tensor] = {}
        self.progress = Progress()

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.progress.step

    @torch.no_grad()
    def update_average(self) -> None:
        """Add the current weights to the running average, if there is one."""
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
        """Within, the model has its averaged weights."""
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
        """The state as named tensors and plain values."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in (self.average or {}).items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
        return Checkpoint(tensors, asdict(self.progress))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the state to that of a checkpoint.

        Raises:
            ValueError: It is that of another network, or was never one.
        """

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}

        weights = self.model.state_dict()
        _check_like(part("model."), weights, "model")
        self.model.load_state_dict(part("model."))
        if self.average is not None:
            _check_like(part("average."), weights, "average")
            for name, tensor in part("average.").items():
                self.average[name].copy_(tensor)
        self.best = part("best.")
        if self.best:
            _check_like(self.best, weights, "best")
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part("optimizer.").items():
            number, _, key = name.partition(".")
            parameter = parameters[int(number)]
            if tensor.ndim and tensor.shape != parameter.shape:
                raise ValueError(f"optimizer.{name} has the shape {tuple(tensor.shape)}")
            # A fused optimiser goes through memory: what belongs to a weight has to be laid out as it is.
            laid_out = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
            state.setdefault(int(number), {})[key] = laid_out
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.progress = Progress.from_dict(checkpoint.progress)


def _check_like(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise ValueError unless these are tensors of the same names and shapes, and finite."""
    if found.keys() != expected.keys():
        raise ValueError(f"{what} has other tensors than the network")
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{what}.{name} has the shape {tuple(tensor.shape)}")
        if not tensor.isfinite().all():
            raise ValueError(f"{what}.{name} holds numbers that are not finite")

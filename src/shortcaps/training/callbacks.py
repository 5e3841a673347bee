"""Callbacks: what others are told while a network is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shortcaps.errors import RunError, RunFault
from shortcaps.settings import flattened
from shortcaps.training.state import EpochMetrics

if TYPE_CHECKING:
    from shortcaps.training.run import TrainingResult


@dataclass(frozen=True)
class RunInfo:
    """A run that is about to train.

    Attributes:
        path: The run directory.
        settings: Everything that decides what it computes, nested as in config.json: `train`, `recipe`, `network`.
        steps: Steps in all.
        steps_per_epoch: Steps in an epoch.
        first_step: Steps already taken: 0 for a new run, more for a resumed one.
    """

    path: Path
    settings: Mapping[str, Any]
    steps: int
    steps_per_epoch: int
    first_step: int

    @property
    def first_epoch(self) -> int:
        """The epoch that training begins with, counted from 1."""
        return self.first_step // self.steps_per_epoch + 1

    @property
    def flat_settings(self) -> dict[str, Any]:
        """The settings by dotted names, e.g. `recipe.lr`."""
        return dict(flattened(self.settings))


@dataclass(frozen=True)
class StepMetrics:
    """The state of an epoch after some of its steps.

    Attributes:
        step: Steps so far.
        epoch: The epoch, counted from 1.
        loss: Mean over the epoch so far.
        accuracy: On the training images of the epoch so far, as a fraction.
        lr: Learning rate of the last step.
        images_per_second: Training speed.
    """

    step: int
    epoch: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float


class Callback(Protocol):
    """Is told how training goes. Subclass it and override what you need; the rest does nothing.

    Only the first of several processes calls it. It cannot change what is computed: a run with callbacks ends with the same weights as
    one without. An exception ends the run, which can be resumed; what was told after its last checkpoint is told again.
    """

    def begin(self, run: RunInfo) -> None:
        """Training begins, or goes on."""
        return

    def step(self, metrics: StepMetrics) -> None:
        """Some steps were taken: called every 20."""
        return

    def epoch(self, metrics: EpochMetrics) -> None:
        """An epoch has ended and was validated."""
        return

    def end(self, result: TrainingResult | None) -> None:
        """The run has ended: with its result, or with None if it was interrupted or failed. Called once for each `begin`."""
        return


class CallbackFault(RunFault):
    """A callback raised an exception: not the fault of the training, which can be resumed."""


class Callbacks:
    """Several callbacks, each told in turn.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._waiting = list(callbacks)
        self._begun: list[Callback] = []

    def begin(self, run: RunInfo) -> None:
        """Tell all that training begins."""
        for callback in self._waiting:
            self._begun.append(callback)
            _call(callback, "begin", run)

    def step(self, metrics: StepMetrics) -> None:
        """Tell all of a step."""
        for callback in self._begun:
            _call(callback, "step", metrics)

    def epoch(self, metrics: EpochMetrics) -> None:
        """Tell all of an epoch."""
        for callback in self._begun:
            _call(callback, "epoch", metrics)

    def end(self, result: TrainingResult | None) -> None:
        """Tell all who were told of the beginning, even if one of them fails."""
        problem: CallbackFault | None = None
        while self._begun:
            try:
                _call(self._begun.pop(0), "end", result)
            except CallbackFault as error:
                problem = problem or error
        if problem is not None:
            raise problem


def _call(callback: Callback, what: str, told: Any) -> None:
    try:
        getattr(callback, what)(told)
    except (RunError, RunFault):
        raise
    except Exception as error:  # code of others may raise anything
        raise CallbackFault(
            f"the callback {type(callback).__name__} failed in {what}: {type(error).__name__}: {error}; "
            "leave it out or mend it, and continue with --resume"
        ) from error

"""Loggers: callbacks that keep the metrics of a run, by name for `shortcaps train --logger`."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shortcaps.errors import RunError
from shortcaps.files import atomic_write, read_json, write_json
from shortcaps.registry import Registry
from shortcaps.training.callbacks import Callback, RunInfo, StepMetrics
from shortcaps.training.state import EpochMetrics

if TYPE_CHECKING:
    from shortcaps.training.run import TrainingResult

Maker = TypeVar("Maker", bound=Callable[[], Callback])

LOGGERS: Registry[Callable[[], Callback]] = Registry("logger")
PROJECT = "shortcaps"
"""Name of the project or experiment that runs are logged to, unless the service's own environment variable names another."""
_LOGGED = ("loss", "accuracy", "validation_error", "lr", "images_per_second")


def _logged(metrics: EpochMetrics) -> dict[str, float]:
    """What services are told of an epoch: nothing of a validation error where nothing is validated."""
    return {name: value for name in _LOGGED if (value := getattr(metrics, name)) is not None}


def register_logger(name: str) -> Callable[[Maker], Maker]:
    """Register a logger under a name: a decorator for a `Callback` class that takes no arguments.

    Args:
        name: The name for `shortcaps train --logger`.

    Returns:
        The decorator.

    Raises:
        ValueError: The name is taken.
    """
    return LOGGERS.decorator(name)


def make_loggers(names: Sequence[str]) -> list[Callback]:
    """The loggers of these names.

    Raises:
        RunError: A name is unknown, or the package that a logger needs is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise RunError(LOGGERS.unknown(name))
    return [LOGGERS[name]() for name in dict.fromkeys(names)]


def automatic_loggers(callbacks: Sequence[Callback]) -> list[Callback]:
    """The logger that a run has without being asked for: TensorBoard's, where that is installed and not among the callbacks already."""
    if any(isinstance(callback, TensorBoardLogger) for callback in callbacks):
        return []
    try:
        return [TensorBoardLogger()]
    except RunError:
        return []


def _require(package: str, logger: str) -> Any:
    """Import a package that only this logger needs."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0] if not package.startswith("torch.") else "tensorboard"
        raise RunError(
            f"the logger {logger} needs {name}, which is not installed: pip install {name}, or leave out --logger {logger}"
        ) from error


@register_logger("tensorboard")
class TensorBoardLogger(Callback):
    """Writes the metrics of each epoch to the run's `events` folder, for TensorBoard. A resumed run drops the events after its checkpoint."""

    def __init__(self) -> None:
        self._writer_class: Any = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer: Any = None

    def begin(self, run: RunInfo) -> None:
        """Open the file."""
        self._writer = self._writer_class(str(run.path / "events"), purge_step=run.first_epoch)

    def epoch(self, metrics: EpochMetrics) -> None:
        """Write the metrics of an epoch."""
        for name, value in _logged(metrics).items():
            self._writer.add_scalar(name, value, metrics.epoch)
        self._writer.flush()

    def end(self, result: TrainingResult | None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@register_logger("csv")
class CSVLogger(Callback):
    """Writes steps.csv into the run directory, a row every 20 steps; metrics.csv, a row for each epoch, is there anyway."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._rows: list[dict[str, Any]] = []

    def begin(self, run: RunInfo) -> None:
        """Keep the rows of a resumed run up to its checkpoint.

        Raises:
            RunError: They cannot be read.
        """
        file = run.path / "steps.csv"
        if run.first_step and file.is_file():
            try:
                with file.open(newline="") as lines:
                    self._rows = [row for row in csv.DictReader(lines) if int(row["step"]) <= run.first_step]
            except (ValueError, TypeError, KeyError, csv.Error) as error:
                reason = f"{type(error).__name__}: {error}"
                raise RunError(f"{file} is damaged ({reason}): mend it or remove it, then resume") from error
        self._file = file

    def step(self, metrics: StepMetrics) -> None:
        """Add a row, at once: if the process is killed, the run resumes from a checkpoint within the epoch."""
        self._rows.append(asdict(metrics))
        self._write()

    def end(self, result: TrainingResult | None) -> None:
        """Write the file, of a run that was too short for a row too."""
        if self._file is not None:  # otherwise it could not be read, and is left to be mended
            self._write()

    def _write(self) -> None:
        assert self._file is not None, "training has begun"
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(StepMetrics)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        with atomic_write(self._file) as file:
            file.write(text.getvalue().encode())


class _Service(Callback):
    """What W&B and MLflow have in common: a run of theirs, whose id is kept so that a resumed run goes on in it."""

    name: str
    _ids: Path

    def begin(self, run: RunInfo) -> None:
        """Begin a run of the service, or go on in the one begun earlier."""
        self._ids = run.path / "loggers.json"
        known = read_json(self._ids) if self._ids.is_file() else {}
        known[self.name] = self._start(run, known.get(self.name) if run.first_step else None)
        write_json(self._ids, known)

    def step(self, metrics: StepMetrics) -> None:
        """Log loss and accuracy of the epoch so far."""
        self._log({"step_loss": metrics.loss, "step_accuracy": metrics.accuracy}, metrics.step)

    def epoch(self, metrics: EpochMetrics) -> None:
        """Log the metrics of an epoch."""
        self._log({"epoch": metrics.epoch} | _logged(metrics), metrics.step)

    def _start(self, run: RunInfo, earlier: str | None) -> str:
        """Begin or continue a run of the service, and return its id."""
        raise NotImplementedError

    def _log(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError


def _summary(result: TrainingResult) -> dict[str, float]:
    test = result.test
    return {
        "test_accuracy": test.accuracy,
        "test_macro_f1": test.macro_f1,
        "test_calibration_error": test.calibration_error,
        "best_epoch": result.best_epoch,
    }


@register_logger("wandb")
class WandbLogger(_Service):
    """Logs to Weights & Biases; WANDB_PROJECT, WANDB_MODE and its other variables count."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb = _require("wandb", "wandb")
        self._run: Any = None

    def _start(self, run: RunInfo, earlier: str | None) -> str:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        settings = run.flat_settings
        self._run = self._wandb.init(
            project=project, name=run.path.name, dir=str(run.path), config=settings, id=earlier, resume="allow"
        )
        return str(self._run.id)

    def _log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def end(self, result: TrainingResult | None) -> None:
        """Log the result and finish the run."""
        if self._run is None:
            return
        if result is not None:
            self._run.summary.update(_summary(result))
        self._run.finish(exit_code=0 if result is not None else 1)


@register_logger("mlflow")
class MLflowLogger(_Service):
    """Logs to MLflow; MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables count."""

    name = "mlflow"

    def __init__(self) -> None:
        self._mlflow = _require("mlflow", "mlflow")
        self._is_open = False

    def _start(self, run: RunInfo, earlier: str | None) -> str:
        if earlier is None and "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            self._mlflow.set_experiment(PROJECT)
        started = self._mlflow.start_run(run_id=earlier, run_name=run.path.name)
        self._is_open = True
        if earlier is None:  # MLflow refuses to change parameters
            settings = list(run.flat_settings.items())
            for first in range(0, len(settings), 100):  # as many as MLflow takes at once
                self._mlflow.log_params(dict(settings[first : first + 100]))
        return str(started.info.run_id)

    def _log(self, values: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(values, step=step)

    def end(self, result: TrainingResult | None) -> None:
        """Log the result and end the run."""
        if not self._is_open:
            return
        if result is not None:
            self._mlflow.log_metrics(_summary(result))
        self._mlflow.end_run("FINISHED" if result is not None else "FAILED")

"""A whole run: from its config to the run directory it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shortcaps.data import Dataset
from shortcaps.environment import is_first_process
from shortcaps.errors import RunError, RunFault
from shortcaps.inference.evaluate import Evaluation, summarise
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.located import locate_data
from shortcaps.runs.sample import write_sample
from shortcaps.training.callbacks import Callback
from shortcaps.training.display import Display
from shortcaps.training.loggers import automatic_loggers
from shortcaps.training.loop import Trainer
from shortcaps.training.report import write_report
from shortcaps.training.setup import faster_precision, make_fabric, smaller_network
from shortcaps.training.start import Start


@dataclass(frozen=True)
class TrainingResult:
    """The result of a finished run.

    Attributes:
        run: Its directory.
        test: The evaluation of the selected weights on the test images.
        best_epoch: The epoch they are from, counted from 1.
        seconds: Training time.
    """

    run: Path
    test: Evaluation
    best_epoch: int
    seconds: float


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    data: str | None = None,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
    start: Start | None = None,
    splits: Mapping[str, Dataset] | None = None,
) -> TrainingResult | None:
    """Train a network, test the selected weights once, and leave a run directory.

    Args:
        config: What to train, on what and how. Ignored if a run is resumed, which continues as it was started.
        out: The run directory.
        resume: Whether to resume the run in it.
        data: Where the data of a run to resume is now, if it has moved.
        display: Where progress is shown; nowhere if None.
        callbacks: Who is told how training goes (`Callback`): loggers, or code of your own.
        start: The network to begin with; None for the config's.
        splits: The images, by split, instead of those that the config names.

    Returns:
        The result; None in all processes but the first, which may return before the run directory is complete.

    Raises:
        RunError: The config makes no sense, or the run directory cannot be used.
        RunFault: Something failed while running: a loss that is not finite, a full disk.
        Interrupted: A signal asked it to stop; the state is saved.
    """
    display = display if display is not None and is_first_process() else Display()
    run = RunDirectory(out)
    before = run.read_manifest() if resume else None
    if before is None:
        recipe = config.make_recipe()
        start = start or Start.of_config(config)
        if config.model.freeze is not None and start is None:
            raise RunError(f"--freeze {config.model.freeze} needs trained weights: give --from RUN")
    else:
        config = before.train if splits is not None else replace(before.train, data=locate_data(before, data))
        recipe, start = before.recipe, None
    fabric = make_fabric(config)
    if is_first_process():
        run.claim(resume=resume)
    try:
        fabric.launch()
        if before is not None and fabric.world_size != config.run.devices:
            raise RunError(
                f"{out} was started with {config.run.devices} processes, not {fabric.world_size}: resume it with as many"
            )
        config = config.changed(devices=fabric.world_size)  # under torchrun the number is torchrun's
        told = (*callbacks, *automatic_loggers(callbacks)) if fabric.is_global_zero else ()
        trainer = Trainer(config, recipe, run, fabric, display, before, told, start, splits)
        if not resume:
            begin(trainer)
        fabric.barrier()
        if resume:
            trainer.restore()
        result = None
        try:
            trainer.train()
            result = _finish(trainer)
        finally:
            trainer.callbacks.end(result)
        return result
    except OSError as error:
        raise RunFault(f"{error.filename or run.path}: {error.strerror or error}") from error
    finally:
        run.release()


def begin(trainer: Trainer) -> None:
    """Write what a new run consists of before its first step; config.json last, as it makes the directory a run."""
    origin = trainer.manifest.origin
    advice = (
        smaller_network(trainer.state.model, len(trainer.data)),
        faster_precision(trainer.config.run.precision, trainer.fabric.device),
    )
    for line in filter(None, advice):
        trainer.display.say(line)
    if trainer.fabric.is_global_zero:
        write_sample(trainer.run, trainer.data)
    if origin is not None:
        # Where a run begins with weights that are elsewhere, it keeps them, to resume from.
        trainer.save()
        trainer.display.say(f"beginning with {origin}")
    if trainer.fabric.is_global_zero:
        trainer.run.write_json("config.json", trainer.manifest.to_json())


def _finish(trainer: Trainer) -> TrainingResult | None:
    """Test the selected weights once, in all processes, and write what there is to say, in the first."""
    state, run = trainer.state, trainer.run
    model, progress = state.model, state.progress
    model.load_state_dict(state.best)
    activations = trainer.activations(trainer.test)
    # Nobody waits for the first process to write: a process group gives up those who wait for half an hour.
    if not trainer.fabric.is_global_zero:
        return None
    run.write_weights(state.best, run.weights_file)
    test = summarise(activations, trainer.test)
    predicted = test.activations.argmax(1)
    StoredAnswers(predicted, trainer.test.labels, trainer.test.originals).write(run.answers_file)
    result = TrainingResult(run.path, test, progress.best_epoch, progress.seconds)
    record = {
        "test": test.to_dict(),
        "test_set": trainer.test.name,
        "test_fingerprint": trainer.test.fingerprint(),
        "best_epoch": result.best_epoch,
        "validation_error": progress.best_error,
        "training_seconds": round(result.seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "resumed": [asdict(entry) for entry in progress.resumed],
    }
    run.write_json("result.json", record)
    write_report(run.path, model, trainer.test, test, trainer.manifest, record)
    return result

"""The training loop.

Every step is a function of the state before it, the config and the number of the step, and of nothing else: the order of images,
augmentation and dropout are drawn from seeds derived from (seed, purpose, number). So a run that was interrupted anywhere and resumes
from its last checkpoint ends with exactly the same weights as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from shortcaps.data import SPLITS, Dataset, join
from shortcaps.environment import describe_environment
from shortcaps.errors import RunError, RunFault
from shortcaps.inference.evaluate import class_activations
from shortcaps.losses import LOSSES, class_shares
from shortcaps.recipes import Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.manifest import Manifest
from shortcaps.schedules import SCHEDULES
from shortcaps.training.adapt import adapt_recipe
from shortcaps.training.batches import Batches
from shortcaps.training.callbacks import Callback, CallbackFault, Callbacks, RunInfo, StepMetrics
from shortcaps.training.display import Display
from shortcaps.training.mixing import mix
from shortcaps.training.optimizer import make_optimizer, set_rate
from shortcaps.training.replicas import average_gradients, largest_of_all, share_buffers
from shortcaps.training.seeds import derive
from shortcaps.training.setup import (
    augmentation,
    check_recipe,
    class_weights,
    freeze_backbone,
    in_order,
    load_split,
    make_manifest,
    make_network,
)
from shortcaps.training.signals import Interrupted, listening_for_signals
from shortcaps.training.start import Start
from shortcaps.training.state import EpochMetrics, Resumption, State
from shortcaps.training.synced import synchronise_batch_norm
from shortcaps.training.watch import STEPS_BETWEEN_LOOKS, Watch

SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""Within an epoch."""
SECONDS_OF_SHORT_EPOCHS = 5.0
"""Epochs that end within this time of a checkpoint have none of their own: with a hundred images, writing would take longer than training."""


class Trainer:
    """A run between its first step and its last.

    Args:
        config: The requested config.
        recipe: The recipe that takes effect.
        run: The run directory.
        fabric: The processes that train together, launched.
        display: Where progress is shown.
        resumed: The manifest of the run to resume; None for a new one.
        callbacks: Who is told how training goes, by the first process.
        start: The network that a new run begins with; None for weights drawn by its seed.
        splits: The images, if they were given in Python.
    """

    def __init__(
        self,
        config: TrainConfig,
        recipe: Recipe,
        run: RunDirectory,
        fabric: Fabric,
        display: Display,
        resumed: Manifest | None = None,
        callbacks: Sequence[Callback] = (),
        start: Start | None = None,
        splits: Mapping[str, Dataset] | None = None,
    ) -> None:
        self.config, self.run, self.fabric, self.display = config, run, fabric, display
        self.callbacks = Callbacks(callbacks if fabric.is_global_zero else ())
        if recipe.batch_size % fabric.world_size:
            raise RunError(f"batch_size {recipe.batch_size} cannot be divided among {fabric.world_size} processes")

        # All three now: a problem with the test images should be reported before the training, not after it.
        self.splits = in_order(splits) if splits else {split: load_split(config, split, display) for split in SPLITS}
        self.data, self.test = self.splits["train"], self.splits["test"]
        self.validation: Dataset | None = self.splits["validation"]
        if config.data.refit:
            self.data, self.validation = join(self.data, self.splits["validation"]), None
        elif start is not None:
            start.check_validation(self.splits["validation"])
        images = self.data.images
        self.images = images.to(fabric.device) if isinstance(images, Tensor) else images
        self.labels = self.data.labels.to(fabric.device)
        if len(self.data) < fabric.world_size:
            raise RunError(
                f"{config.data.name} has {len(self.data)} training images, fewer than the {fabric.world_size} processes: "
                "use fewer --devices"
            )
        adapted = ""
        if resumed is None:
            # By the images that settings were chosen with, so that the final run trains in the same way.
            recipe, adapted = adapt_recipe(config, recipe, len(self.splits["train"]), fabric.world_size)
            if self.validation is None and recipe.patience is not None:
                recipe = recipe.changed({"patience": None})
                display.say("patience takes no effect: with --refit nothing is validated")
        self.recipe = recipe
        self.augment = augmentation(recipe, self.data)
        classes = len(self.data.class_names)
        self.batches = Batches(self.data.labels, classes, recipe, config.run.seed, fabric.world_size)
        self.batch_size, self.steps_per_epoch = self.batches.size, self.batches.per_epoch
        weights = class_weights(recipe, self.data)
        self.class_weights = None if weights is None else weights.to(fabric.device)
        self.steps = recipe.epochs * self.steps_per_epoch
        self.loss, self.schedule = LOSSES[recipe.loss], SCHEDULES[recipe.schedule]
        self.manifest = resumed or make_manifest(config, recipe, self.splits, start, in_memory=splits is not None)

        model = make_network(self.manifest.network, config.run.seed)
        check_recipe(recipe, model)
        if start is not None and self.manifest.origin is not None:
            start.fill(model, self.manifest.origin)
        if fabric.world_size > 1:
            synchronise_batch_norm(model)
        if config.model.freeze is not None:
            freeze_backbone(model)
        optimizer = make_optimizer(model, recipe, fabric.device)
        self.network, self.optimizer = fabric.setup(model, optimizer)
        if config.run.compile:
            self.network.compile()
        self.state = State(model.to(fabric.device), self.optimizer.optimizer, recipe)
        self.saved = -float("inf")
        """When the last checkpoint was written, by `time.monotonic`."""
        self.watch = Watch(
            self.state,
            fabric,
            lr=recipe.lr,
            steps_per_epoch=self.steps_per_epoch,
            last_good_file=run.last_good_file,
        )
        if adapted:
            display.say(adapted)

    # ---- one step

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This process's part of a step's images, augmented, and their labels (batch,); shares (batch, classes) of mixed images."""
        chosen = self.batches.indices(step).to(self.fabric.device)
        # All processes draw for the whole batch and take their part of it, so that their number changes nothing.
        generator = torch.Generator().manual_seed(derive(self.config.run.seed, "augment", step))
        images, labels = self.augment(self.images[chosen].to(self.fabric.device), generator), self.labels[chosen]
        if self.recipe.mixup:
            seed = derive(self.config.run.seed, "mixup", step)
            images, labels = mix(images, labels, len(self.data.class_names), self.recipe.mixup, seed)
        share = self.batch_size // self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        return images[mine], labels[mine]

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step, by the schedule."""
        factor = self.schedule(step, self.steps, self.steps_per_epoch, **self.recipe.schedule_settings)
        return self.recipe.lr * factor

    def take_step(self) -> tuple[Tensor, Tensor]:
        """Update the weights once.

        Returns:
            The loss and the number of correct answers, both scalars on the device.
        """
        step = self.state.step
        images, labels = self.batch(step)
        torch.manual_seed(derive(self.config.run.seed, f"dropout {self.fabric.global_rank}", step))
        set_rate(self.optimizer, self.learning_rate(step))
        self.optimizer.zero_grad()
        if self.state.model.reconstructs:
            activations, penalty = self.network(images, labels)
        else:
            activations, penalty = self.network(images), 0.0
        epoch = step / self.steps_per_epoch
        settings: dict[str, Any] = dict(self.recipe.loss_settings)
        if self.class_weights is not None:
            settings["weights"] = class_shares(labels, activations) @ self.class_weights.to(activations)
        loss = self.loss(activations, labels, epoch=epoch, **settings) + penalty
        self.backward(loss)
        self.watch.see_gradients(loss, images)
        self.optimizer.step()
        self.state.update_average()
        self.state.progress.step = step + 1
        classes = labels if labels.ndim == 1 else labels.argmax(1)
        return loss.detach(), (activations.detach().argmax(1) == classes).sum()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss that is the mean over this process's part of the batch: those of the whole batch."""
        self.fabric.backward(loss)
        if self.fabric.world_size > 1:
            average_gradients(self.state.model)
            share_buffers(self.state.model)

    # ---- the whole run

    def check_data(self) -> None:
        """Raise RunError if the images of a resumed run have changed: it could be tested on images it was trained on."""
        before = self.manifest.data.fingerprints  # runs of 0.1 may have none
        known = [s for s in ("train", "validation") if before.get(s)]
        changed = [s for s in known if not self.splits[s].has_fingerprint(before[s])]
        if changed:
            raise RunError(
                f"the images of {self.config.data.name} ({', '.join(changed)}) are not those that {self.run.path} was started with: "
                "restore them, or start a new run with another --out"
            )

    def restore(self) -> None:
        """Restore the state from the newest usable checkpoint, if there is one."""
        self.check_data()
        checkpoint, complaints = self.run.read_checkpoint(self.manifest.digest)
        for complaint in complaints:
            self.display.say(complaint)
        if checkpoint is None:
            if self.manifest.origin is not None:
                raise RunError(
                    f"{self.run.path} has no checkpoint that can be used, and so not the weights it began with: begin a new run"
                )
            self.display.say("no checkpoint to resume from: starting over")
            self.note_environment()
            return
        try:
            self.state.restore(checkpoint)
            step = self.state.step
            if not 0 <= step <= self.steps or (step >= self.steps_per_epoch) != bool(self.state.best):
                raise ValueError(f"step {step} of {self.steps}")
        # Whoever wrote it also wrote its checksums, so that they say nothing of whether it makes sense.
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(
                f"the newest checkpoint in {self.run.path} does not fit its config ({reason}): delete it to use the one before"
            ) from error
        self.watch.keep_weights()
        self.note_environment()
        self.display.say(f"resuming after step {self.state.step} of {self.steps}")

    def note_environment(self) -> None:
        """Record a change of commit, version or number of threads since the run was last started."""
        resumed = self.state.progress.resumed
        before = resumed[-1].environment if resumed else self.manifest.environment
        now = describe_environment()
        if now != before:
            resumed.append(Resumption(self.state.step, now))

    def save(self) -> None:
        """Write the metrics of all epochs so far, and a checkpoint."""
        if self.fabric.is_global_zero:
            if rows := self.state.progress.rows:
                self.run.write_metrics(map(asdict, rows))
            self.run.write_checkpoint(self.state.to_checkpoint(), self.manifest.digest)
        self.fabric.barrier()
        self.saved = time.monotonic()

    def train(self) -> None:
        """Train until the last step, or until a signal arrives.

        Raises:
            Interrupted: A signal arrived; the state is saved.
            RunFault: A loss or gradient is not finite; the last good weights are saved.
        """
        with listening_for_signals() as signalled:
            self.display.begin(self.steps, self.state.step)
            try:
                self.callbacks.begin(self.info)
                while not self.has_ended:
                    self.train_epoch(signalled)
            except CallbackFault:
                raise
            except RunFault:
                if self.fabric.is_global_zero:
                    self.run.write_weights(self.watch.good, self.run.last_good_file)
                raise
            finally:
                self.display.end()

    @property
    def info(self) -> RunInfo:
        """What callbacks are told of the run before it trains."""
        stored = self.manifest.to_json()
        settings = {name: stored[name] for name in ("train", "recipe", "network")}
        return RunInfo(self.run.path, settings, self.steps, self.steps_per_epoch, self.state.step)

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state.step >= self.steps or self.has_lost_patience

    @property
    def has_lost_patience(self) -> bool:
        """Whether the validation error has not become lower for as many epochs as the recipe allows."""
        errors = [row.validation_error for row in self.state.progress.rows if row.validation_error is not None]
        patience = self.recipe.patience
        return patience is not None and bool(errors) and len(errors) - 1 - errors.index(min(errors)) >= patience

    def train_epoch(self, signalled: Callable[[], int | None]) -> None:
        """Train until the end of the epoch, with a checkpoint every minute.

        Args:
            signalled: Returns the number of a signal that has arrived, or None.
        """
        progress = self.state.progress
        epoch = self.state.step // self.steps_per_epoch
        losses: list[Tensor] = []
        correct = torch.zeros((), device=self.fabric.device)
        began = saved = time.monotonic()
        seen_before = progress.seen
        while True:
            loss, right = self.take_step()
            losses.append(loss)
            correct += right
            progress.seen += self.batch_size
            ended = self.state.step % self.steps_per_epoch == 0
            if self.state.step % STEPS_BETWEEN_LOOKS == 0:
                known = progress.losses + torch.stack(losses).tolist()
                mean = sum(known) / len(known)
                accuracy = (progress.correct + float(correct) * self.fabric.world_size) / progress.seen
                speed = (progress.seen - seen_before) / self.seconds_since(began)
                self.display.step(self.state.step, f"{epoch + 1}/{self.recipe.epochs}", mean, accuracy, speed)
                lr = self.learning_rate(self.state.step - 1)
                self.callbacks.step(StepMetrics(self.state.step, epoch + 1, mean, accuracy, lr, round(speed, 1)))
            stop, late = self.agreed(signalled(), time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS)
            if ended or late or stop is not None:
                self.watch.check_state()
                totals = self.summed(torch.stack([*losses, correct])).tolist()
                progress.losses += [total / self.fabric.world_size for total in totals[:-1]]
                progress.correct += int(totals[-1])
                progress.seconds += time.monotonic() - saved
                losses.clear()
                correct.zero_()
                saved = time.monotonic()
            if ended:
                break
            if late or stop is not None:
                self.save()
            if stop is not None:
                raise Interrupted(stop, self.state.step)
        self.end_epoch(epoch, (progress.seen - seen_before) / self.seconds_since(began))
        stop, _ = self.agreed(signalled(), False)
        if self.has_lost_patience and self.state.step < self.steps:
            self.display.say(f"stopped early: {self.recipe.patience} epochs without a lower validation error")
        elif stop is not None and not self.has_ended:
            self.save()
            raise Interrupted(stop, self.state.step)

    @staticmethod
    def seconds_since(began: float) -> float:
        """The time since a value of `time.monotonic`; never 0, though a coarse clock may stand still for an epoch."""
        return max(time.monotonic() - began, 1e-6)

    def agreed(self, stop: int | None, late: bool) -> tuple[int | None, bool]:
        """Combine the findings of all processes, so that they all stop or save after the same step."""
        if self.fabric.world_size == 1:
            return stop, late
        flags = largest_of_all(torch.tensor([stop or 0, int(late)], device=self.fabric.device))
        return int(flags[0]) or None, bool(flags[1])

    def end_epoch(self, epoch: int, speed: float) -> None:
        """Validate, keep the weights if they are the best so far or nothing is validated, and write metrics and a checkpoint if there is no recent one.

        Args:
            epoch: The epoch, counted from 0.
            speed: Images per second.
        """
        progress = self.state.progress
        with self.state.averaged():
            error = self.validation_error()
        kept = self.state.average or self.state.model.state_dict()
        if self.config.run.keep_epochs and self.fabric.is_global_zero:
            self.run.write_weights(kept, self.run.epoch_file(epoch + 1))
        if error is None or progress.best_error is None or error <= progress.best_error:
            progress.best_error, progress.best_epoch = error, epoch + 1
            self.state.best = {name: tensor.clone() for name, tensor in kept.items()}
        row = EpochMetrics(
            epoch=epoch + 1,
            step=self.state.step,
            loss=sum(progress.losses) / self.steps_per_epoch,
            accuracy=progress.correct / progress.seen,
            validation_error=error,
            lr=self.learning_rate(self.state.step - 1),
            images_per_second=round(speed, 1),
        )
        progress.rows.append(row)
        progress.losses, progress.correct, progress.seen = [], 0, 0
        _, due = self.agreed(None, time.monotonic() - self.saved > SECONDS_OF_SHORT_EPOCHS)
        if due or self.has_ended:
            self.save()
        self.display.epoch(row, self.recipe.epochs)
        self.callbacks.epoch(row)

    def validation_error(self) -> float | None:
        """Validation error as a fraction; None where the validation images are trained on."""
        if self.validation is None:
            return None
        answers = self.activations(self.validation).argmax(1)
        return 1 - int((answers == self.validation.labels).sum()) / len(self.validation)

    def activations(self, data: Dataset) -> Tensor:
        """What the network gives for all images of a data set, (count, classes) on the CPU; the processes share the work."""
        part, parts = self.fabric.global_rank, self.fabric.world_size
        shown = class_activations(self.state.model, data, device=self.fabric.device, part=part, parts=parts)
        return shown if parts == 1 else self.summed(shown).cpu()

    def summed(self, numbers: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        total = self.fabric.all_reduce(numbers.to(self.fabric.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

"""The training loop.

Every step is a function of the state before it, the config and the step's number, and of nothing else: the order of images,
augmentation and dropout are drawn from seeds derived from (seed, what, number). So a run that was interrupted anywhere and
goes on from its last checkpoint ends with the very same weights as one that was not.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from shortcaps.data import SPLITS, Dataset, View, load_dataset
from shortcaps.environment import best_device, describe_environment, is_first_process
from shortcaps.errors import RunError, RunFault
from shortcaps.inference.evaluate import Evaluation, evaluate, predict
from shortcaps.losses import log_probability_loss, margin_loss, spread_loss, spread_margin
from shortcaps.models import MODELS, create_model
from shortcaps.runs.config import Recipe, TrainConfig
from shortcaps.runs.directory import FORMAT, RunDirectory, digest_of
from shortcaps.training.diagnose import first_layer_without_numbers
from shortcaps.training.display import Display
from shortcaps.training.events import Events
from shortcaps.training.report import write_report
from shortcaps.training.state import State
from shortcaps.training.synced import synchronise_batch_norm

SECONDS_BETWEEN_CHECKPOINTS = 60.0
STEPS_BETWEEN_LOOKS = 20
"""Numbers are fetched from the device, for the display and to see that they are numbers, every so many steps; on the CPU the
second costs nothing and is done at every step."""


class Interrupted(Exception):
    """A signal asked the run to stop; everything is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.number, self.step = number, step


@dataclass(frozen=True)
class TrainingResult:
    run: Path
    test: Evaluation
    best_epoch: int
    seconds: float


def derive(seed: int, what: str, number: int) -> int:
    """A seed for one purpose and one moment."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{what}/{number}".encode()).digest()[:8], "big") >> 1


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    if recipe.schedule == "steps":
        return recipe.lr * 0.8 ** (step // steps_per_epoch // 20)
    total = recipe.epochs * steps_per_epoch
    rise = max(1, round(0.3 * total))
    if step < rise:
        return recipe.lr * (0.04 + 0.96 * step / rise)
    return recipe.lr * max(0.0, (total - step) / (total - rise))


def loss_of(recipe: Recipe, probabilities: Tensor, labels: Tensor, epoch: float) -> Tensor:
    if recipe.loss == "spread":
        return spread_loss(probabilities, labels, spread_margin(epoch))
    if recipe.loss == "margin":
        return margin_loss(probabilities, labels)
    return log_probability_loss(probabilities, labels)


def augmentation(recipe: Recipe, data: Dataset) -> View:
    """How training images reach the network."""
    return data.augment_anywhere or data.augment if recipe.placement == "anywhere" else data.augment


def make_fabric(config: TrainConfig) -> Fabric:
    accelerator = best_device()
    available = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": os.cpu_count() or 1}[accelerator]
    devices, machines = config.devices, 1
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes, and knows how many
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        machines = int(os.environ["WORLD_SIZE"]) // devices
    if devices > available:
        raise RunError(f"devices {devices} are more than there are: this machine has {available} ({accelerator})")
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=machines,
        strategy="ddp" if devices * machines > 1 else "auto",
        precision=config.precision,  # type: ignore[arg-type]
    )


def load_split(config: TrainConfig, split: str, display: Display) -> Dataset:
    data = load_dataset(config.data, split, config.protocol, progress=display.rendering, **config.data_options)
    if config.most_images is None:
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(0, "trial", 0)))
    return data.subset(order[: config.most_images])


def network_settings(config: TrainConfig, data: Dataset) -> dict[str, Any]:
    """What `create_model` needs to build this run's network, now and when it is loaded again."""
    channels, height, width = data.image_shape
    routed: dict[str, Any] = {}
    own = dict(config.network)
    if MODELS[config.model].has_routing:
        settings = config.effective_recipe.routing_settings.get(config.routing, {}) | own.pop("routing_settings", {})
        routed = {"routing": config.routing, "routing_settings": settings, "shortcut": config.shortcut}
    return {
        "name": config.model,
        **routed,
        "image_size": height if height == width else [height, width],
        "channels": channels,
        "classes": len(data.class_names),
        **own,
    }


def full_config(config: TrainConfig, splits: Mapping[str, Dataset]) -> dict[str, Any]:
    """config.json: what was asked for, what took effect, and what is needed to use the network."""
    recipe, data = config.effective_recipe, splits["train"]
    return {
        "format": FORMAT,
        "train": config.to_dict(),
        "recipe": {name: getattr(recipe, name) for name in recipe.__dataclass_fields__},
        "network": network_settings(config, data),
        "data": {
            "name": data.name,
            "label": data.label,
            "protocol": data.protocol,
            "class_names": list(data.class_names),
            "stored_size": list(data.images.shape[2:]),
            "preparation": {"bright_on_dark": data.bright_on_dark, "centred_digits": data.centred_digits},
            "view": str(data.view),
            "augment": str(augmentation(recipe, data)),
            "fingerprints": {split: part.fingerprint() for split, part in splits.items()},
        },
        "environment": describe_environment(),
    }


@contextmanager
def listening_for_signals() -> Iterator[Callable[[], int | None]]:
    """Within, SIGINT and SIGTERM are remembered instead of obeyed, so that a step is never cut in two."""
    received: list[int] = []
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda n, frame: received.append(n))
    except ValueError:  # not the main thread, where signals do not arrive anyway
        before = {}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Trainer:
    def __init__(self, config: TrainConfig, run: RunDirectory, fabric: Fabric, display: Display) -> None:
        self.config, self.run, self.fabric, self.display = config, run, fabric, display
        self.recipe = config.effective_recipe
        self.digest = digest_of(config)
        if self.recipe.batch_size % fabric.world_size:
            raise RunError(f"batch_size {self.recipe.batch_size} cannot be divided among {fabric.world_size} processes")

        # All three now: what is wrong with the test images should be said before the training, not after it.
        self.splits = {split: load_split(config, split, display) for split in SPLITS}
        self.data, self.validation, self.test = self.splits.values()
        self.augment = augmentation(self.recipe, self.data)
        self.images, self.labels = self.data.images.to(fabric.device), self.data.labels.to(fabric.device)
        self.batch_size = min(self.recipe.batch_size, len(self.data) // fabric.world_size * fabric.world_size)
        self.steps_per_epoch = max(1, len(self.data) // self.batch_size)
        self.steps = self.recipe.epochs * self.steps_per_epoch

        torch.manual_seed(derive(config.seed, "weights", 0))
        try:
            model = create_model(**network_settings(config, self.data))
        except (ValueError, TypeError) as error:
            raise RunError(str(error)) from error
        if fabric.world_size > 1:
            synchronise_batch_norm(model)
        fused = fabric.device.type in ("cpu", "cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=self.recipe.lr, fused=fused)
        self.network, self.optimizer = fabric.setup(model, optimizer)
        if config.compile:
            self.network.compile()
        self.state = State(model.to(fabric.device), self.optimizer.optimizer, self.recipe)
        self.good = self.snapshot()
        """Weights that were seen to give numbers, not long ago."""

    def snapshot(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state.model.state_dict().items()}

    # ---- one step

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """This process's part of a step's images, augmented, and their labels."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if number == 0 or not hasattr(self, "order"):
            generator = torch.Generator().manual_seed(derive(self.config.seed, "order", epoch))
            self.order = torch.randperm(len(self.data), generator=generator).to(self.fabric.device)
        chosen = self.order[number * self.batch_size : (number + 1) * self.batch_size]
        # All processes draw for the whole batch and take their part of it, so that their number changes nothing.
        generator = torch.Generator().manual_seed(derive(self.config.seed, "augment", step))
        images = self.augment(self.images[chosen], generator)
        share = self.batch_size // self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        return images[mine], self.labels[chosen][mine]

    def take_step(self) -> tuple[Tensor, Tensor]:
        """One update of the weights. Returns loss and number of right answers, on the device."""
        step = self.state.step
        images, labels = self.batch(step)
        torch.manual_seed(derive(self.config.seed, f"dropout {self.fabric.global_rank}", step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, step, self.steps_per_epoch)
        self.optimizer.zero_grad()
        if self.state.model.reconstructs:
            probabilities, penalty = self.network(images, labels)
        else:
            probabilities, penalty = self.network(images), 0.0
        loss = loss_of(self.recipe, probabilities, labels, step / self.steps_per_epoch) + penalty
        self.fabric.backward(loss)
        if self.fabric.device.type == "cpu" or step % STEPS_BETWEEN_LOOKS == 0:
            self.check_numbers(step, loss, images)
        if step % STEPS_BETWEEN_LOOKS == 0:
            self.good = self.snapshot()
        self.optimizer.step()
        self.state.update_average()
        self.state.progress["step"] = step + 1
        return loss.detach(), (probabilities.detach().argmax(1) == labels).sum()

    def check_numbers(self, step: int, loss: Tensor, images: Tensor) -> None:
        gradients = [p.grad for p in self.state.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if torch.isfinite(loss) and torch.isfinite(norm):
            return
        where = first_layer_without_numbers(self.state.model, images)
        what = "the loss" if not torch.isfinite(loss) else "a gradient"
        epoch, batch = divmod(step, self.steps_per_epoch)
        raise RunFault(
            f"{what} is not a number at step {step} (epoch {epoch + 1}, batch {batch}), first seen in "
            f"{where or 'the backward pass'}, {self.state.model.title}; the last good weights are in "
            f"{self.run.last_good_file}. Try a smaller --lr than {self.recipe.lr:g}"
        )

    # ---- the whole run

    def check_data(self) -> None:
        """A resumed run must learn from what it began with, or it ends elsewhere, and may be tested on what it has learnt."""
        before = self.run.read_config()["data"].get("fingerprints", {})  # older runs have none
        changed = [s for s in ("train", "validation") if before.get(s, "") not in ("", self.splits[s].fingerprint())]
        if changed:
            raise RunError(
                f"the images of {self.config.data} ({', '.join(changed)}) are not those that {self.run.path} was begun with: "
                "bring them back, or begin a new run with another --out"
            )

    def restore(self) -> None:
        self.check_data()
        checkpoint, complaints = self.run.read_checkpoint(self.digest)
        for complaint in complaints:
            self.display.say(complaint)
        if checkpoint is None:
            self.display.say("no checkpoint to go on from: beginning anew")
            self.note_environment()
            return
        self.state.restore(checkpoint)
        self.good = self.snapshot()
        self.note_environment()
        self.display.say(f"going on after step {self.state.step} of {self.steps}")

    def note_environment(self) -> None:
        """Where a run goes on under another commit, version or number of threads, its result says so."""
        resumed = self.state.progress.setdefault("resumed", [])  # older runs have none
        before = resumed[-1]["environment"] if resumed else self.run.read_config().get("environment")
        now = describe_environment()
        if now != before:
            resumed.append({"after_step": self.state.step, "environment": now})

    def save(self) -> None:
        if self.fabric.is_global_zero:
            self.run.write_checkpoint(self.state.to_checkpoint(), self.digest)
        self.fabric.barrier()

    def train(self) -> None:
        with listening_for_signals() as signalled:
            self.display.begin(self.steps, self.state.step)
            first_epoch = self.state.step // self.steps_per_epoch + 1
            self.events = Events(self.run.path, first_epoch) if self.fabric.is_global_zero else None
            try:
                while self.state.step < self.steps:
                    self.train_epoch(signalled)
            except RunFault:
                if self.fabric.is_global_zero:
                    self.run.write_weights(self.good, self.run.last_good_file)
                raise
            finally:
                self.display.end()
                if self.events is not None:
                    self.events.close()

    def train_epoch(self, signalled: Callable[[], int | None]) -> None:
        progress = self.state.progress
        epoch = self.state.step // self.steps_per_epoch
        losses: list[Tensor] = []
        correct = torch.zeros((), device=self.fabric.device)
        began = saved = time.monotonic()
        seen_before = progress["seen"]
        while True:
            loss, right = self.take_step()
            losses.append(loss)
            correct += right
            progress["seen"] += self.batch_size
            ended = self.state.step % self.steps_per_epoch == 0
            if self.state.step % STEPS_BETWEEN_LOOKS == 0:
                known = progress["losses"] + torch.stack(losses).tolist()
                mean = sum(known) / len(known)
                accuracy = (progress["correct"] + float(correct) * self.fabric.world_size) / progress["seen"]
                speed = (progress["seen"] - seen_before) / (time.monotonic() - began)
                self.display.step(self.state.step, f"{epoch + 1}/{self.recipe.epochs}", mean, accuracy, speed)
            stop, late = self.agreed(signalled(), time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS)
            if ended or late or stop is not None:
                totals = self.summed(torch.stack([*losses, correct])).tolist()
                progress["losses"] += [total / self.fabric.world_size for total in totals[:-1]]
                progress["correct"] += int(totals[-1])
                progress["seconds"] += time.monotonic() - saved
                losses.clear()
                correct.zero_()
                saved = time.monotonic()
            if ended:
                break
            if late or stop is not None:
                self.save()
            if stop is not None:
                raise Interrupted(stop, self.state.step)
        training_seconds = time.monotonic() - began
        self.end_epoch(epoch, (progress["seen"] - seen_before) / training_seconds)
        stop, _ = self.agreed(signalled(), False)
        if stop is not None and self.state.step < self.steps:
            raise Interrupted(stop, self.state.step)

    def agreed(self, stop: int | None, late: bool) -> tuple[int | None, bool]:
        """What any of the processes was told or found, so that all of them do the same after the same step."""
        if self.fabric.world_size == 1:
            return stop, late
        flags = torch.tensor([stop or 0, int(late)], device=self.fabric.device)
        torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
        return int(flags[0]) or None, bool(flags[1])

    def end_epoch(self, epoch: int, speed: float) -> None:
        progress = self.state.progress
        with self.state.averaged():
            error = self.validation_error()
        if progress["best_error"] is None or error <= progress["best_error"]:
            progress["best_error"], progress["best_epoch"] = error, epoch + 1
            kept = self.state.average or self.state.model.state_dict()
            self.state.best = {name: tensor.clone() for name, tensor in kept.items()}
        row = {
            "epoch": epoch + 1,
            "step": self.state.step,
            "loss": sum(progress["losses"]) / self.steps_per_epoch,
            "accuracy": progress["correct"] / progress["seen"],
            "validation_error": error,
            "lr": learning_rate(self.recipe, self.state.step - 1, self.steps_per_epoch),
            "images_per_second": round(speed, 1),
        }
        progress["rows"].append(row)
        progress["losses"], progress["correct"], progress["seen"] = [], 0, 0
        if self.fabric.is_global_zero:
            self.run.write_metrics(progress["rows"])
            assert self.events is not None, "the first process has them"
            self.events.epoch(row)
        self.save()
        self.display.epoch(row, self.recipe.epochs)

    def validation_error(self) -> float:
        """Each process looks at its share of the validation images."""
        share = self.validation.subset(slice(self.fabric.global_rank, None, self.fabric.world_size))
        answers = predict(self.state.model, share, device=self.fabric.device).argmax(1)
        correct = int((answers == share.labels).sum())
        return 1 - int(self.summed(torch.tensor(correct))) / len(self.validation)

    def summed(self, numbers: Tensor) -> Tensor:
        """Over all processes."""
        total = self.fabric.all_reduce(numbers.to(self.fabric.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total


def train(
    config: TrainConfig, out: Path, *, resume: bool = False, display: Display | None = None
) -> TrainingResult | None:
    """Trains, tests the selected weights, and leaves a run directory. Returns None in all processes but the first."""
    display = display if display is not None and is_first_process() else Display()
    run = RunDirectory(out)
    fabric = make_fabric(config)
    if is_first_process():
        run.claim(resume=resume)
    try:
        fabric.launch()
        config = replace(config, devices=fabric.world_size)  # under torchrun the number is torchrun's
        trainer = Trainer(config, run, fabric, display)
        if fabric.is_global_zero and not resume:
            run.write_json("config.json", full_config(config, trainer.splits))
        fabric.barrier()
        if resume:
            trainer.restore()
        trainer.train()
        if not fabric.is_global_zero:
            fabric.barrier()
            return None
        result = finish(trainer)
        fabric.barrier()
        return result
    except OSError as error:
        raise RunFault(f"{error.filename or run.path}: {error.strerror or error}") from error
    finally:
        run.release()


def finish(trainer: Trainer) -> TrainingResult:
    """The selected weights, tested once."""
    state, run = trainer.state, trainer.run
    model = state.model
    model.load_state_dict(state.best)
    run.write_weights(state.best, run.weights_file)
    test_data = trainer.test
    test = evaluate(model, test_data, device=trainer.fabric.device)
    result = TrainingResult(run.path, test, state.progress["best_epoch"], state.progress["seconds"])
    record = {
        "test": test.to_dict(),
        "test_set": test_data.name,
        "best_epoch": result.best_epoch,
        "validation_error": state.progress["best_error"],
        "training_seconds": round(result.seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "resumed": state.progress.get("resumed", []),
    }
    run.write_json("result.json", record)
    write_report(run.path, model, test_data, test, run.read_config(), record)
    return result

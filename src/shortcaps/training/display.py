"""What a person sees while a network trains: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from shortcaps.training.state import EpochMetrics

SECONDS_BETWEEN_LINES = 30


class Display:
    """Says nothing. The base of those that do."""

    def say(self, message: str) -> None: ...

    def rendering(self, done: int, of: int) -> None: ...

    def begin(self, steps: int, done: int) -> None: ...

    def step(self, done: int, epoch: str, loss: float, accuracy: float, speed: float) -> None: ...

    def epoch(self, row: EpochMetrics, epochs: int) -> None: ...

    def end(self) -> None: ...


class ConsoleDisplay(Display):
    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.spoken = time.monotonic()
        self.steps = 0

    def say(self, message: str) -> None:
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def rendering(self, done: int, of: int) -> None:
        if self.bar is None and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("rendering"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.bar.add_task("", total=of)
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=done, total=of)
            if done == of:
                self.bar.stop()
                self.bar = None

    def begin(self, steps: int, done: int) -> None:
        self.steps = steps
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(compact=True),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.bar.add_task("training", total=steps, completed=done, numbers="")

    def step(self, done: int, epoch: str, loss: float, accuracy: float, speed: float) -> None:
        numbers = f"loss {loss:.3f}  accuracy {accuracy:.2%}  {speed:,.0f} images/s"
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=done, description=f"epoch {epoch}", numbers=numbers)
        elif time.monotonic() - self.spoken > SECONDS_BETWEEN_LINES:
            self.spoken = time.monotonic()
            self.say(f"epoch {epoch}, step {done} of {self.steps}: {numbers}")

    def epoch(self, row: EpochMetrics, epochs: int) -> None:
        self.say(
            f"epoch {row.epoch} of {epochs}: loss {row.loss:.4f}, training accuracy {row.accuracy:.2%}, "
            f"validation error {row.validation_error:.2%}, {row.images_per_second:,.0f} images/s"
        )

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()

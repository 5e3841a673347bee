"""Display of a training run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from shortcaps.progress import Pace
from shortcaps.training.state import EpochMetrics


class Display:
    """Shows nothing; the base of displays that do."""

    def say(self, message: str) -> None:
        """Show a message."""

    def rendering(self, done: int, of: int) -> None:
        """Show how many of the objects of a data set are rendered."""

    def begin(self, steps: int, done: int) -> None:
        """Show that training begins, with the total number of steps and those already done."""

    def step(self, done: int, epoch: str, loss: float, accuracy: float, speed: float) -> None:
        """Show a step: steps done, epoch, mean loss, accuracy as a fraction, images per second."""

    def epoch(self, row: EpochMetrics, epochs: int) -> None:
        """Show the metrics of an epoch."""

    def end(self) -> None:
        """Show that training has ended."""


class ConsoleDisplay(Display):
    """Shows a run on a console.

    Args:
        console: Where to print.
        first: A message for the moment when training begins, after all that could be wrong with the settings.
    """

    def __init__(self, console: Console, first: str = "") -> None:
        self.console, self.first = console, first
        self.bar: Progress | None = None
        self.steps = 0
        self.pace = Pace()

    def say(self, message: str) -> None:
        """Print a message."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def rendering(self, done: int, of: int) -> None:
        """Update a bar, on a terminal."""
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
        """Print the first message, and start a bar, on a terminal."""
        if self.first:
            self.say(self.first)
        self.steps, self.pace = steps, Pace(done)
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[numbers]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.bar.add_task("training", total=steps, completed=done, numbers="")

    def step(self, done: int, epoch: str, loss: float, accuracy: float, speed: float) -> None:
        """Update the bar, or print a line every half minute, with an estimate of the time that is left."""
        numbers = f"loss {loss:.3f}  accuracy {accuracy:.2%}  {speed:,.0f} images/s"
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=done, description=f"epoch {epoch}", numbers=numbers)
        elif (left := self.pace.left(done, self.steps)) is not None:
            self.say(f"epoch {epoch}, step {done} of {self.steps}: {numbers}, {left}")

    def epoch(self, row: EpochMetrics, epochs: int) -> None:
        """Print the metrics of an epoch."""
        validation = "" if row.validation_error is None else f"validation error {row.validation_error:.2%}, "
        self.say(
            f"epoch {row.epoch} of {epochs}: loss {row.loss:.4f}, training accuracy {row.accuracy:.2%}, "
            f"{validation}{row.images_per_second:,.0f} images/s"
        )

    def end(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()

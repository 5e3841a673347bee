"""Signals that ask a run to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """A signal asked the run to stop; the state is saved.

    Attributes:
        number: Number of the signal.
        step: The last step that was taken.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.number, self.step = number, step


@contextmanager
def listening_for_signals() -> Iterator[Callable[[], int | None]]:
    """Within, SIGINT and SIGTERM are recorded instead of obeyed, so that no step is cut in two.

    Yields:
        A function that returns the number of the first signal received, or None.
    """
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

"""How long work will still take, said every so often: also where nobody sees a bar, as in a file."""

from __future__ import annotations

import time

SECONDS_BETWEEN_LINES = 30.0


class Pace:
    """Notices when a line about long work is due, and estimates what is left of it.

    Args:
        done: How much was done before, e.g. by a run that is resumed.
        seconds: Time between two lines; the first comes after as long.
    """

    def __init__(self, done: int = 0, seconds: float | None = None) -> None:
        self._before = done
        self._seconds = SECONDS_BETWEEN_LINES if seconds is None else seconds
        self._began = self._spoken = time.monotonic()

    def left(self, done: int, of: int) -> str | None:
        """What is left, in words, if a line is due.

        Args:
            done: How much is done.
            of: How much there is to do.

        Returns:
            `about 3 min left`; None if the last line was not long ago, or if nothing is left.
        """
        now = time.monotonic()
        new = done - self._before
        if now - self._spoken < self._seconds or done >= of or new <= 0:
            return None
        self._spoken = now
        return f"about {duration((now - self._began) / new * (of - done))} left"


def duration(seconds: float) -> str:
    """A time for people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

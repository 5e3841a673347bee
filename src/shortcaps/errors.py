"""Errors, sorted by who can fix them. Each message is one line that names the value and the way out."""

from __future__ import annotations

from collections.abc import Iterable


class ShortcapsError(Exception):
    """Base of every error that this package raises on purpose and that is not a plain `ValueError` or `TypeError`."""


class DataError(ShortcapsError):
    """The requested data is missing, damaged or does not fit."""


class RunError(ShortcapsError):
    """A run, or what was asked of one, makes no sense: a mistake that the user can fix."""


class RunFault(ShortcapsError):
    """Something failed while running: a loss that is not finite, a full disk."""


def check_at_least_one(**numbers: int | Iterable[int | None]) -> None:
    """Raise ValueError if one of these settings, or of the numbers in it, is below 1; None stands for a default."""
    for name, given in numbers.items():
        for value in given if isinstance(given, Iterable) else (given,):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is too small: it must be at least 1")

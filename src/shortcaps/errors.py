"""Errors, sorted by who can fix them. Each message is one line that names the value and the way out."""

from __future__ import annotations


class ShortcapsError(Exception):
    """Base of every error that this package raises on purpose and that is not a plain `ValueError` or `TypeError`."""


class DataError(ShortcapsError):
    """The requested data is missing, damaged or does not fit."""


class RunError(ShortcapsError):
    """A run, or what was asked of one, makes no sense: a mistake that the user can fix."""


class RunFault(ShortcapsError):
    """Something failed while running: a loss that is not finite, a full disk."""

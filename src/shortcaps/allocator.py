"""Reuse of memory that was freed."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h of the GNU C library.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Stop the C library from returning memory to the system after every training step, only to ask for it again.

    A training step on a CPU allocates the same few hundred megabytes each time, and every page that comes fresh from the system is
    cleared first: a tenth to a third of a step (docs/performance.md). This changes the whole process, so a program decides, never a
    library.

    Returns:
        Whether the setting took effect; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(setting, _LARGEST_INT) for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)]
    return taken == [1, 1]

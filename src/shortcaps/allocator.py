"""Memory that was freed once is used again."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h of the GNU C library.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_AS_MUCH_AS_CAN_BE_SAID = 2**31 - 1


def keep_freed_memory() -> bool:
    """Stops the C library from giving memory back to the system after every step of training, only to ask for it again.

    A training step on a CPU allocates the same few hundred megabytes each time, and every page that comes anew from the
    system is cleared first: a tenth to a third of a step (docs/performance.md). Changes the whole process, so a program
    decides, never a library. Returns whether there was something to change.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(setting, _AS_MUCH_AS_CAN_BE_SAID) for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)]
    return taken == [1, 1]

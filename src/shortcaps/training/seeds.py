"""Seeds for every purpose and moment of a run, derived from the one that the user gives."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, number: int) -> int:
    """A seed for one purpose and one moment, e.g. the dropout of step 7.

    So every step depends only on the state before it, the config and its own number.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()[:8], "big") >> 1

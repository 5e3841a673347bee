"""How targets are fuzzed: a few examples in the normal suite, for SHORTCAPS_FUZZ_SECONDS in all under `make fuzz`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shortcaps.errors import ShortcapsError

SECONDS = float(os.environ.get("SHORTCAPS_FUZZ_SECONDS", "0"))
FEW, MANY = 40, 300
_targets: list[str] = []


def fuzz(inputs: st.SearchStrategy[Any], few: int = FEW) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Make a target a test; under `make fuzz` all targets share the time. `few` examples are for the normal suite."""

    def decorate(target: Callable[[Any], None]) -> Callable[[], None]:
        _targets.append(target.__name__)

        def test() -> None:
            end = time.monotonic() + SECONDS / len(_targets)

            def once(value: Any) -> None:
                if not SECONDS or time.monotonic() < end:
                    target(value)

            chosen = settings(
                max_examples=MANY if SECONDS else few,
                derandomize=not SECONDS,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            chosen(given(inputs)(once))()
            while SECONDS and time.monotonic() < end:
                chosen(given(inputs)(once))()

        test.__name__, test.__doc__, test.__module__ = target.__name__, target.__doc__, target.__module__
        return test

    return decorate


@contextmanager
def refused_in_one_line(kind: type[ShortcapsError]) -> Iterator[None]:
    """Within, an error of this kind is an answer, if its message is one line; any other is a failure."""
    try:
        yield
    except kind as error:
        message = str(error)
    else:
        return
    assert message
    assert "\n" not in message


_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@st.composite
def damaged(draw: st.DrawFn, *whole: bytes) -> bytes:
    """One of these files after a few edits: bytes changed, cut out, repeated, put in; numbers of four bytes replaced."""
    data = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(0, 6))):
        # Headers, where most mistakes are, come first in a file.
        place = draw(st.one_of(st.integers(0, min(64, len(data))), st.integers(0, len(data))))
        length = draw(st.integers(0, 32))
        match draw(st.sampled_from(("change", "number", "cut", "repeat", "insert", "end"))):
            case "change" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "number":
                number = draw(st.sampled_from(_NUMBERS))
                data[place : place + 4] = number.to_bytes(4, draw(st.sampled_from(("little", "big"))))
            case "cut":
                del data[place : place + length]
            case "repeat":
                data[place:place] = data[place : place + length]
            case "insert":
                data[place:place] = draw(st.binary(max_size=32))
            case "end":
                del data[place:]
    return bytes(data)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(
            (0, -1, 1, 2, 10**9, 2**31, 2**63, 2**64, 10**30, 10**400, 0.5, -1.5, 1e308, "", "0", "\ud800", "../x")
        ),
        st.integers(-3, 300),
        st.floats(allow_nan=True),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, *whole: dict[str, Any]) -> dict[str, Any]:
    """One of these documents with a few values replaced, removed or added, anywhere in it."""
    import copy

    document: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(1, 3))):
        spot: Any = document
        for _ in range(draw(st.integers(0, 4))):
            inner = [
                value for value in (spot.values() if isinstance(spot, dict) else spot) if isinstance(value, dict | list)
            ]
            if not inner:
                break
            spot = draw(st.sampled_from(inner))
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if keys and draw(st.booleans()) and draw(st.booleans()):
            del spot[draw(st.sampled_from(keys))]
        elif keys and draw(st.integers(0, 4)):
            spot[draw(st.sampled_from(keys))] = draw(JSON)
        elif isinstance(spot, dict):
            spot[draw(st.text(max_size=6))] = draw(JSON)
        else:
            spot.append(draw(JSON))
    return document

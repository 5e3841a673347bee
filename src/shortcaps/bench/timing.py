"""Timing on a machine that is never quite quiet: rounds in which everything is measured in turn, and medians over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

import torch

from shortcaps.bench.cases import Step

Name = TypeVar("Name")

# Whatever takes longer than this, in seconds, is measured only three times, ...
_SLOW = 3.0
# ... and whatever takes less than this is repeated in every round until it has taken as long: training repeats a step too,
# and a step that follows another network's finds none of its data in the caches.
TURN = 0.4


def time_interleaved(
    steps: Mapping[Name, Step],
    rounds: int,
    device: str,
    progress: Callable[[Name, int], None] = lambda name, turn: None,
) -> dict[Name, list[float]]:
    """Time steps in rounds, each of which runs all of them, so that a slow moment of the machine affects them all.

    Args:
        steps: What to time, by name.
        rounds: Number of rounds; one more before the first is not counted.
        device: What to wait for at the end of a step.
        progress: Called with the name and the round.

    Returns:
        For each name, seconds per step in every round.
    """
    found: dict[Name, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            if turn > 3 and min(found[name]) > _SLOW:
                continue
            progress(name, turn)
            seconds = _seconds(step, 1, device)
            repeats = int(TURN / max(seconds, 1e-6))
            if repeats > 1:
                seconds = _seconds(step, min(repeats, 100), device)
            if turn:
                found[name].append(seconds)
    return found


def _seconds(step: Step, repeats: int, device: str) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait_for(device)
    return (time.perf_counter() - started) / repeats


def _wait_for(device: str) -> None:
    """Wait until an accelerator has finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()


def milliseconds(times: list[float]) -> float:
    """The median of times in seconds, in milliseconds."""
    return 1000 * median(times)


def matrix_product(device: str, size: int = 1536) -> tuple[Step, float]:
    """A product of two square matrices, the fastest arithmetic there is, and the number of multiply–adds it takes."""
    a, b = torch.randn(2, size, size, device=device)
    return lambda: a @ b, float(size) ** 3

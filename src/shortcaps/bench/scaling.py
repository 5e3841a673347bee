"""How time and memory grow: one quantity at a time, on each path, with the exponent of the power law that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shortcaps.bench.cases import Case
from shortcaps.bench.memory import measure_memory
from shortcaps.bench.timing import milliseconds, time_interleaved

QUANTITIES: dict[str, tuple[int, ...]] = {
    "classes": (5, 10, 20, 40, 80),
    "channels": (8, 16, 32, 64),
    "image_size": (28, 40, 56, 80),
    "iterations": (1, 2, 3, 4, 6),
}


@dataclass(frozen=True)
class Scaling:
    """How time and memory grow with one quantity, on one path.

    Attributes:
        quantity: What was changed.
        path: How votes are computed.
        case: What it was changed in.
        values: What it was set to.
        votes: For each value, the numbers a voting tensor of the batch would hold.
        step_ms: For each value, a training step.
        memory: For each value, peak memory in bytes; None where it could not be measured.
    """

    quantity: str
    path: str
    case: Case
    values: tuple[int, ...]
    votes: tuple[int, ...]
    step_ms: tuple[float, ...]
    memory: tuple[int | None, ...]

    @property
    def time_exponent(self) -> float:
        """Of the power law that fits the times best."""
        return exponent(self.values, self.step_ms)

    @property
    def memory_exponent(self) -> float | None:
        """Of the power law that fits the memory best."""
        return exponent(self.values, self.memory)

    @property
    def memory_exponent_by_votes(self) -> float | None:
        """How memory grows with the votes that a quantity adds; a path that builds them is near 1."""
        return exponent(self.votes, self.memory) if len(set(self.votes)) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """What JSON keeps, with the exponents."""
        return {
            **asdict(self),
            "time_exponent": self.time_exponent,
            "memory_exponent": self.memory_exponent,
            "memory_exponent_by_votes": self.memory_exponent_by_votes,
        }


def exponent(x: Sequence[float], y: Sequence[float | None]) -> float:
    """Least squares for `ln y = a + exponent · ln x`."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if b]
    if len(points) < 2:
        return math.nan
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((a - mean_x) ** 2 for a, _ in points)
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / spread if spread else math.nan


def _with(base: Case, path: str, quantity: str, value: int) -> Case:
    changes: dict[str, Any] = {quantity: value}
    return replace(base, path=path, **changes)


def measure_scaling(
    base: Case,
    quantities: Sequence[str],
    paths: Sequence[str],
    *,
    rounds: int = 5,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda message: None,
) -> list[Scaling]:
    """How time and memory grow, one quantity at a time.

    Args:
        base: What is changed.
        quantities: Names out of `QUANTITIES`.
        paths: Out of `BENCH_PATHS`.
        rounds: In each of them everything takes its turn.
        device: Where.
        progress: Called with what is being done.
    """
    found = []
    for quantity in quantities:
        values = QUANTITIES[quantity]
        cases = {(path, value): _with(base, path, quantity, value) for path in paths for value in values}
        memory = {}
        for key, case in cases.items():
            progress(f"memory with {quantity} {key[1]}, {key[0]}")
            memory[key] = measure_memory(case, device)
        times = time_interleaved(
            {key: case.training_step(device) for key, case in cases.items()},
            rounds,
            device,
            lambda key, turn, quantity=quantity: progress(f"time with {quantity} {key[1]}, {key[0]}, round {turn}"),  # type: ignore[misc]
        )
        for path in paths:
            keys = [(path, value) for value in values]
            votes = tuple(base.batch * cases[key].model().summary().votes for key in keys)
            step_ms = tuple(milliseconds(times[key]) for key in keys)
            found.append(Scaling(quantity, path, base, values, votes, step_ms, tuple(memory[key] for key in keys)))
    return found

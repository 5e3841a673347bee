"""How time and memory grow: one quantity at a time, on each path, with the exponent of the fitted power law."""

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
        quantity: What was varied.
        path: How votes are computed.
        case: The case in which it was varied.
        values: The values it took.
        votes: For each value, the numbers in the voting tensor of a batch.
        step_ms: For each value, a training step in milliseconds.
        memory: For each value, peak memory in bytes; None if it could not be measured.
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
        """Exponent of the power law fitted to the times."""
        return exponent(self.values, self.step_ms)

    @property
    def memory_exponent(self) -> float | None:
        """Exponent of the power law fitted to the memory."""
        return exponent(self.values, self.memory)

    @property
    def memory_exponent_by_votes(self) -> float | None:
        """Exponent of memory as a function of the number of votes; near 1 for a path that builds them."""
        return exponent(self.votes, self.memory) if len(set(self.votes)) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the exponents, for JSON."""
        return {
            **asdict(self),
            "time_exponent": self.time_exponent,
            "memory_exponent": self.memory_exponent,
            "memory_exponent_by_votes": self.memory_exponent_by_votes,
        }


def exponent(x: Sequence[float], y: Sequence[float | None]) -> float:
    """The exponent of the power law through the points, by least squares for `ln y = a + exponent · ln x`; nan for fewer than two."""
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
    """Measure how time and memory grow, one quantity at a time.

    Args:
        base: The case to vary.
        quantities: Names from `QUANTITIES`.
        paths: Names from `BENCH_PATHS`.
        rounds: Number of rounds; everything is measured in each.
        device: Where.
        progress: Called with a description of what is being measured.

    Returns:
        One for each quantity and path.
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

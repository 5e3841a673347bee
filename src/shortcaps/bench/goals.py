"""The speed goals of this library: the cases to measure, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shortcaps.bench.cases import Case
from shortcaps.bench.run import Report
from shortcaps.routing import ROUTINGS

_STEP_GOAL = 2.5
_EM_STEP_GOAL = 3.0
_EXPANDED_STEP_GOAL = 3.0
_DENSE_GOAL = 10.0
_LATENCY_GOAL = 2.0
# The dense votes of the expanded sequential network fill the machine at larger batches.
_SMALL_BATCH = 16


def goal_cases() -> list[Case]:
    """The cases that the goals are about."""
    cases = [Case(network, True, routing) for network in ("baseline", "expanded") for routing in ROUTINGS]
    cases += [Case("baseline", False, routing, path) for routing in ROUTINGS for path in ("dense", "fused")]
    cases += [Case("expanded", False, "fuzzy", path, _SMALL_BATCH) for path in ("dense", "fused")]
    return cases


@dataclass(frozen=True)
class Verdict:
    """Whether one goal was reached.

    Attributes:
        what: What was measured, and its unit.
        goal: The bound.
        found: The measured value.
        at_most: Whether the goal is an upper bound.
    """

    what: str
    goal: float
    found: float
    at_most: bool

    @property
    def reached(self) -> bool:
        """Whether the measured value is within the bound."""
        return self.found <= self.goal if self.at_most else self.found >= self.goal

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        miss = "" if self.reached else f", missed by {abs(self.found / self.goal - 1):.0%}"
        return f"{self.what}: {self.found:.2f} (goal {sign} {self.goal:g}{miss})"


def verdicts(report: Report) -> Iterator[Verdict]:
    """The verdict on each goal, from a report on `goal_cases`."""
    for routing in ROUTINGS:
        ratio = report.result(Case("baseline", True, routing)).step_over_backbone
        assert ratio is not None, "a case that is not a backbone has one"
        goal = _EM_STEP_GOAL if routing == "em" else _STEP_GOAL
        yield Verdict(f"baseline shortcut {routing}, step ÷ backbone", goal, ratio, at_most=True)
    for routing in ROUTINGS:
        ratio = report.result(Case("expanded", True, routing)).step_over_backbone
        assert ratio is not None, "a case that is not a backbone has one"
        yield Verdict(f"expanded shortcut {routing}, step ÷ backbone", _EXPANDED_STEP_GOAL, ratio, at_most=True)
    for routing in ROUTINGS:
        ratio = report.result(Case("baseline", False, routing)).dense_over_step
        assert ratio is not None, "its dense reference is among the goal cases"
        yield Verdict(f"baseline sequential {routing}, step, dense ÷ fused", _DENSE_GOAL, ratio, at_most=False)
    memory = report.result(Case("expanded", False, "fuzzy", "fused", _SMALL_BATCH)).dense_over_memory
    if memory is not None:
        yield Verdict("expanded sequential fuzzy, memory, dense ÷ fused", _DENSE_GOAL, memory, at_most=False)
    for name, time in report.latency_ms.items():
        if name.startswith("baseline shortcut"):
            yield Verdict(f"one image, {name}, ms", _LATENCY_GOAL, time, at_most=True)

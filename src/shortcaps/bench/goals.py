"""What this library wants of its speed, as cases to measure and as sentences about what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shortcaps.bench.cases import Case
from shortcaps.bench.run import Report
from shortcaps.routing import ROUTINGS

STEP_GOAL = 2.5
EM_STEP_GOAL = 3.0
EXPANDED_STEP_GOAL = 3.0
DENSE_GOAL = 10.0
LATENCY_GOAL = 2.0
# The dense votes of the expanded sequential network fill the machine at larger batches.
SMALL_BATCH = 16


def goal_cases() -> list[Case]:
    cases = [Case(network, True, routing) for network in ("baseline", "expanded") for routing in ROUTINGS]
    cases += [Case("baseline", False, routing, path) for routing in ROUTINGS for path in ("dense", "fused")]
    cases += [Case("expanded", False, "fuzzy", path, SMALL_BATCH) for path in ("dense", "fused")]
    return cases


@dataclass(frozen=True)
class Verdict:
    what: str
    goal: float
    found: float
    at_most: bool

    @property
    def reached(self) -> bool:
        return self.found <= self.goal if self.at_most else self.found >= self.goal

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        miss = "" if self.reached else f", missed by {abs(self.found / self.goal - 1):.0%}"
        return f"{self.what}: {self.found:.2f} (goal {sign} {self.goal:g}{miss})"


def verdicts(report: Report) -> Iterator[Verdict]:
    """What a run of the goal cases says about the goals."""
    for routing in ROUTINGS:
        ratio = report.result(Case("baseline", True, routing)).step_over_backbone
        assert ratio is not None, "a case that is not a backbone has one"
        goal = EM_STEP_GOAL if routing == "em" else STEP_GOAL
        yield Verdict(f"baseline shortcut {routing}, step ÷ backbone", goal, ratio, at_most=True)
    for routing in ROUTINGS:
        ratio = report.result(Case("expanded", True, routing)).step_over_backbone
        assert ratio is not None, "a case that is not a backbone has one"
        yield Verdict(f"expanded shortcut {routing}, step ÷ backbone", EXPANDED_STEP_GOAL, ratio, at_most=True)
    for routing in ROUTINGS:
        ratio = report.result(Case("baseline", False, routing)).dense_over_step
        assert ratio is not None, "its dense reference is among the goal cases"
        yield Verdict(f"baseline sequential {routing}, step, dense ÷ fused", DENSE_GOAL, ratio, at_most=False)
    memory = report.result(Case("expanded", False, "fuzzy", "fused", SMALL_BATCH)).dense_over_memory
    if memory is not None:
        yield Verdict("expanded sequential fuzzy, memory, dense ÷ fused", DENSE_GOAL, memory, at_most=False)
    for name, time in report.latency_ms.items():
        if name.startswith("baseline shortcut"):
            yield Verdict(f"one image, {name}, ms", LATENCY_GOAL, time, at_most=True)

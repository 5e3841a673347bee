"""What happened, counted, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds."""


class Metrics:
    """Counters of a server. `gauges` are asked for their value when somebody looks."""

    def __init__(self) -> None:
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._requests: Counter[int] = Counter()
        self._refusals: Counter[str] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refusals[reason] += 1

    def answered(self, status: int, seconds: float | None = None) -> None:
        """Count an answer, and how long a prediction took if it was one."""
        self._requests[status] += 1
        if seconds is not None:
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def render(self) -> str:
        """Everything counted so far, in the text format of Prometheus."""
        lines = ["# HELP shortcaps_requests_total Answers by status.", "# TYPE shortcaps_requests_total counter"]
        lines += [f'shortcaps_requests_total{{status="{code}"}} {n}' for code, n in sorted(self._requests.items())]
        lines += ["# HELP shortcaps_refusals_total What was not answered, by reason."]
        lines += ["# TYPE shortcaps_refusals_total counter"]
        lines += [f'shortcaps_refusals_total{{reason="{why}"}} {n}' for why, n in sorted(self._refusals.items())]
        lines += ["# HELP shortcaps_predict_seconds From the head of a prediction's request to that of its answer."]
        lines += ["# TYPE shortcaps_predict_seconds histogram"]
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            lines += [f'shortcaps_predict_seconds_bucket{{le="{bound}"}} {total}']
        lines += [f"shortcaps_predict_seconds_sum {self._seconds}", f"shortcaps_predict_seconds_count {total}"]
        for name, (help_text, value) in self.gauges.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value()}"]
        return "\n".join(lines) + "\n"

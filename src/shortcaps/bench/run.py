"""The benchmark: cases beside their backbone and their dense reference, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from shortcaps.bench.cases import BACKBONE, Case
from shortcaps.bench.memory import measure_memory
from shortcaps.bench.timing import matrix_product, milliseconds, time_interleaved
from shortcaps.environment import describe_environment

_MATRIX_PRODUCT = "matrix product"


@dataclass(frozen=True)
class Result:
    """The measurements of one case; None for what was not requested or could not be measured.

    Attributes:
        case: What was measured.
        step_ms: A training step, the median in milliseconds.
        inference_ms: A forward pass, likewise.
        multiply_adds: Of a forward pass for one image; None for the backbone.
        memory: Peak of a training step, in bytes.
        step_over_backbone: Ratio of its step to its backbone's.
        dense_over_step: Ratio of the dense reference's step to its own.
        dense_over_memory: Ratio of the dense reference's memory to its own.
    """

    case: Case
    step_ms: float
    inference_ms: float
    multiply_adds: int | None
    memory: int | None = None
    step_over_backbone: float | None = None
    dense_over_step: float | None = None
    dense_over_memory: float | None = None

    def images_per_second(self, milliseconds: float) -> float:
        """Images per second if a batch takes this many milliseconds."""
        return 1000 * self.case.batch / milliseconds


@dataclass(frozen=True)
class Report:
    """The results of one benchmark.

    Attributes:
        machine: Versions, commit, processor.
        device: The device that was measured.
        rounds: Number of rounds that the medians are over.
        peak_multiply_adds: Multiply–adds per second of a large matrix product, measured in the same rounds.
        results: One for each case.
        latency_ms: Inference of one image, by name of the network.
    """

    machine: dict[str, str]
    device: str
    rounds: int
    peak_multiply_adds: float
    results: list[Result]
    latency_ms: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def result(self, case: Case) -> Result:
        """The result of a case."""
        return next(result for result in self.results if result.case == case)


def run_benchmark(
    cases: Iterable[Case],
    *,
    rounds: int = 7,
    device: str = "cpu",
    memory: bool = True,
    latency: bool = True,
    progress: Callable[[str], None] = lambda message: None,
) -> Report:
    """Measure cases along with their backbones and, for ratios, their dense references.

    Args:
        cases: What to measure; the dense references must be among them.
        rounds: Number of rounds; every case is measured in each.
        device: Where.
        memory: Whether to measure peak memory as well, in a separate process for each case.
        latency: Whether to measure one image at a time as well.
        progress: Called with a description of what is being measured.
    """
    wanted = list(dict.fromkeys(cases))
    backbones = dict.fromkeys(replace(case, path=BACKBONE, routing="fuzzy") for case in wanted)
    # Memory first: each case has a process of its own, and nothing else runs beside it.
    held: dict[Case, int | None] = {}
    for case in wanted if memory else ():
        progress(f"memory of {case}")
        held[case] = measure_memory(case, device)
    every = [*backbones, *wanted]
    progress("preparing")
    product, multiply_adds = matrix_product(device)
    steps: dict[Case | str, Any] = {case: case.training_step(device) for case in every}
    steps[_MATRIX_PRODUCT] = product
    step_times = time_interleaved(
        steps, rounds, device, lambda name, turn: progress(f"training step, round {turn} of {rounds}: {name}")
    )
    peak = multiply_adds / min(step_times[_MATRIX_PRODUCT])
    del steps
    inference_times = time_interleaved(
        {case: case.inference(device) for case in every},
        rounds,
        device,
        lambda name, turn: progress(f"inference, round {turn} of {rounds}: {name}"),
    )
    step_ms = {case: milliseconds(step_times[case]) for case in every}
    results = []
    for case in every:
        dense = replace(case, path="dense")
        backbone = replace(case, path=BACKBONE, routing="fuzzy")
        own, reference = held.get(case), held.get(dense)
        results.append(
            Result(
                case,
                step_ms[case],
                milliseconds(inference_times[case]),
                None if case.path == BACKBONE else case.model().summary().multiply_adds,
                own,
                None if case == backbone else step_ms[case] / step_ms[backbone],
                step_ms[dense] / step_ms[case] if dense in step_ms and case != dense else None,
                reference / own if reference and own and case != dense else None,
            )
        )
    alone = _latency(wanted, device, progress) if latency else {}
    return Report(describe_environment(device), device, rounds, peak, results, alone)


def _latency(cases: list[Case], device: str, progress: Callable[[str], None]) -> dict[str, float]:
    """Milliseconds for one image at a time, for every network on its native or factored path."""
    progress("one image at a time")
    fastest = {}
    for case in cases:
        if case.path in ("fused", "factored"):
            name = f"{case.network} {case.family} {case.routing}, {case.path}"
            fastest[name] = replace(case, batch=1).inference(device)
    times = time_interleaved(fastest, 7, device)
    return {name: milliseconds(found) for name, found in times.items()}

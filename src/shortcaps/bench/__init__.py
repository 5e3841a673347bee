"""Benchmarks: time and memory of paths, routings and networks, side by side on this machine."""

from shortcaps.bench.cases import BACKBONE, BENCH_PATHS, Case
from shortcaps.bench.run import Report, Result, run_benchmark
from shortcaps.bench.scaling import QUANTITIES, Scaling, measure_scaling

__all__ = [
    "BACKBONE",
    "BENCH_PATHS",
    "QUANTITIES",
    "Case",
    "Report",
    "Result",
    "Scaling",
    "measure_scaling",
    "run_benchmark",
]

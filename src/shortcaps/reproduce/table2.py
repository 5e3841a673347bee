"""Table 2 on this machine: parameters, time and memory of the sixteen networks, beside the published ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from shortcaps.bench import BACKBONE, Case, Report, run_benchmark
from shortcaps.bench.memory import measure_memory
from shortcaps.reporting.tables import Grid, write_report
from shortcaps.reproduce import published

TITLE = "Table 2: parameters, time and memory, the paper's and ours"
Key = tuple[str, str, str]
# How much two measurements of one ratio were seen to differ (results/LOG.md): two networks that differ less count as equal.
MEMORY_TOLERANCE = 0.01
TIME_TOLERANCE = 0.10


@dataclass(frozen=True)
class Measured:
    """The measurements of one network; None for what could not be measured.

    Attributes:
        network: `baseline` or `expanded`.
        family: `shortcut` or `sequential`.
        routing: Name of the routing.
        parameters: Number of parameters.
        step_ms: A training step, in milliseconds per batch.
        inference_ms: A forward pass, in milliseconds per batch.
        step_memory: Peak of a training step, in bytes above what Python and PyTorch hold before there is a network.
        inference_memory: Peak of a forward pass, likewise.
    """

    network: str
    family: str
    routing: str
    parameters: int
    step_ms: float
    inference_ms: float
    step_memory: int | None
    inference_memory: int | None

    @property
    def key(self) -> Key:
        """Network, family and routing."""
        return self.network, self.family, self.routing


@dataclass(frozen=True)
class Table2:
    """All measurements.

    Attributes:
        device: The device that was measured.
        batch: Images in a batch.
        path: How votes are computed.
        rounds: Number of rounds that the medians are over.
        machine: Versions, commit, processor.
        networks: The measurements.
    """

    device: str
    batch: int
    path: str
    rounds: int
    machine: dict[str, str]
    networks: list[Measured]

    def __getitem__(self, key: Key) -> Measured:
        return next(measured for measured in self.networks if measured.key == key)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure_table2(
    *,
    batch: int = 128,
    path: str = "auto",
    rounds: int = 5,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda message: None,
) -> Table2:
    """Measure the sixteen networks.

    Args:
        batch: Images in a batch.
        path: How votes are computed.
        rounds: Number of rounds; every network is measured in each.
        device: Where.
        progress: Called with a description of what is being measured.
    """
    cases = [
        Case(network, family == "shortcut", routing, path, batch)
        for network in published.NETWORKS
        for family in published.FAMILIES
        for routing in published.ROUTINGS
    ]
    report: Report = run_benchmark(cases, rounds=rounds, device=device, latency=False, progress=progress)
    measured = []
    for result in report.results:
        case = result.case
        if case.path == BACKBONE:
            continue
        progress(f"memory of inference of {case}")
        measured.append(
            Measured(
                case.network,
                case.family,
                case.routing,
                sum(parameter.numel() for parameter in case.model().parameters()),
                result.step_ms,
                result.inference_ms,
                result.memory,
                measure_memory(case, device, training=False),
            )
        )
    return Table2(device, batch, path, rounds, report.machine, measured)


def ratio_grid(table: Table2, network: str, family: str) -> Grid:
    """What is measured in rows; for each routing the paper's ratio to EM, ours, and our figure itself."""
    header = [""]
    for routing in published.ROUTINGS:
        header += [f"{routing}, paper", f"{routing}, ours"]

    def row(name: str, paper: dict[Key, float], figure: Callable[[Measured], float | None], unit: str) -> list[str]:
        em = (network, family, "em")
        cells = [name]
        for routing in published.ROUTINGS:
            key = network, family, routing
            own, reference = figure(table[key]), figure(table[em])
            cells.append(f"{paper[key] / paper[em]:.2f}" if paper else "")
            ratio = f"{own / reference:.2f} " if own is not None and reference else ""
            cells.append("" if own is None else f"{ratio}({own:,.4g} {unit})")
        return cells

    return [
        header,
        ["parameters"]
        + [
            text
            for routing in published.ROUTINGS
            for text in (published.PARAMETERS[network, family], f"{table[network, family, routing].parameters:,}")
        ],
        row("training step, EM = 1", published.TIME_MS, lambda m: m.step_ms, "ms"),
        row("inference, EM = 1", {}, lambda m: m.inference_ms, "ms"),
        row("memory of a training step, EM = 1", published.MEMORY_MB, lambda m: _mega(m.step_memory), "MB"),
        row("memory of inference, EM = 1", {}, lambda m: _mega(m.inference_memory), "MB"),
    ]


def _mega(size: int | None) -> float | None:
    return None if size is None else size / 1e6


def sentences(table: Table2) -> list[str]:
    """Which of the paper's claims hold here, computed from the data."""
    said = []
    for network in published.NETWORKS:
        ours = {
            r: table[network, "sequential", r].step_ms / table[network, "shortcut", r].step_ms
            for r in published.ROUTINGS
        }
        paper = {
            r: published.TIME_MS[network, "sequential", r] / published.TIME_MS[network, "shortcut", r]
            for r in published.ROUTINGS
        }
        faster = sum(ratio > 1 + TIME_TOLERANCE for ratio in ours.values())
        verdict = (
            "holds" if faster == len(ours) else "does not hold" if not faster else f"holds for {faster} of {len(ours)}"
        )
        said.append(
            f"“Shortcut is faster than no shortcut”, {network} network: {verdict}; a training step is {_span(ours)} times as "
            f"fast with shortcuts (the paper's figures: {_span(paper)})."
        )
    counts = {
        (network, family): max(table[network, family, routing].parameters for routing in published.ROUTINGS)
        for network in published.NETWORKS
        for family in published.FAMILIES
    }
    small, large = counts["expanded", "shortcut"], counts["baseline", "sequential"]
    said.append(
        f"“The expanded network with shortcuts has fewer parameters than the baseline without” "
        f"{'holds' if small < large else 'does not hold'}: at most {small:,} against {large:,}."
    )
    for quantity, tolerance, figure in (
        ("lighter", MEMORY_TOLERANCE, lambda m: m.step_memory),
        ("faster", TIME_TOLERANCE, lambda m: m.step_ms),
    ):
        for routing in ("attention", "fuzzy"):
            ratios = {
                f"{network} {family}": own / reference
                for network in published.NETWORKS
                for family in published.FAMILIES
                if (own := figure(table[network, family, routing]))
                and (reference := figure(table[network, family, "em"]))
            }
            if not ratios:
                said.append(f"“{routing.capitalize()} is {quantity} than EM” could not be measured here.")
                continue
            below = [name for name, ratio in ratios.items() if ratio < 1 - tolerance]
            alike = [name for name, ratio in ratios.items() if abs(ratio - 1) <= tolerance]
            verdict = (
                f"holds in all {len(ratios)} networks that were measured"
                if len(below) == len(ratios)
                else "holds in none"
                if not below
                else f"holds in {', '.join(below)} only"
            ) + (f" ({', '.join(alike)}: alike within {tolerance:.0%})" if alike else "")
            said.append(
                f"“{routing.capitalize()} is {quantity} than EM” {verdict}: {_span(ratios)} of EM's "
                f"{'memory' if quantity == 'lighter' else 'time'} in a training step, median {median(ratios.values()):.2f}."
            )
    return said


def _span(ratios: dict[str, float]) -> str:
    return f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}"


def _not_measured(table: Table2) -> list[str]:
    """An empty place in the tables is explained."""
    said = []
    for what, size in (
        ("a training step", lambda network: network.step_memory),
        ("inference", lambda network: network.inference_memory),
    ):
        missing = [" ".join(network.key) for network in table.networks if size(network) is None]
        if missing:
            which = "any network" if len(missing) == len(table.networks) else ", ".join(missing)
            said.append(f"The memory of {what} could not be measured here for {which}.")
    return said


def write_table2(table: Table2, folder: Path) -> tuple[Path, Path]:
    """Write table2.md and table2.html.

    Returns:
        Both files.
    """
    return write_report(
        folder,
        "table2",
        title=TITLE,
        command="shortcaps reproduce table2",
        notes=[
            "The paper measured training on 28x28 images on a TITAN V and does not say of how many; ours are medians on "
            f"{table.device} ({table.machine['processor'] if table.device == 'cpu' else table.machine['device']}, {table.machine['threads']} threads, "
            f"torch {table.machine['torch']}, commit {table.machine['commit']}), "
            f"batch {table.batch}, path {table.path}. Hardware differs, so only ratios can be compared.",
            "Ours is the memory that a step needs above what Python and PyTorch hold before there is a network. The paper does not say what its figure takes in; that "
            "it hardly differs between networks suggests a whole process.",
            *_not_measured(table),
        ],
        sentences=sentences(table),
        parts=[
            (f"{network}, {family}", ratio_grid(table, network, family))
            for network in published.NETWORKS
            for family in published.FAMILIES
        ],
    )

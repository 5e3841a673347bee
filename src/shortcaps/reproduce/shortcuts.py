"""The paper's central claim: that shortcuts cost no accuracy and save time and memory; what the records say of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shortcaps.data import DATASETS
from shortcaps.errors import RunError
from shortcaps.files import read_json
from shortcaps.reporting.paired import seeds_in_words
from shortcaps.reproduce import published
from shortcaps.reproduce.cells import Cell, columns
from shortcaps.reproduce.pairs import Pair, pair_runs
from shortcaps.reproduce.records import Record


def shortcut_sentences(records: Sequence[Record], folder: Path, table2: Path) -> Iterator[str]:
    """With and without shortcut: accuracy, paired; then time and memory of a training step.

    Args:
        records: Of Table 1.
        folder: Where their stored answers lie.
        table2: The file of Table 2's measurements; where there is none, nothing is said of time and memory.
    """
    for network in published.NETWORKS:
        for dataset in columns():
            pairs = {
                routing: pair
                for routing in published.ROUTINGS
                if (pair := _pair(records, folder, network, routing, dataset)) is not None
            }
            if pairs:
                yield _accuracy(network, dataset, pairs)
    if table2.is_file():
        try:
            yield from _costs(read_json(table2))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise RunError(f"{table2} is not a measurement of Table 2, or is damaged: move it away") from error


def _pair(records: Sequence[Record], folder: Path, network: str, routing: str, dataset: str) -> Pair | None:
    """Runs with shortcut against runs without, none of them cut short."""
    with_shortcut, without = (
        [record for record in records if record.cell == Cell(network, family, routing, dataset) and not record.trial]
        for family in ("shortcut", "sequential")
    )
    return pair_runs(with_shortcut, without, folder)


def _accuracy(network: str, dataset: str, pairs: dict[str, Pair]) -> str:
    costs = [routing for routing, pair in pairs.items() if pair.result.verdict == "behind"]
    gains = [routing for routing, pair in pairs.items() if pair.result.verdict == "ahead"]
    answer = f"costs accuracy with {', '.join(costs)}" if costs else "costs no accuracy that the test could show"
    answer += f", and gains some with {', '.join(gains)}" if gains else ""
    parts = []
    for routing, pair in pairs.items():
        low, high = (100 * bound for bound in pair.result.interval)
        seeds = seeds_in_words(pair.seeds)
        parts.append(
            f"{routing} {pair.accuracy:.2%} with and {pair.other_accuracy:.2%} without, {100 * pair.result.difference:+.2f} points "
            f"({low:+.2f} to {high:+.2f}, {seeds})"
        )
    return f"On {DATASETS[dataset].label} the shortcut of the {network} network {answer}: {'; '.join(parts)}."


def _costs(table2: dict[str, Any]) -> Iterator[str]:
    measured = {(row["network"], row["family"], row["routing"]): row for row in table2["networks"]}
    for network in published.NETWORKS:
        both = [
            (measured[network, "sequential", routing], measured[network, "shortcut", routing])
            for routing in published.ROUTINGS
            if (network, "sequential", routing) in measured and (network, "shortcut", routing) in measured
        ]
        faster = [without["step_ms"] / with_["step_ms"] for without, with_ in both]
        lighter = [
            without["step_memory"] / with_["step_memory"]
            for without, with_ in both
            if without["step_memory"] and with_["step_memory"]
        ]
        if faster and lighter:
            yield (
                f"With the shortcut a training step of the {network} network is {min(faster):.1f} to {max(faster):.1f} times as fast and needs "
                f"{min(lighter):.1f} to {max(lighter):.1f} times less memory, over the routings (Table 2, measured on this project's machine)."
            )

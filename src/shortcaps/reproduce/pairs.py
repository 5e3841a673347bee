"""Two networks of a table, run by run on the same test images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shortcaps.errors import RunError
from shortcaps.reporting.answers import read_alike
from shortcaps.reporting.paired import Answers, PairedDifference, paired_difference
from shortcaps.reproduce.records import REFITTED, Record, worth


@dataclass(frozen=True)
class Pair:
    """The runs of two networks that can be compared.

    Attributes:
        accuracy: Of the first, mean over seeds, as a fraction.
        other_accuracy: Of the second.
        result: The paired difference.
        seeds: How many runs of each.
        refitted: Whether they were trained on the validation images as well.
    """

    accuracy: float
    other_accuracy: float
    result: PairedDifference
    seeds: int
    refitted: bool


def paired_notes(records: Iterable[Record]) -> list[str]:
    """What a reader must know of paired differences between these records, and of the images behind them."""
    records = list(records)
    refitted = f"{REFITTED} (where a command says --refit): validation images were trained on as well, by settings chosen before, and the last weights kept."
    return [
        "Differences are paired on the same test images; where several show one digit or object, that is the unit; the seeds count too.",
        *([refitted] if any(record.refitted for record in records) else []),
        *dict.fromkeys(note for record in records for note in record.dataset.notes),
    ]


def pair_runs(first: Iterable[Record], second: Iterable[Record], folder: Path) -> Pair | None:
    """Compare runs of the same seed under the same conditions: data, protocol, precision, and the recipe but for what it has by network.

    The runs of each network differ in nothing but their seed; where there are several such groups, the best is taken (`worth`).

    Args:
        first: Runs of one network.
        second: Runs of the other.
        folder: Where their stored answers lie.

    Returns:
        None where there are no such runs, or where some have no stored answers (those of 0.1).

    Raises:
        RunError: Stored answers are damaged, or are to other images.
    """
    others = {(record.values["seed"], record.conditions): record for record in second}
    groups: dict[tuple[object, ...], list[tuple[Record, Record]]] = {}
    for record in first:
        other = others.get((record.values["seed"], record.conditions))
        if other is not None:
            groups.setdefault((record.repetition, other.repetition), []).append((record, other))
    pairs = max(groups.values(), key=lambda group: worth([record for record, _ in group]), default=[])
    files = [[folder / record.answers_name for record in runs] for runs in zip(*pairs, strict=True)]
    if not pairs or not all(file.is_file() for runs in files for file in runs):
        return None
    answers = read_alike([*files[0], *files[1]])
    ours, theirs = answers[: len(pairs)], answers[len(pairs) :]
    _check_images([record for pair in pairs for record in pair])
    originals = ours[0].originals
    left, right = (Answers.of([found.right for found in answers], originals) for answers in (ours, theirs))
    result = paired_difference(left, right)
    return Pair(float(left.accuracies.mean()), float(right.accuracies.mean()), result, len(pairs), pairs[0][0].refitted)


def _check_images(records: Iterable[Record]) -> None:
    """Raise RunError where the fingerprints of the test images differ; older records have none."""
    known: dict[str, Record] = {}
    for record in records:
        if (fingerprint := record.values.get("test_fingerprint")) is not None:
            known.setdefault(fingerprint, record)
    if len(known) > 1:
        names = " and ".join(record.file_name for record in known.values())
        raise RunError(f"{names} were tested on different images of the same name: run both on the same data")

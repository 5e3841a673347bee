"""Two networks of a table, run by run on the same test images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from shortcaps.errors import RunError
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.reporting.paired import Answers, PairedDifference, paired_difference
from shortcaps.reproduce.records import Record


@dataclass(frozen=True)
class Pair:
    """The runs of two networks that can be compared.

    Attributes:
        accuracy: Of the first, mean over seeds, as a fraction.
        other_accuracy: Of the second.
        result: The paired difference.
        seeds: How many runs of each.
    """

    accuracy: float
    other_accuracy: float
    result: PairedDifference
    seeds: int


def paired_notes(records: Iterable[Record]) -> list[str]:
    """What a reader must know of paired differences between these records, and of the images behind them."""
    return [
        "Differences are paired on the same test images; where several show one digit or object, that is the unit; the seeds count too.",
        *dict.fromkeys(note for record in records for note in record.dataset.notes),
    ]


def pair_runs(first: Iterable[Record], second: Iterable[Record], folder: Path) -> Pair | None:
    """Compare runs of the same seed under the same conditions: data, protocol, precision, and the recipe but for what it has by network.

    Args:
        first: Runs of one network.
        second: Runs of the other.
        folder: Where their stored answers lie.

    Returns:
        None where there are no such runs, or where some have no stored answers (those of 0.1).

    Raises:
        RunError: Stored answers are damaged, or are to other images.
    """
    others = {record.values["seed"]: record for record in second}
    pairs = [
        (record, other)
        for record in first
        if (other := others.get(record.values["seed"])) is not None and record.conditions == other.conditions
    ]
    files = [[folder / record.answers_name for record in runs] for runs in zip(*pairs, strict=True)]
    if not pairs or not all(file.is_file() for runs in files for file in runs):
        return None
    ours, theirs = ([StoredAnswers.read(file) for file in runs] for runs in files)
    for answers, runs in ((ours, files[0]), (theirs, files[1])):
        for found, file in zip(answers, runs, strict=True):
            if not torch.equal(found.labels, ours[0].labels):
                raise RunError(
                    f"{file} does not hold answers to the images of {files[0][0]}: run both on the same data"
                )
    originals = ours[0].originals
    left, right = (Answers.of([found.right for found in answers], originals) for answers in (ours, theirs))
    result = paired_difference(left, right)
    return Pair(float(left.accuracies.mean()), float(right.accuracies.mean()), result, len(pairs))

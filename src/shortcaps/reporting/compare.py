"""Two networks by their finished runs: which is better on the test images that both answered, how certain that is, and what else differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shortcaps.errors import RunError
from shortcaps.files import read_json
from shortcaps.reporting.answers import read_alike
from shortcaps.reporting.paired import Answers, PairedDifference, paired_difference
from shortcaps.runs.directory import RunDirectory, read_manifest, runs_by_name
from shortcaps.settings import flattened

_OF_A_RUN_ALONE = ("run.seed", "run.devices", "run.keep_epochs")
"""Settings in which runs may differ without having been trained otherwise."""


@dataclass(frozen=True)
class Comparison:
    """The runs of one network beside those of another.

    Attributes:
        test: What both were tested on.
        images: How many test images there are.
        clusters: How many of them are independent: digits or objects, where several images show the same one.
        accuracies: Of the first network, for each run, as fractions.
        other_accuracies: Of the second.
        result: The first minus the second.
        only_first: Images that only the first has right, the mean over all pairs of runs.
        only_second: Images that only the second has right.
        differing: Settings in which the two were trained otherwise, by dotted names, each with both values.
    """

    test: str
    images: int
    clusters: int
    accuracies: tuple[float, ...]
    other_accuracies: tuple[float, ...]
    result: PairedDifference
    only_first: float
    only_second: float
    differing: dict[str, tuple[Any, Any]]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "verdict": self.result.verdict}


def find_runs(patterns: str) -> list[Path]:
    """Run directories by their paths, or by patterns, separated by commas.

    Raises:
        RunError: One of them names no run.
    """
    found: list[Path] = []
    for pattern, runs in runs_by_name(patterns, _is_run):
        if not runs:
            raise RunError(f"{pattern} is no run: give run directories, or patterns of them in quotation marks")
        found += [run for run in runs if run not in found]
    return found


def _is_run(path: Path) -> bool:
    return (path / "config.json").is_file()


def compare_runs(first: Sequence[Path], second: Sequence[Path]) -> Comparison:
    """Compare two networks by their answers to the same test images.

    Args:
        first: Runs of one network that differ in nothing but their seed.
        second: Runs of the other.

    Raises:
        RunError: A run has not ended or has kept no answers, runs of one network were trained otherwise, or the test images differ.
    """
    settings = {run: _settings(run) for run in (*first, *second)}
    for runs in (first, second):
        by_seed: dict[int, Path] = {}
        for run in runs:
            if differing := _differing(settings[runs[0]], settings[run]):
                name, (one, other) = next(iter(differing.items()))
                raise RunError(f"{runs[0]} and {run} are no repetitions of one training: {name} is {one} and {other}")
            seed = settings[run]["run.seed"]
            if by_seed.setdefault(seed, run) is not run:
                raise RunError(f"{by_seed[seed]} and {run} have the same seed, {seed}: give one of them")
    files = [_answers_file(run) for run in (*first, *second)]
    results = [_result(run) for run in (*first, *second)]
    known: dict[str, Path] = {}
    for run, result in zip((*first, *second), results, strict=True):
        if (fingerprint := result.get("test_fingerprint")) is not None:  # older runs have none
            known.setdefault(fingerprint, run)
    if len(known) > 1:
        raise RunError(
            f"{' and '.join(map(str, known.values()))} were tested on different images, so that they cannot be compared"
        )
    answers = read_alike(files)
    ours, theirs = answers[: len(first)], answers[len(first) :]
    one, other = (Answers.of([found.right for found in side], answers[0].originals) for side in (ours, theirs))
    pairs = [(a.right, b.right) for a in ours for b in theirs]
    return Comparison(
        test=str(results[0]["test_set"]),
        images=int(one.sizes.sum()),
        clusters=len(one.sizes),
        accuracies=tuple(one.accuracies.tolist()),
        other_accuracies=tuple(other.accuracies.tolist()),
        result=paired_difference(one, other),
        only_first=sum(float((a & ~b).sum()) for a, b in pairs) / len(pairs),
        only_second=sum(float((b & ~a).sum()) for a, b in pairs) / len(pairs),
        differing=_differing(settings[first[0]], settings[second[0]]),
    )


def _result(run: Path) -> dict[str, Any]:
    file = run / "result.json"
    try:
        result = read_json(file)
        if isinstance(result, dict) and "test_set" in result:
            return result
        reason = "something is missing"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise RunError(
        f"{file} cannot be read as the result of a run ({reason}): write it anew with shortcaps train --resume {run}"
    )


def _answers_file(run: Path) -> Path:
    file = RunDirectory(run).answers_file
    if not file.is_file():
        ended = (run / "result.json").is_file()
        raise RunError(
            f"{run} has kept no answers to the test images, as runs of 0.1: train it again"
            if ended
            else f"{run} has not ended: go on with it by shortcaps train --resume {run}"
        )
    return file


def _settings(run: Path) -> dict[str, Any]:
    """What decided what a run computed, by dotted names: data, network, seed and precision as asked for, the recipe as it took effect."""
    manifest = read_manifest(run)
    asked = {section: values for section, values in manifest.train.to_dict().items() if section != "optim"}
    return dict(flattened({**asked, "recipe": asdict(manifest.recipe)}))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (one.get(name), other.get(name))
        for name in {**one, **other}
        if name not in _OF_A_RUN_ALONE and one.get(name) != other.get(name)
    }

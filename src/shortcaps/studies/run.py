"""A study from its first training to its report; a stopped one goes on where it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shortcaps.environment import describe_environment
from shortcaps.errors import RunError
from shortcaps.files import remove_leftovers, sha256_of
from shortcaps.reproduce.grid import Launch
from shortcaps.reproduce.records import completed, settings_by_network, shared_settings
from shortcaps.runs.directory import RunDirectory
from shortcaps.studies.measured import file_name, read_measurement, write_measurement
from shortcaps.studies.report import write_study
from shortcaps.studies.study import Lookup, Study
from shortcaps.studies.trained import (
    ELSEWHERE,
    Shelf,
    Trained,
    Wanted,
    find_run,
    runs_by_pattern,
    train_missing,
    wanted_runs,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """Where things are kept.

    Attributes:
        results: Measurements and reports.
        runs: The studies' own training runs; those of other commands are looked for beside it.
    """

    results: Path = Path("results/studies")
    runs: Path = Path("runs/studies")

    def quick(self) -> Places:
        """Where those of quick versions are kept, apart from the others."""
        return Places(self.results / "quick", self.runs / "quick")


@dataclass
class Outcome:
    """What became of a study.

    Attributes:
        written: The files of its report.
        failed: What went wrong, by run.
        interrupted: Whether a signal stopped it.
    """

    written: tuple[Path, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def shelf_of(places: Places, quick: bool) -> Shelf:
    """Runs that `shortcaps reproduce` has left; none are as short as those of a quick version."""
    return Shelf([] if quick else [places.runs.parent / name for name in ELSEWHERE])


def run_study(
    study: Study,
    places: Places,
    *,
    networks: Sequence[str] | None = None,
    seeds: int | None = None,
    runs: str | None = None,
    devices: int = 1,
    launch: Launch | None = None,
) -> Outcome:
    """Train what is missing, measure what was not measured, and write the report after every seed, or after several that fill the devices together.

    Args:
        study: The study.
        places: Where things are kept.
        networks: Names of the networks; the study's if None.
        seeds: How many; the study's number if None.
        runs: Patterns of run directories to measure; nothing is trained then.
        devices: How many networks are trained at the same time.
        launch: Trains a job; in a process of its own if None.
    """
    folder = places.results / study.name
    remove_leftovers(folder)
    if runs is not None:
        _measure_all(study, list(runs_by_pattern(runs, study)), folder)
        return Outcome(write_study(study, places.results))
    networks, count = networks or study.networks, seeds or study.seeds
    shelf = shelf_of(places, study.quick)
    wanted = wanted_runs(study, networks, count, places.runs)
    outcome = Outcome()
    batch: list[Wanted] = []
    for seed in range(count):
        batch += [entry for entry in wanted if entry.seed == seed and not is_measured(entry, folder)]
        missing = [entry for entry in batch if find_run(entry, shelf) is None]
        if missing and len(missing) < devices and seed + 1 < count:
            continue  # too few for all devices: they are trained with those of the next seed
        problems, outcome.interrupted = train_missing(missing, devices=devices, launch=launch)
        outcome.failed |= problems
        trained = [entry.at(run) for entry in batch if (run := find_run(entry, shelf)) is not None]
        if outcome.interrupted:
            break
        _measure_all(study, trained, folder, _lookup(study, places, shelf))
        outcome.written = write_study(study, places.results)
        batch = []
    return outcome


def is_measured(entry: Wanted, folder: Path) -> bool:
    """Whether a measurement is stored, so that its run is not needed any more; says so if it is of a run by another recipe."""
    file = folder / f"{file_name(entry.network, entry.part.name, entry.seed)}.json"
    if not file.is_file():
        return False
    run, recipe = read_measurement(file).record["run"], entry.job.config.make_recipe()
    before = {**completed(run["conditions"]), **run.get("by_network", {})}
    shared = shared_settings(recipe)
    # Older records do not hold all that a recipe sets by network.
    own = {name: value for name, value in settings_by_network(recipe).items() if name in before}
    differing = [
        f"{name} {before.get(name)} instead of {value}"
        for name, value in {**shared, **own}.items()
        if before.get(name) != value
    ]
    if differing:
        log.warning("%s is of a run with %s: move it away to measure anew", file, ", ".join(differing))
    return True


def _lookup(study: Study, places: Places, shelf: Shelf) -> Lookup:
    """Any network of the study that is there, also one that this invocation was not asked for."""

    def find(network: str, seed: int, part: str) -> Trained | None:
        for entry in wanted_runs(study, [network], seed + 1, places.runs):
            if (entry.seed, entry.part.name) == (seed, part):
                run = find_run(entry, shelf)
                return None if run is None else entry.at(run)
        return None

    return Lookup(find)


def _measure_all(study: Study, trained: Sequence[Trained], folder: Path, others: Lookup | None = None) -> None:
    if others is None:
        by_name = {(entry.network, entry.seed, entry.part): entry for entry in trained}
        others = Lookup(lambda *wanted: by_name.get(wanted))
    for entry in trained:
        file = folder / f"{file_name(entry.network, entry.part, entry.seed)}.json"
        name = " ".join(word for word in (entry.network, entry.part) if word)
        if file.is_file():
            weights = sha256_of(RunDirectory(entry.run).weights_file)
            if read_measurement(file).record["run"]["weights_sha256"] != weights:
                raise RunError(
                    f"{file} was measured on another run than {entry.run}: choose another --out, or move the record away"
                )
            continue
        log.info("%s: measuring %s, seed %s (%s)", study.name, name, entry.seed, entry.run)
        began = time.monotonic()
        measured = study.measure(entry.load(), entry, others)
        record = {
            "study": study.name,
            "network": entry.network,
            "seed": entry.seed,
            "part": entry.part,
            "quick": study.quick,
            "run": entry.describe(),
            "seconds": round(time.monotonic() - began, 1),
            "environment": describe_environment(),
        }
        write_measurement(folder, record, measured)


def plan(
    study: Study,
    places: Places,
    *,
    networks: Sequence[str] | None = None,
    seeds: int | None = None,
    seconds: Callable[[Wanted], float],
) -> list[tuple[Wanted, str, float]]:
    """What a study would do: each run, what there is of it, and the seconds that its training takes, from its beginning.

    Args:
        study: The study.
        places: Where things are kept.
        networks: Names of the networks; the study's if None.
        seeds: How many; the study's number if None.
        seconds: Estimates the training of a run.
    """
    shelf = shelf_of(places, study.quick)
    rows = []
    for entry in wanted_runs(study, networks or study.networks, seeds or study.seeds, places.runs):
        if is_measured(entry, places.results / study.name):
            rows.append((entry, "measured", 0.0))
        elif (run := find_run(entry, shelf)) is not None:
            rows.append((entry, f"trained ({run})", 0.0))
        else:
            begun = (entry.job.run / "config.json").is_file()
            rows.append((entry, "begun" if begun else "to train", seconds(entry)))
    return rows

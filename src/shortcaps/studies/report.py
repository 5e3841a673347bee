"""What a study leaves: NAME.json, a plot, and a page, all from the stored measurements alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from shortcaps.files import write_json
from shortcaps.reporting.tables import Grid, markdown_table, write_report
from shortcaps.studies.drawing import networks_of
from shortcaps.studies.findings import Finding, compare
from shortcaps.studies.measured import Measurement, read_measurements
from shortcaps.studies.study import STANDARD_NETWORKS, Study, list_studies

CHOSEN = "compact-23k"
"""The network whose comparisons README shows one by one."""
QUICK = (
    "This is the quick version: less training and fewer images than the study has. It shows that everything runs, and is no result "
    "to quote."
)


def summary(study: Study, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The contents of NAME.json."""
    return {
        "study": study.name,
        "title": study.title,
        "question": study.question,
        "quick": study.quick,
        "notes": list(study.notes()),
        "findings": [asdict(finding) for finding in compare(study, measurements)],
        "sentences": list(study.sentences(measurements)) if measurements else [],
        "measured": [
            {name: m.record[name] for name in ("network", "seed", "part", "run", "seconds", "environment")}
            | {"values": m.values}
            for m in measurements
        ],
    }


def write_study(study: Study, folder: Path) -> tuple[Path, ...]:
    """Write NAME.json, NAME.png, NAME.md and NAME.html.

    Args:
        study: The study.
        folder: Where the results of all studies are; the measurements of this one lie in a folder of its name there.

    Returns:
        The files; none if nothing was measured.
    """
    from shortcaps.reporting.figures import as_svg, save_figure

    measurements = read_measurements(folder / study.name)
    if not measurements:
        return ()
    findings = compare(study, measurements)
    write_json(folder / f"{study.name}.json", summary(study, measurements))
    figure = study.draw(measurements)
    save_figure(figure, folder / f"{study.name}.png")
    notes = [*([QUICK] if study.quick else []), study.question, *study.notes(), *_common_notes(measurements)]
    pages = write_report(
        folder,
        study.name,
        title=study.title + (" (quick version)" if study.quick else ""),
        command=f"shortcaps study {study.name}{' --quick' if study.quick else ''}",
        notes=notes,
        sentences=[*sentences_of(findings), *study.sentences(measurements)],
        parts=[
            ("Comparisons", findings_grid(findings)),
            ("Measured", values_grid(measurements)),
            ("Runs", runs_grid(study, measurements)),
        ],
        pictures={study.title: as_svg(figure)},
    )
    return (folder / f"{study.name}.json", folder / f"{study.name}.png", *pages)


def sentences_of(findings: Sequence[Finding]) -> list[str]:
    """A sentence for each main claim, and for each network one that counts the others, which the table has."""
    said = [str(finding) for finding in findings if finding.is_main]
    others = [finding for finding in findings if not finding.is_main]
    for network in dict.fromkeys(finding.network for finding in others):
        verdicts = Counter(finding.verdict for finding in others if finding.network == network)
        counted = ", ".join(f"{verdict} in {count}" for verdict, count in verdicts.most_common())
        said.append(f"Of the other {verdicts.total()} comparisons, below, {network} is {counted}.")
    return said


def _common_notes(measurements: Sequence[Measurement]) -> list[str]:
    notes = [
        "Differences are paired on the same images; where several show one digit or object, that is the unit; the seeds count too. With one "
        "seed the interval is that of the images alone, and what another seed would change comes on top."
    ]
    data = sorted({m.record["run"]["dataset"] for m in measurements})
    epochs: dict[str, set[int]] = {}
    for m in measurements:
        epochs.setdefault(m.record["run"]["recipe"], set()).add(m.record["run"]["epochs"])
    recipes = [f"{name} ({', '.join(map(str, sorted(epochs[name])))} epochs)" for name in sorted(epochs)]
    notes.append(f"Trained on {', '.join(data)} by the recipe {' and '.join(recipes)}.")
    return notes


def findings_grid(findings: Iterable[Finding]) -> Grid:
    """A row for each comparison."""
    rows: Grid = [["in", "network", "", "against", "", "difference, 95 % interval", "verdict", "seeds", "images"]]
    for f in findings:
        values = f.shown_value(f.value), f.shown_value(f.opponent_value)
        rows.append(
            [f.what, f.network, values[0], f.opponent, values[1], f.shown, f.verdict, str(f.seeds), f"{f.images:,}"]
        )
    return rows


def values_grid(measurements: Sequence[Measurement]) -> Grid:
    """A row for each number, a column for each network: means over seeds, with the standard deviation where there are several."""
    networks = networks_of(measurements)
    rows: Grid = [["", *networks]]
    for part in dict.fromkeys(m.part for m in measurements):
        own = [m for m in measurements if m.part == part]
        for name in dict.fromkeys(name for m in own for name in m.values):
            by_network = [[m.values[name] for m in own if m.network == n and name in m.values] for n in networks]
            rows.append([f"{part}: {name}" if part else name, *map(_spread, by_network)])
    return rows


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def runs_grid(study: Study, measurements: Sequence[Measurement]) -> Grid:
    """A row for each run."""
    per_class = {part.name: part.settings["per_class"] for part in study.parts() if "per_class" in part.settings}
    header = "network, seed, part, trained on, recipe, epochs, images, parameters, test accuracy, minutes, commit"
    rows: Grid = [header.split(", ")]
    for m in measurements:
        run: Mapping[str, Any] = m.record["run"]
        images = "all" if run["max_images"] is None else f"{run['max_images']:,}"
        if m.part in per_class:
            images = f"{per_class[m.part]:,} a class"
        row = [m.network, str(m.seed), m.part, run["dataset"], run["recipe"], str(run["epochs"]), images]
        row += [
            f"{run['parameters']:,}",
            f"{run['test_accuracy']:.2%}",
            f"{run['training_seconds'] / 60:.1f}",
            str(run["commit"]),
        ]
        rows.append(row)
    return rows


def readme_lines(studies: Iterable[Study], folder: Path) -> list[str]:
    """The summary for README: a row for each main claim, a column for each plain network beside the compact one, and below a line for each other pair.

    Args:
        studies: In the order of the rows; those without measurements are left out.
        folder: Where the results of all studies are.
    """
    rows: list[tuple[str, str, dict[str, str]]] = []
    others: dict[str, list[tuple[str, Finding]]] = {}
    for study in studies:
        by_claim: dict[str, dict[str, str]] = {}
        for finding in compare(study, read_measurements(folder / study.name)):
            if not finding.is_main:
                continue
            pair = f"{finding.network} − {finding.opponent}"
            if finding.network == CHOSEN and finding.opponent in STANDARD_NETWORKS:
                seeds = f", {finding.seeds} of {study.seeds} seeds" if finding.seeds < study.seeds else ""
                by_claim.setdefault(finding.what, {})[pair] = f"{finding.shown} {finding.verdict}{seeds}"
            else:
                others.setdefault(pair, []).append((study.name, finding))
        rows += [(study.name, what, cells) for what, cells in by_claim.items()]
    pairs = list(dict.fromkeys(pair for _, _, cells in rows for pair in cells))
    grid: Grid = [["study", "in", *pairs]]
    grid += [
        [f"[{name}](results/studies/{name}.md)", what, *(cells.get(pair, "") for pair in pairs)]
        for name, what, cells in rows
    ]
    counted = [f"- {pair}: {_counted(findings)}." for pair, findings in others.items()]
    return [*markdown_table(grid), *(["", *counted] if counted else [])]


def _counted(findings: Sequence[tuple[str, Finding]]) -> str:
    """For each verdict how often it was given, and in which studies, e.g. `ahead in 2 (affine, unknown)`."""
    verdicts = Counter(finding.verdict for _, finding in findings)
    said = []
    for verdict, count in verdicts.most_common():
        studies = dict.fromkeys(name for name, finding in findings if finding.verdict == verdict)
        said.append(f"{verdict} in {count} ({', '.join(studies)})")
    fewest = min(finding.seeds for _, finding in findings)
    return ", ".join(said) + f", at least {fewest} seed{'' if fewest == 1 else 's'} each"


def all_lines(folder: Path) -> list[str]:
    """`readme_lines` of every study in its whole version."""
    from shortcaps.studies.study import STUDIES

    return readme_lines([STUDIES[name]() for name in list_studies()], folder)

"""`shortcaps study`: the claims of the field, measured side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortcaps.cli.app import app, console, note, print_error, print_json
from shortcaps.cli.shared import PLUGIN
from shortcaps.errors import RunError

if TYPE_CHECKING:
    from shortcaps.studies.run import Places
    from shortcaps.studies.study import Study


@app.command(
    "study",
    help="""Measure what is claimed of capsules, beside plain networks of the same size.

NAME is one of affine, corrupted, few, overlap, pose, unknown, viewpoint, or `all`. A study trains the networks it needs (several
studies share them, and finished runs of `shortcaps reproduce` are used), measures each, and leaves NAME.json, a plot and a page. Repeat the
command to continue a stopped one: training goes on where it was, and what was measured is not measured again.

Examples:

    shortcaps study affine --plan

    shortcaps study affine --networks compact-23k,compact-23k-plain --seeds 1

    shortcaps study pose --runs 'runs/compact/compact-23k*-affnist-seed*'

    shortcaps study all --quick

    shortcaps study all --report-only --readme README.md
""",
)
def study_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study, or `all`.")],
    networks: Annotated[
        str | None,
        typer.Option(
            help="Networks, separated by commas: MODEL or MODEL/ROUTING, e.g. compact-23k,baseline/fuzzy. [default: the study's]",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of runs of each network, with seeds 0, 1, 2, … [default: the study's]",
            min=1,
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option(help="Number of networks to train at the same time, each on a device.", min=1)
    ] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A shorter version, kept apart and marked: to see that all runs, not to quote."),
    ] = False,
    runs: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Finished run directories to measure instead; nothing is trained.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only list what would be trained, and how long that takes here.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train and measure nothing, only rewrite the report.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("results/studies"),
    train_in: Annotated[Path, typer.Option(help="Folder of the studies' own training runs.")] = Path("runs/studies"),
    readme: Annotated[
        Path | None,
        typer.Option(help="A page whose table is made anew from the records, e.g. README.md.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps study`."""
    from shortcaps.files import read_json
    from shortcaps.reproduce.grid import check_devices
    from shortcaps.reproduce.readme import update_page
    from shortcaps.studies.report import all_lines, write_study
    from shortcaps.studies.run import Outcome, Places, run_study
    from shortcaps.studies.trained import wanted_runs

    check_devices(devices)
    studies = _studies(name, quick)
    places = Places(out, train_in)
    if quick:
        places = places.quick()
    chosen = _networks(networks)
    if plan:
        _print_plan(studies, places, chosen, seeds)
        return
    if runs is None and not report_only:
        for study in studies:  # a name that one of them cannot take is better said now than after hours of the others
            wanted_runs(study, chosen or study.networks, 1, places.runs)
    failed: dict[str, str] = {}
    interrupted, results = False, []
    for study in studies:
        try:
            outcome = (
                Outcome(write_study(study, places.results))
                if report_only
                else run_study(study, places, networks=chosen, seeds=seeds, runs=runs, devices=devices)
            )
        except KeyboardInterrupt:  # while measuring; a training has saved its state and told
            note("stopped: what was measured is kept; repeat the command to continue")
            sys.exit(130)
        failed |= outcome.failed
        interrupted = outcome.interrupted
        if not outcome.written:
            note(f"{study.name}: nothing was measured yet")
        elif as_json:
            results.append(read_json(outcome.written[0]))
        else:
            for file in outcome.written:
                console.print(str(file), highlight=False, soft_wrap=True)
        if interrupted:
            break
    if as_json:
        print_json(results)
    if readme is not None:
        if quick:
            raise RunError("--readme takes the results of whole studies: leave out --quick")
        update_page(readme, "studies", all_lines(places.results))
    if interrupted:
        sys.exit(130)
    if failed:
        for run, problem in failed.items():
            print_error(f"{run}: {problem}")
        sys.exit(1)


def _studies(name: str, quick: bool) -> list[Study]:
    from shortcaps.studies import STUDIES, list_studies

    if name != "all" and name not in STUDIES:
        raise RunError(f"{STUDIES.unknown(name)}, or all")
    return [STUDIES[each](quick) for each in (list_studies() if name == "all" else [name])]


def _networks(words: str | None) -> list[str] | None:
    """The networks that were asked for, each checked; None for the study's own."""
    from shortcaps.studies.networks import cell_of

    if words is None:
        return None
    names = [word for word in (word.strip() for word in words.split(",")) if word]
    if not names:
        raise RunError(f"--networks {words!r} names no network: a name is like compact-23k or baseline/fuzzy")
    for network in names:
        cell_of(network, "mnist")
    return names


def _print_plan(studies: list[Study], places: Places, networks: list[str] | None, seeds: int | None) -> None:
    from rich.table import Table

    from shortcaps.studies.estimate import Stopwatch
    from shortcaps.studies.run import plan

    stopwatch, counted = Stopwatch(), set()
    table = Table("study", "network", "seed", "part", "state", "minutes", box=None, header_style="dim")
    total = 0.0
    for study in studies:
        for entry, state, seconds in plan(study, places, networks=networks, seeds=seeds, seconds=stopwatch):
            if seconds and entry.job.run in counted:
                state, seconds = "to train, for another study too", 0.0
            counted.add(entry.job.run)
            total += seconds
            minutes = f"{seconds / 60:.1f}" if seconds else ""
            table.add_row(study.name, entry.network, str(entry.seed), entry.part.name, state, minutes)
    console.print(table)
    console.print(
        f"about {total / 60:.0f} minutes of training, as busy as this machine is now; evaluation comes on top",
        highlight=False,
    )

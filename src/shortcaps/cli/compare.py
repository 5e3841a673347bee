"""`shortcaps compare`."""

from __future__ import annotations

from statistics import mean
from typing import Annotated

import typer

from shortcaps.cli.app import app, console, print_json
from shortcaps.cli.shared import PLUGIN
from shortcaps.errors import RunError

_RUNS = "A run directory, or several of other seeds: paths or patterns, separated by commas."


@app.command(
    "compare",
    help="""Compare two networks by their answers to the same test images.

Each run keeps what it answered, so nothing is computed again. Differences are paired image by image; where several images show one digit or one object,
that is the unit; and where there are runs of several seeds, their spread counts too. What else differs between the two trainings is listed, since a
comparison says most where that is one thing.

Examples:

    shortcaps compare runs/mnist-baseline-em runs/mnist-baseline-fuzzy

    shortcaps compare 'runs/em-seed*' 'runs/fuzzy-seed*' --json
""",
)
def compare_command(
    first: Annotated[str, typer.Argument(metavar="FIRST", help=_RUNS)],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Those to compare with.")],
    plugin: PLUGIN = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run `shortcaps compare`."""
    from rich.table import Column, Table

    from shortcaps.reporting.compare import compare_runs, find_runs

    ours, theirs = find_runs(first), find_runs(second)
    if both := set(ours) & set(theirs):
        raise RunError(f"{min(both)} is on both sides: a run cannot be compared with itself")
    found = compare_runs(ours, theirs)
    if as_json:
        print_json({"first": list(map(str, ours)), "second": list(map(str, theirs)), **found.to_dict()})
        return
    independent = f", {found.clusters:,} of them independent" if found.clusters < found.images else ""
    console.print(f"{found.test}, {found.images:,} test images{independent}", highlight=False)
    table = Table(Column(overflow="fold"), "accuracy", "seeds", "right alone", box=None, header_style="dim")
    for name, accuracies, alone in (
        (first, found.accuracies, found.only_first),
        (second, found.other_accuracies, found.only_second),
    ):
        table.add_row(name, f"{mean(accuracies):.2%}", str(len(accuracies)), f"{alone:,.0f} images")
    console.print(table)
    low, high = (100 * bound for bound in found.result.interval)
    console.print(
        f"{100 * found.result.difference:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}: the first is {found.result.relation} the second",
        highlight=False,
        style="bold",
    )
    if not found.differing:
        console.print("trained alike but for the seed", highlight=False)
        return
    settings = Table("trained otherwise in", "first", "second", box=None, header_style="dim")
    for name, (one, other) in found.differing.items():
        settings.add_row(name, str(one), str(other))
    console.print(settings)

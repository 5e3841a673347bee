"""`shortcaps reproduce`: the paper's tables, analysis and figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortcaps.cli.app import app, console, errors, find_device, note, print_json, status
from shortcaps.cli.settings import takes_settings
from shortcaps.cli.shared import PLUGIN
from shortcaps.data import load_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.routing.paths import PATHS, check_path

if TYPE_CHECKING:
    from shortcaps.reproduce.grid import Job
    from shortcaps.reproduce.records import Record

reproduce = typer.Typer(
    help="Reproduce the paper's tables, analysis and figures.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.add_typer(reproduce, name="reproduce")

Out = Annotated[Path, typer.Option(help="Output folder.")]
Seeds = Annotated[int, typer.Option(help="Number of runs of each cell, with seeds 0, 1, 2, …", min=1)]
Devices = Annotated[int, typer.Option(help="Number of cells to train at the same time, each on a device.", min=1)]
Runs = Annotated[Path, typer.Option(help="Folder of the training runs.")]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Train nothing, only rewrite the report.")]
Readme = Annotated[
    Path | None,
    typer.Option(help="A page whose table is made anew from the records, e.g. README.md.", show_default=False),
]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="Print the records as JSON.")]


def _print_files(files: tuple[Path, ...]) -> None:
    for file in files:
        console.print(str(file), highlight=False, soft_wrap=True)


@reproduce.command(
    "table1",
    help="""Table 1: accuracy of 2 networks, with and without shortcut, 4 routings, 3 data sets.

A cell is called NETWORK/shortcut|sequential/ROUTING/DATASET. Besides the paper's 48 there are cells for `solids` (rendered, in
place of smallNORB) and for networks to compare with: cnn-23k/DATASET, cnn-68k/DATASET, sabour/DATASET. Names may be patterns.

Repeat the command to continue a stopped grid. Every finished cell leaves a record, and the report is written from the records
alone.

Examples:

    shortcaps reproduce table1 --cells baseline/shortcut/fuzzy/affnist

    shortcaps reproduce table1 --cells 'baseline/shortcut/*/mnist,cnn-23k/mnist' --seeds 3 --epochs 5 --out trial --runs runs/trial

    shortcaps reproduce table1 --report-only
""",
)
@takes_settings(("recipe", "protocol", "epochs", "max_images", "refit", "precision"))
def table1_command(
    cells: Annotated[
        str | None, typer.Option(help="Names or patterns, separated by commas. [default: the paper's 48]")
    ] = None,
    seeds: Seeds = 1,
    devices: Devices = 1,
    out: Out = Path("results/table1"),
    runs: Runs = Path("runs/table1"),
    report_only: ReportOnly = False,
    readme: Readme = None,
    as_json: RecordsAsJson = False,
    plugin: PLUGIN = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps reproduce table1`."""
    from shortcaps.reproduce.cells import PAPER_CELLS, all_cells, choose_cells
    from shortcaps.reproduce.grid import plan_jobs
    from shortcaps.reproduce.readme import table1_lines, update_page
    from shortcaps.reproduce.records import read_records
    from shortcaps.reproduce.table1 import write_table1

    chosen = list(PAPER_CELLS) if cells is None else choose_cells(cells, all_cells())
    jobs = [] if report_only else plan_jobs(chosen, runs, seeds=seeds, **settings)
    _run_and_report(jobs, out, devices, write_table1, as_json)
    if readme is not None:
        update_page(readme, "table1", table1_lines(read_records(out), out))


@reproduce.command(
    "compact",
    help="""Compact networks, each beside its plain twin and a plain CNN of its size, with paired differences.

A cell is called NETWORK/DATASET, e.g. compact-23k/mnist, compact-23k-plain/mnist, cnn-23k/mnist. Every finished cell leaves a record and
its answers to the test images; paired.json and the report are written from these alone. Repeat the command to continue a stopped one.
All are trained by the recipe compact unless --recipe names another, and by default in single precision; the records in results/compact of
all but the 23k networks on affNIST were made with --precision bf16-mixed, and those marked ᵛ in its report with --refit.

Examples:

    shortcaps reproduce compact --cells 'compact-23k*/mnist,cnn-23k/mnist' --seeds 3

    shortcaps reproduce compact --report-only
""",
)
@takes_settings(("recipe", "protocol", "epochs", "max_images", "refit", "precision"), default={"recipe": "compact"})
def compact_command(
    cells: Annotated[str | None, typer.Option(help="Names or patterns, separated by commas. [default: all]")] = None,
    seeds: Seeds = 3,
    devices: Devices = 1,
    out: Out = Path("results/compact"),
    runs: Runs = Path("runs/compact"),
    report_only: ReportOnly = False,
    readme: Readme = None,
    as_json: RecordsAsJson = False,
    plugin: PLUGIN = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps reproduce compact`."""
    from shortcaps.reproduce.cells import choose_cells
    from shortcaps.reproduce.compact import compact_cells, compare, write_compact
    from shortcaps.reproduce.grid import plan_jobs
    from shortcaps.reproduce.readme import compact_lines, update_page
    from shortcaps.reproduce.records import read_records

    chosen = compact_cells() if cells is None else choose_cells(cells, compact_cells())
    # The same recipe for all, also for networks that have another of their own.
    jobs = [] if report_only else plan_jobs(chosen, runs, seeds=seeds, **{"recipe": "compact", **settings})
    _run_and_report(jobs, out, devices, write_compact, as_json)
    if readme is not None:
        update_page(readme, "compact", compact_lines(compare(read_records(out), out)))


@reproduce.command(
    "ablations",
    help="""What each part of the compact networks is worth: no routing, other routings, iterations, poses, taps, readout.

Every variant differs from the network in one thing. A cell is called NETWORK/DATASET or NETWORK/ROUTING/DATASET. Every finished cell leaves a
record and its answers to the test images; table, plot and report are written from these alone. Repeat the command to continue.
All are trained by the recipe compact-adam unless --recipe names another.

Examples:

    shortcaps reproduce ablations --cells 'compact-23k*' --epochs 4

    shortcaps reproduce ablations --epochs 4 --cells 'compact-23k/fashion-mnist,compact-23k-equal-shares/fashion-mnist'

    shortcaps reproduce ablations --report-only
""",
)
@takes_settings(
    ("recipe", "protocol", "epochs", "max_images", "refit", "precision"), default={"recipe": "compact-adam"}
)
def ablations_command(
    cells: Annotated[str | None, typer.Option(help="Names or patterns, separated by commas. [default: all]")] = None,
    seeds: Seeds = 3,
    devices: Devices = 1,
    out: Out = Path("results/ablations"),
    runs: Runs = Path("runs/ablations"),
    report_only: ReportOnly = False,
    as_json: RecordsAsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Run `shortcaps reproduce ablations`."""
    from shortcaps.reproduce.ablations import ablation_cells, write_ablations
    from shortcaps.reproduce.cells import choose_cells
    from shortcaps.reproduce.grid import plan_jobs

    chosen = ablation_cells() if cells is None else choose_cells(cells, ablation_cells())
    jobs = [] if report_only else plan_jobs(chosen, runs, seeds=seeds, **{"recipe": "compact-adam", **settings})
    _run_and_report(jobs, out, devices, write_ablations, as_json)


def _run_and_report(
    jobs: Sequence[Job],
    out: Path,
    devices: int,
    write: Callable[[Sequence[Record], Path], tuple[Path, ...]],
    as_json: bool,
) -> None:
    """Do the jobs that have no record yet, and write the report after each and at the end."""
    from shortcaps.reproduce.grid import check_devices, run_grid
    from shortcaps.reproduce.records import read_records

    check_devices(devices)
    if not jobs and not read_records(out):
        raise RunError(
            f"{out} has no records to report on: train some cells first, or call this from a clone, which has them in results/"
        )
    out.mkdir(parents=True, exist_ok=True)
    outcome = None
    if jobs:
        outcome = run_grid(jobs, out, devices=devices, finished=lambda record: write(read_records(out), out))
    records = read_records(out)
    written = write(records, out)
    if as_json:
        print_json([record.values for record in records])
    else:
        _print_files(written)
    if outcome is not None and outcome.interrupted:
        sys.exit(130)
    if outcome is not None and outcome.failed:
        for name, problem in outcome.failed.items():
            errors.print(f"shortcaps: {name}: {problem}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


@reproduce.command(
    "table2",
    help="""Table 2: parameters, time and memory of the sixteen networks, on this machine.

Hardware differs from the paper's, so both are given as ratios to EM. This takes some minutes, during which the machine should be
idle otherwise.

Examples:

    shortcaps reproduce table2

    shortcaps reproduce table2 --batch 32 --rounds 3 --json
""",
)
def table2_command(
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 128,
    rounds: Annotated[int, typer.Option(help="Number of rounds; results are their medians.", min=1)] = 5,
    path: Annotated[str, typer.Option(help=f"How votes are computed: {', '.join(PATHS)}.")] = "auto",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps. [default: the best available]", show_default=False)
    ] = None,
    out: Out = Path("results/table2"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run `shortcaps reproduce table2`."""
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.files import write_json
    from shortcaps.reproduce.table2 import measure_table2, sentences, write_table2

    try:
        check_path(path)
    except ValueError as error:
        raise RunError(str(error)) from error
    keep_freed_memory()
    with status() as progress:
        table = measure_table2(batch=batch, path=path, rounds=rounds, device=find_device(device), progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "table2.json", table.to_dict())
    written = write_table2(table, out)
    if as_json:
        print_json(table.to_dict())
        return
    for sentence in sentences(table):
        console.print(sentence, highlight=False)
    _print_files(written)


@reproduce.command(
    "complexity",
    help="""Count voting tensors (Eq. 15 and 16) and the arithmetic of an iteration (4Q, 7Q, 10Q).

Examples:

    shortcaps reproduce complexity
""",
)
def complexity_command(out: Out = Path("results/complexity")) -> None:
    """Run `shortcaps reproduce complexity`."""
    from shortcaps.reproduce.complexity import write_complexity

    out.mkdir(parents=True, exist_ok=True)
    _print_files(write_complexity(out))


@reproduce.command(
    "figures",
    help="""Draw Fig. 2 (the network) and Fig. 4 (sample images).

Data sets that cannot be fetched are left out, with a note.

Examples:

    shortcaps reproduce figures
""",
)
def figures_command(out: Out = Path("results/figures")) -> None:
    """Run `shortcaps reproduce figures`."""
    from shortcaps.models import PRESETS, build_from_architecture
    from shortcaps.reporting.figures import save_figure
    from shortcaps.reproduce.cells import columns
    from shortcaps.reproduce.pictures import draw_network, draw_samples
    from shortcaps.reproduce.published import FAMILIES, NETWORKS

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for network in NETWORKS:
        for family in FAMILIES:
            target = out / f"figure2-{network}-{family}.png"
            save_figure(
                draw_network(build_from_architecture(PRESETS[network], shortcut=family == "shortcut"), network), target
            )
            written.append(target)
    sets = []
    for name in columns():
        try:
            sets.append((load_dataset(name, "train"), load_dataset(name, "test")))
        except DataError as reason:
            note(f"{name} is left out: {reason}")
    if not sets:
        raise DataError("none of the data sets could be fetched: see above")
    target = out / "figure4.png"
    save_figure(draw_samples(sets), target)
    _print_files((*written, target))

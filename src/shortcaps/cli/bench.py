"""`shortcaps bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shortcaps.bench import BACKBONE, BENCH_PATHS, QUANTITIES, Case, Report, Scaling, measure_scaling, run_benchmark
from shortcaps.cli.app import app, console, errors, find_device, print_json, status
from shortcaps.errors import RunError
from shortcaps.models import PRESETS
from shortcaps.routing import ROUTINGS

FAMILIES = ("shortcut", "sequential")


def _chosen(words: str, known: tuple[str, ...], what: str) -> list[str]:
    """Names separated by commas; `all` is all of them."""
    names = list(known) if words == "all" else [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise RunError(f"unknown {what} {name!r}: choose from {', '.join(known)}, or all")
    if not names:
        raise RunError(f"no {what} is given: choose from {', '.join(known)}, or all")
    return names


@app.command(
    "bench",
    help="""Measure time and memory of the networks on this machine.

Every case is measured along with its backbone (the convolutions below the capsules) and its dense reference, in rounds
that run all of them in turn; the ratios are reliable even on a noisy machine. Memory is the peak of a training step, in a
separate process.

Lists are separated by commas; `all` stands for everything.

Examples:

    shortcaps bench

    shortcaps bench --routings all --families all --paths fused --batch 1,128

    shortcaps bench --paths dense,fused --against classes,iterations --plots pictures/

    shortcaps bench --goals --json > goals.json
""",
)
def bench_command(
    networks: Annotated[str, typer.Option(help=f"Networks: {', '.join(PRESETS)}.")] = "baseline",
    families: Annotated[str, typer.Option(help=f"Families: {', '.join(FAMILIES)}.")] = "shortcut",
    routings: Annotated[str, typer.Option(help=f"Routings: {', '.join(ROUTINGS.known())}.")] = "all",
    paths: Annotated[str, typer.Option(help=f"Paths: {', '.join(BENCH_PATHS)}.")] = "dense,factored,fused",
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "128",
    image_size: Annotated[int, typer.Option(help="Side of the images, in pixels.")] = 28,
    rounds: Annotated[int, typer.Option(help="Number of rounds; results are their medians.", min=1)] = 7,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory too.")] = True,
    goals: Annotated[bool, typer.Option("--goals", help="Measure the speed goals of the library instead.")] = False,
    against: Annotated[
        str | None, typer.Option(help=f"Measure instead how time and memory grow with {', '.join(QUANTITIES)}.")
    ] = None,
    plots: Annotated[Path, typer.Option(help="Folder for the figure of `--against`.")] = Path("."),
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps. [default: the best available]", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run `shortcaps bench`."""
    from shortcaps.allocator import keep_freed_memory
    from shortcaps.bench.goals import goal_cases, verdicts
    from shortcaps.kernels import library

    sizes = [_batch_size(word) for word in batch.split(",")]
    chosen_paths = _chosen(paths, tuple(BENCH_PATHS), "path")
    cases = [
        Case(network, family == "shortcut", routing, path, size, image_size)
        for network in _chosen(networks, tuple(PRESETS), "network")
        for family in _chosen(families, FAMILIES, "family")
        for routing in _chosen(routings, tuple(ROUTINGS), "routing")
        for path in chosen_paths
        for size in sizes
    ]
    if goals:
        cases = goal_cases()
    if not library.AVAILABLE and any(case.path == "fused" for case in cases):
        raise RunError(
            f"the path 'fused' needs the native library, which is {library.description()}: choose another --paths"
        )
    quantities = _chosen(against, tuple(QUANTITIES), "quantity") if against is not None else []
    keep_freed_memory()
    with status() as progress:
        if quantities:
            found = measure_scaling(
                cases[0], quantities, chosen_paths, rounds=rounds, device=find_device(device), progress=progress
            )
        else:
            report = run_benchmark(cases, rounds=rounds, device=find_device(device), memory=memory, progress=progress)
    if quantities:
        from shortcaps.bench.plots import plot_scaling

        plots.mkdir(parents=True, exist_ok=True)
        target = plots / "scaling.png"
        plot_scaling(found, target)
        if as_json:
            print_json([scaling.to_dict() for scaling in found])
        else:
            _print_scaling(found)
            console.print(f"figure: {target}", highlight=False)
        return
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if goals:
        for verdict in verdicts(report):
            errors.print(str(verdict), style=None if verdict.reached else "yellow", highlight=False)


def _batch_size(word: str) -> int:
    if not word.strip().isdigit() or int(word) < 1:
        raise RunError(f"batch {word!r} is not a size: give integers above 0, e.g. 1,128")
    return int(word)


def _print_report(report: Report) -> None:
    from rich.table import Table

    def ratio(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"

    for group in dict.fromkeys((r.case.network, r.case.family, r.case.batch) for r in report.results):
        network, family, batch = group
        table = Table(
            "routing",
            "path",
            "step ms",
            "images/s",
            "÷ backbone",
            "dense ÷",
            "infer ms",
            "MB",
            "dense ÷",
            box=None,
            header_style="dim",
            title=f"{network}, {family}, batch {batch}",
            title_justify="left",
        )
        for column in table.columns[2:]:
            column.justify = "right"
        for result in report.results:
            case = result.case
            if (case.network, case.family, case.batch) != group:
                continue
            table.add_row(
                "" if case.path == BACKBONE else case.routing,
                case.path,
                f"{result.step_ms:.1f}",
                f"{result.images_per_second(result.step_ms):,.0f}",
                ratio(result.step_over_backbone),
                ratio(result.dense_over_step),
                f"{result.inference_ms:.2f}",
                "" if result.memory is None else f"{result.memory / 1e6:,.0f}",
                ratio(result.dense_over_memory),
            )
        console.print(table)
        console.print()
    for name, time in report.latency_ms.items():
        console.print(f"one image, {name}: {time:.2f} ms", highlight=False)
    machine = report.machine
    console.print(
        f"medians of {report.rounds} rounds on {report.device}, torch {machine['torch']}, {machine['threads']} threads, "
        f"native code: {machine['native kernels']}; a matrix product reaches {report.peak_multiply_adds / 1e9:.0f} G "
        "multiply–adds per second",
        highlight=False,
        style="dim",
    )


def _print_scaling(found: list[Scaling]) -> None:
    from rich.table import Table

    table = Table("quantity", "path", "values", "time ∝", "memory ∝", "by votes", box=None, header_style="dim")
    for scaling in found:
        memory, by_votes = scaling.memory_exponent, scaling.memory_exponent_by_votes
        table.add_row(
            scaling.quantity.replace("_", " "),
            scaling.path,
            ", ".join(map(str, scaling.values)),
            f"n^{scaling.time_exponent:.2f}",
            "" if memory is None else f"n^{memory:.2f}",
            "" if by_votes is None else f"votes^{by_votes:.2f}",
        )
    console.print(table)

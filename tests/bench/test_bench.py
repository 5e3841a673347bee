"""The benchmark measures what it says, and its arithmetic is right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shortcaps.bench import BACKBONE, Case, run_benchmark
from shortcaps.bench.memory import measure_memory
from shortcaps.bench.run import Result
from shortcaps.bench.scaling import Scaling, exponent
from shortcaps.bench.timing import time_interleaved
from shortcaps.cli import app
from shortcaps.errors import RunError

SMALL = Case(batch=2, path="factored")


def test_every_round_goes_through_all_steps_and_the_first_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortcaps.bench.timing.TURN", 0)
    order: list[str] = []
    found = time_interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 3, "cpu")  # type: ignore[misc]
    assert order == list("abc") * 4
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_exponent_is_that_of_the_power_law() -> None:
    assert exponent((1, 2, 4, 8), (3, 12, 48, 192)) == pytest.approx(2)
    assert exponent((1, 2, 4), (5, 5, 5)) == pytest.approx(0)
    assert exponent((1, 2, 4), (3, None, 12)) == pytest.approx(1)
    assert math.isnan(exponent((1, 2), (3, None)))
    scaling = Scaling("iterations", "fused", SMALL, (1, 2), (50, 50), (1.0, 2.0), (10, 10))
    assert scaling.memory_exponent_by_votes is None  # iterations add no votes


def test_a_report_sets_cases_beside_their_backbone_and_their_dense_reference() -> None:
    dense = replace(SMALL, path="dense")
    report = run_benchmark([SMALL, dense], rounds=1, memory=False, latency=False)
    backbone = report.result(replace(SMALL, path=BACKBONE))
    factored = report.result(SMALL)
    assert factored.step_over_backbone == factored.step_ms / backbone.step_ms
    assert factored.dense_over_step == report.result(dense).step_ms / factored.step_ms
    assert backbone.step_over_backbone is None
    assert factored.multiply_adds == SMALL.model().summary().multiply_adds
    assert report.peak_multiply_adds > 1e8
    assert Result(SMALL, 4.0, 1.0, None).images_per_second(4.0) == 500
    json.dumps(report.to_dict())


def test_a_training_step_trains_and_the_backbone_has_no_capsules() -> None:
    torch.manual_seed(0)
    for case in (SMALL, replace(SMALL, shortcut=False), replace(SMALL, path=BACKBONE)):
        case.training_step("cpu")()
        case.inference("cpu")()
    output = replace(SMALL, path=BACKBONE).inference("cpu")()
    assert isinstance(output, torch.Tensor)
    assert output.shape == (2, 4, 8, 4, 12, 12)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system counts no peak memory")
def test_memory_is_that_of_the_votes_where_they_are_built() -> None:
    case = Case(batch=64, path="dense")
    votes = 64 * case.model().summary().votes * 4
    dense, lean = measure_memory(case), measure_memory(replace(case, path="factored"))
    assert dense is not None
    assert lean is not None
    assert dense > 4 * votes  # forward and backward keep them several times over
    assert lean < dense
    assert measure_memory(case) == pytest.approx(dense, rel=0.02), (
        "what was freed is not counted, so nothing is left to chance"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system counts no peak memory")
@pytest.mark.parametrize("training", [True, False])
def test_what_pytorch_loads_for_itself_is_not_charged_to_the_network(training: bool) -> None:
    found = measure_memory(Case(batch=1), training=training)
    assert found is not None
    assert found < 40e6


KEEP = """
import torch
from pathlib import Path
from shortcaps.allocator import keep_freed_memory
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
kept, before = keep_freed_memory(), held()
torch.ones(10_000_000)
print(kept, (held() - before) // 1_000_000)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what a process holds")
def test_freed_memory_can_be_kept() -> None:
    """In a process of its own, since it changes how all of it allocates."""
    kept, megabytes = subprocess.run(
        [sys.executable, "-c", KEEP], capture_output=True, text=True, check=True
    ).stdout.split()
    assert kept == "False" or int(megabytes) > 30


def test_bench_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortcaps.bench.timing.TURN", 0)
    small = [
        "bench",
        "--routings",
        "fuzzy",
        "--paths",
        "factored",
        "--batch",
        "2",
        "--rounds",
        "1",
        "--device",
        "cpu",
        "--no-memory",
    ]
    found = json.loads(CliRunner().invoke(app, [*small, "--json"]).stdout)
    assert [result["case"]["path"] for result in found["results"]] == ["backbone", "factored"]
    table = CliRunner().invoke(app, small).stdout
    assert "baseline, shortcut, batch 2" in table
    assert "one image, baseline shortcut fuzzy, factored:" in table


def test_bench_names_what_it_does_not_know() -> None:
    for arguments, problem in (
        (["--paths", "quick"], "unknown path 'quick'"),
        (["--batch", "many"], "batch 'many' is not a size"),
    ):
        with pytest.raises(RunError, match=problem):
            app(["bench", *arguments], standalone_mode=False)

"""Ablations: every variant differs from the network in what it says, and is compared with it on the same images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import shortcaps
from shortcaps import plugins
from shortcaps.layers import CapsuleHead
from shortcaps.models import MODELS
from shortcaps.models.compact import COMPACT
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.reproduce.ablations import PLUGIN, ablate, ablation_cells, variants, write_ablations
from shortcaps.reproduce.cells import Cell
from shortcaps.reproduce.grid import plan_jobs
from shortcaps.reproduce.records import read_records, write_record
from shortcaps.reproduce.variants import Variant, variants_of
from tests.reproduce.test_table1 import made_up

BASE = "compact-23k"
IMAGES = 1000


@pytest.fixture(autouse=True)
def _variants_are_known_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for holder, name in ((MODELS, "_parts"), (MODELS, "_places"), (MODELS, "_plugins"), (plugins, "_loaded")):
        monkeypatch.setattr(holder, name, dict(getattr(holder, name)))
    monkeypatch.delitem(sys.modules, PLUGIN, raising=False)  # a module runs once, and has to register again
    ablation_cells()


def head_of(network: str) -> CapsuleHead:
    head = shortcaps.create_model(network, image_size=28).head
    assert isinstance(head, CapsuleHead)
    return head


def record(folder: Path, network: str, routing: str | None, wrong: int, seed: int) -> None:
    """A record of a network that answers the first images wrongly, and its answers beside it."""
    run = folder / "runs" / f"{network}-{routing}-{seed}"
    cell = Cell(network, None, routing, "mnist")
    labels = torch.arange(IMAGES) % 10
    predicted = labels.clone()
    predicted[:wrong] = (labels[:wrong] + 1) % 10
    StoredAnswers(predicted, labels).write(run / "answers.npz")
    write_record(made_up(cell, 1 - wrong / IMAGES, seed, routing=routing, shortcut=None), run, folder)


@pytest.mark.parametrize("base", COMPACT)
def test_variants_are_what_their_names_say(base: str) -> None:
    assert head_of(base).routing.iterations == 2
    for count in (3, 4):
        assert head_of(f"{base}-iterations-{count}").routing.iterations == count
    assert head_of(f"{base}-equal-shares").routing.iterations == 1
    for pose in (2, 3):
        assert head_of(f"{base}-pose-{pose}").pose == pose
    assert len(head_of(f"{base}-taps-2").in_channels) == 2
    assert head_of(f"{base}-tightness").pose_weight is None


@pytest.mark.parametrize("variant", [v for base in COMPACT for v in variants_of(base)], ids=lambda v: v.network)
def test_a_variant_has_about_as_many_parameters(variant: Variant) -> None:
    networks = (shortcaps.create_model(name) for name in (variant.network, variant.base))
    own, base = (sum(p.numel() for p in network.parameters()) for network in networks)
    assert own == pytest.approx(base, rel=0.02)


def test_the_command_of_a_variant_names_the_plug_in_that_knows_it(tmp_path: Path) -> None:
    cells = [cell for cell in ablation_cells() if cell.name in (f"{BASE}/affnist", f"{BASE}-pose-2/affnist")]
    base, variant = plan_jobs(cells, tmp_path, epochs=2)
    assert "--plugin" not in base.command
    assert variant.command.endswith("--plugin shortcaps.reproduce.variant_networks")
    # A run that was stopped does not load it by itself either.
    assert variant.resuming_flags == ["--resume", str(variant.run), "--plugin", "shortcaps.reproduce.variant_networks"]
    assert base.resuming_flags == ["--resume", str(base.run)]


def test_a_variant_that_makes_more_mistakes_is_behind_and_one_alike_is_not_told_apart(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path, BASE, None, 20 + seed, seed)
        record(tmp_path, f"{BASE}-equal-shares", None, 100 + seed, seed)
        record(tmp_path, BASE, "em", 22 - seed, seed)
    em, equal = ablate(read_records(tmp_path), tmp_path)
    assert (em.variant, equal.variant) == ("em routing", variants_words("equal-shares"))
    assert em.pair is not None and em.pair.result.verdict == "not told apart"
    assert equal.pair is not None and equal.pair.result.verdict == "behind"
    assert equal.pair.result.difference == pytest.approx(-0.08)
    assert f"(89.90%) is behind {BASE} itself (97.90%): -8.00 points" in str(equal)


def variants_words(name: str) -> str:
    return next(words for words, (network, _) in variants(BASE).items() if network == f"{BASE}-{name}")


def test_the_report_has_the_base_every_variant_and_a_plot(tmp_path: Path) -> None:
    record(tmp_path, BASE, None, 20, 0)
    record(tmp_path, f"{BASE}-pose-3", None, 30, 0)
    record(tmp_path, "compact-68k", None, 10, 0)
    record(tmp_path, "compact-68k-pose-3", None, 15, 0)
    files = write_ablations(read_records(tmp_path), tmp_path)
    assert all(file.stat().st_size for file in files)
    text = (tmp_path / "report.md").read_text()
    assert "| as it is | " in text
    assert "| 14 capsules of 3x3 | " in text
    assert "| 21 capsules of 3x3 | " in text, "the other network has a table of its own"
    small, large = json.loads((tmp_path / "ablations.json").read_text())
    assert (small["base"], small["difference"]) == (BASE, pytest.approx(-0.01))
    assert (large["base"], large["difference"]) == ("compact-68k", pytest.approx(-0.005)), (
        "each against its own network"
    )

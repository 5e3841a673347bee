"""Runs written by 0.1, before the redesign, load, answer, evaluate and resume. The fixtures were written by that version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import shortcaps
from shortcaps.errors import RunError
from shortcaps.inference.prepare import Preparation
from shortcaps.reproduce.records import read_records
from shortcaps.runs.directory import read_manifest
from shortcaps.runs.manifest import FORMAT, Manifest
from shortcaps.training import TrainConfig, train
from tests.training.support import pictures

RUNS = Path(__file__).parents[1] / "fixtures" / "runs-0.1"
RECORDS = Path(__file__).parents[1] / "fixtures" / "records-0.1"


def expected(file: Path) -> Tensor:
    """What 0.1 gave for the images below."""
    return torch.tensor(json.loads(file.read_text())["activations"])


def answers(run: str | Path, count: int) -> Tensor:
    model = shortcaps.load(run)
    generator = torch.Generator().manual_seed(0)
    return model(torch.rand(count, model.channels, *model.image_size, generator=generator)).detach()


@pytest.mark.parametrize("name", ["shortcut-fuzzy", "sequential-em", "plain"])
def test_a_finished_run_gives_the_answers_it_gave(name: str) -> None:
    wanted = expected(RUNS / name / "expected.json")
    torch.testing.assert_close(answers(RUNS / name, len(wanted)), wanted, rtol=1e-5, atol=1e-6)


def test_the_bundled_network_gives_the_answers_it_gave() -> None:
    wanted = expected(RUNS / "bundled-expected.json")
    torch.testing.assert_close(answers("mnist-baseline-fuzzy", len(wanted)), wanted, rtol=1e-4, atol=1e-6)


def test_an_interrupted_run_goes_on_to_what_it_would_have_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other instruction sets add in another order, which fifteen steps make larger; another seed is off by a tenth."""
    pictures(tmp_path / "pictures")
    shutil.copytree(RUNS / "interrupted", tmp_path / "run")
    monkeypatch.chdir(tmp_path)  # its data set is a relative path
    result = train(TrainConfig(), tmp_path / "run", resume=True)
    assert result is not None
    wanted = expected(RUNS / "interrupted" / "expected.json")
    torch.testing.assert_close(answers(tmp_path / "run", len(wanted)), wanted, rtol=1e-3, atol=1e-4)


def test_the_config_of_an_old_run_is_read_as_a_new_one() -> None:
    manifest = read_manifest(RUNS / "interrupted")
    assert manifest.train == TrainConfig.of(
        data="pictures",
        epochs=3,
        batch_size=24,
        seed=5,
        image_size=20,
        recipe="fast",
        network={"capsule_channels": [2, 3, 2], "backbone_settings": {"width": 4}},
    )
    assert manifest.recipe == manifest.train.make_recipe()
    assert manifest.recipe.routing_settings == {"sharpness": 4.0}
    assert Preparation.of_run(manifest).stored_size == (20, 20)
    again = type(manifest).from_json(json.loads(json.dumps(manifest.to_json())))
    assert again.train == manifest.train
    assert again.data == manifest.data
    assert again.to_json()["format"] == FORMAT


def test_what_old_runs_call_solids_are_the_few_of_then() -> None:
    stored = json.loads((RUNS / "interrupted" / "config.json").read_text())
    for name, expected in (("solids", "solids-small"), ("solids-azimuth", "solids-small-azimuth"), ("mnist", "mnist")):
        stored["train"]["data"] = stored["data"]["name"] = name
        manifest = Manifest.from_json(stored)
        assert (manifest.train.data.name, manifest.data.name) == (expected, expected)


def test_records_of_old_runs_count_as_runs_of_the_same_settings() -> None:
    (record,) = read_records(RECORDS)
    assert record.values["config"]["format"] == 1
    assert record.manifest.recipe == TrainConfig.of(data="mnist", routing="fuzzy").make_recipe()


def test_a_run_of_a_later_version_is_refused_with_its_format(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format": 99}')
    with pytest.raises(
        RunError,
        match=r"config.json cannot be used: it was written by another version .*format 99; this one reads 1 to 2",
    ):
        read_manifest(tmp_path)

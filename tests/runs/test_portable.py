"""A run is used from another directory or on another machine: it takes along what it needs, and says where its data was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.data import load_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.located import locate_data
from shortcaps.runs.sample import read_sample, sample_size
from shortcaps.training import TrainConfig, train
from tests.training.support import failing_at, pictures

SHAPE = (1, 20, 20)


def command(*words: object, expect: int = 0) -> Any:
    """A command in this process; what it raises is its `exception`, and its exit code then 1."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == expect, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on `pictures`, by a relative path."""
    place = tmp_path_factory.mktemp("portable")
    pictures(place / "pictures", 12)
    settings = {"image_size": 20, "batch_size": 12, "epochs": 1, "model": "cnn-23k"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        train(TrainConfig.of(data="pictures", **settings), Path("run"))
    return place / "run"


@pytest.mark.parametrize("options", [["--image-size", 0], ["--image-memory", -5]])
def test_options_of_evaluate_that_make_no_sense_are_refused(trained: Path, options: list[object]) -> None:
    result = command("evaluate", trained, *options, expect=1)
    assert isinstance(result.exception, RunError)
    assert "should be greater than or equal to" in str(result.exception)


def test_a_run_on_a_relative_path_finds_its_data_from_another_directory(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = read_manifest(trained)
    assert manifest.train.data.name == "pictures", "as it was asked for"
    assert manifest.data.paths == {"name": str((trained.parent / "pictures").resolve())}
    assert locate_data(manifest).name == str((trained.parent / "pictures").resolve())
    found = json.loads(command("evaluate", trained, "--json").stdout)
    assert found["accuracy"] == json.loads((trained / "result.json").read_text())["test"]["accuracy"]


def test_without_its_data_a_run_predicts_and_exports_and_the_rest_says_what_to_give(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another machine has: the run, and nothing else."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.parent, "sent")
    Path("sent/pictures").rename("elsewhere")
    config = json.loads(Path("sent/run/config.json").read_text())
    config["data"]["paths"] = {"name": "/another/machine/pictures"}
    Path("sent/run/config.json").write_text(json.dumps(config))
    picture = next(Path("elsewhere").rglob("*.png"))
    (found,) = json.loads(command("predict", "sent/run", picture, "--json").stdout)
    assert set(found["probabilities"]) == {"across", "disc", "down"}
    output = " ".join(command("export", "sent/run", "--int8").output.split())
    assert "(stored training images)" in output
    assert "the accuracy of int8 is not measured: /another/machine/pictures is no longer there" in output
    assert "ranges from 36 training images; the same answer for" in output
    assert Path("run.onnx").is_file()
    refused = command("evaluate", "sent/run", expect=1)
    assert "nor is pictures here: say where it is now with --data" in str(refused.exception)
    found = json.loads(command("evaluate", "sent/run", "--data", "elsewhere", "--json").stdout)
    assert found["accuracy"] == json.loads((trained / "result.json").read_text())["test"]["accuracy"]


def test_a_run_is_resumed_where_its_data_was_moved_to_and_ends_the_same(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", 12)
    config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=3, model="cnn-23k")
    train(config, tmp_path / "whole")
    with failing_at(5):
        train(config, tmp_path / "run")
    data.rename(tmp_path / "moved")
    refused = command("train", "--resume", tmp_path / "run", expect=1)
    assert str(refused.exception) == f"{data} is no longer there, nor is {data} here: say where it is now with --data"
    other = pictures(tmp_path / "other", 14)
    refused = command("train", "--resume", tmp_path / "run", "--data", other, expect=1)
    assert "are not those that" in str(refused.exception)
    command("train", "--resume", tmp_path / "run", "--data", tmp_path / "moved")
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_the_sample_is_of_training_images_as_the_network_sees_them(trained: Path) -> None:
    sample = read_sample(trained, SHAPE)
    assert sample is not None
    data = load_dataset(trained.parent / "pictures", "train", image_size=20)
    every = {bytes(image.flatten().tolist()) for image in data.images}
    assert len(sample) == 36
    assert {bytes(image.flatten().tolist()) for image in (sample * 255).round().byte()} == every


def test_a_sample_stays_small() -> None:
    assert sample_size((1, 28, 28)) == 512
    for shape in ((3, 32, 32), (3, 64, 64), (3, 128, 128)):
        assert sample_size(shape) * shape[0] * shape[1] * shape[2] <= 2 * 2**20
    assert sample_size((3, 512, 512)) == 16


def test_a_damaged_sample_is_refused_and_a_missing_one_is_not(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    file = RunDirectory(tmp_path / "run").sample_file
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"sample.safetensors is damaged .*; remove the file to do without it"):
        read_sample(tmp_path / "run", SHAPE)
    file.write_bytes(whole)
    with pytest.raises(RunError, match="does not hold images of 3x20x20: remove it"):
        read_sample(tmp_path / "run", (3, 20, 20))
    file.unlink()
    assert read_sample(tmp_path / "run", SHAPE) is None


def test_published_files_in_a_folder_of_ones_own_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registered data set is found by its name; the folder that its files are in, as any other."""
    manifest = read_manifest(Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "shortcut-fuzzy")
    data = {**manifest.asked["data"], "name": "affnist", "folder": "files"}
    object.__setattr__(manifest, "asked", {**manifest.asked, "data": data})
    object.__setattr__(manifest.data, "paths", {"folder": str(tmp_path / "files")})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"files is no longer there, nor is files here: put it back, or give --data affnist"
    ):
        locate_data(manifest)
    assert locate_data(manifest, "affnist").folder is None
    shown = locate_data(manifest, "pictures")
    assert (shown.name, shown.image_size) == ("pictures", 20), "as what it was trained on"
    (tmp_path / "files").mkdir()
    assert locate_data(manifest).folder == str(tmp_path / "files")
    assert locate_data(manifest).name == "affnist"


def test_a_run_written_before_paths_were_kept_uses_the_relative_one() -> None:
    manifest = read_manifest(Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "interrupted")
    assert manifest.data.paths == {}
    assert locate_data(manifest).name == "pictures"


def test_keeping_a_sample_does_not_change_what_is_trained(trained: Path, tmp_path: Path) -> None:
    """It is drawn by a generator of its own."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    data = load_dataset(trained.parent / "pictures", "train", image_size=20)
    from shortcaps.runs.sample import write_sample

    (tmp_path / "run").mkdir()
    write_sample(RunDirectory(tmp_path / "run"), data)
    assert torch.equal(torch.random.get_rng_state(), before)

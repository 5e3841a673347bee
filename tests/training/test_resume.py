"""A run killed at any moment goes on and ends with the very same weights. Real processes, really killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from shortcaps.errors import RunError
from shortcaps.losses import log_probability_loss
from shortcaps.runs.config import TrainConfig
from shortcaps.runs.directory import Checkpoint, RunDirectory
from shortcaps.training import loop
from shortcaps.training.loop import Trainer
from shortcaps.training.optimizer import make_optimizer
from shortcaps.training.run import train
from shortcaps.training.setup import make_network
from shortcaps.training.state import State
from tests.training.support import EVERY_EPOCH_IS_SAVED, finish, pictures, settings_file, shortcaps

# Patches that kill the process, or raise a signal in it, at a chosen moment.
AT_STEP = """
import os, signal
from shortcaps.training.loop import Trainer
original = Trainer.take_step
def take_step(self):
    result = original(self)
    if self.state.step == {step}:
        os.kill(os.getpid(), signal.{signal})
    return result
Trainer.take_step = take_step
"""
IN_VALIDATION = """
import os, signal
from shortcaps.training.loop import Trainer
original = Trainer.validation_error
def validation_error(self):
    if self.state.step == 2 * self.steps_per_epoch:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self)
Trainer.validation_error = validation_error
"""
WHILE_WRITING_TENSORS = """
import os, signal
from shortcaps.runs import directory as run
def save(tensors, **options):
    data = original(tensors, **options)
    saved.append(1)
    if len(saved) == 2:
        with open(folder + "/checkpoint-00000010.safetensors", "wb") as file:
            file.write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return data
folder = sys.argv[sys.argv.index("--out") + 1]
saved = []
original, run.to_safetensors = run.to_safetensors, save
"""
AFTER_THE_LAST_STEP = """
import os, signal
from shortcaps.training import run
def summarise(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
run.summarise = summarise
"""
BEFORE_THE_NOTE = """
import os, signal
from shortcaps.runs.directory import RunDirectory
original = RunDirectory.write_json
def write_json(self, name, content):
    if name.startswith("checkpoint-") and content["progress"]["step"] >= 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, name, content)
RunDirectory.write_json = write_json
"""
KILLS = {
    "SIGKILL in the middle of an epoch": (AT_STEP.format(step=7, signal="SIGKILL"), -signal.SIGKILL),
    "SIGTERM in the middle of an epoch": (AT_STEP.format(step=8, signal="SIGTERM"), 128 + signal.SIGTERM),
    "SIGINT in the middle of an epoch": (AT_STEP.format(step=12, signal="SIGINT"), 128 + signal.SIGINT),
    "SIGINT at the end of an epoch": (AT_STEP.format(step=10, signal="SIGINT"), 128 + signal.SIGINT),
    "SIGKILL in validation": (IN_VALIDATION, -signal.SIGKILL),
    "SIGKILL while a checkpoint is written": (WHILE_WRITING_TENSORS, -signal.SIGKILL),
    "SIGKILL in the final test": (AFTER_THE_LAST_STEP, -signal.SIGKILL),
    "SIGKILL before a checkpoint is valid": (BEFORE_THE_NOTE, -signal.SIGKILL),
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Pictures, settings and a run that nobody interrupted."""
    place = tmp_path_factory.mktemp("resume")
    data, settings = pictures(place / "pictures"), settings_file(place)
    finish(shortcaps("train", "--data", data, "--config", settings, "--out", place / "whole"))
    return data, settings, place / "whole"


def assert_same(run: Path, whole: Path) -> None:
    for name in ("model.safetensors", "checkpoint-00000020.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    without_speed = [
        [line.rsplit(",", 1)[0] for line in (place / "metrics.csv").read_text().splitlines()] for place in (run, whole)
    ]
    assert without_speed[0] == without_speed[1]


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_ends_with_the_same_weights(
    whole_run: tuple[Path, Path, Path], tmp_path: Path, moment: str
) -> None:
    data, settings, whole = whole_run
    patch, code = KILLS[moment]
    output = finish(
        shortcaps("train", "--data", data, "--config", settings, "--out", tmp_path / "run", patch=patch), expect=code
    )
    if code > 0:
        assert f"resume with: shortcaps train --resume {tmp_path / 'run'}" in output
    assert not (tmp_path / "run" / "result.json").exists()
    finish(shortcaps("train", "--resume", tmp_path / "run"))
    assert_same(tmp_path / "run", whole)


def test_a_run_killed_again_and_again_ends_with_the_same_weights(
    whole_run: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    data, settings, whole = whole_run
    arguments: list[object] = ["train", "--data", data, "--config", settings, "--out", tmp_path / "run"]
    for step in (3, 9, 17):
        patch = "import shortcaps.training.loop as loop\nloop.SECONDS_BETWEEN_CHECKPOINTS = 0\n"
        finish(shortcaps(*arguments, patch=patch + AT_STEP.format(step=step, signal="SIGKILL")), expect=-signal.SIGKILL)
        arguments = ["train", "--resume", tmp_path / "run"]
    output = finish(shortcaps(*arguments))
    assert "resuming after step 16 of 20" in output  # the checkpoint after the last step before the kill
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.05, 0.25])
def test_a_run_killed_from_outside_at_any_time_ends_with_the_same_weights(
    whole_run: tuple[Path, Path, Path], tmp_path: Path, delay: float
) -> None:
    data, settings, whole = whole_run
    process = shortcaps("train", "--data", data, "--config", settings, "--out", tmp_path / "run")
    while not (tmp_path / "run" / "config.json").exists():
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.communicate()
    finish(shortcaps("train", "--resume", tmp_path / "run"))
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_damaged_and_foreign_checkpoints_are_refused_and_the_previous_one_is_used(
    whole_run: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    data, settings, whole = whole_run
    run = tmp_path / "run"
    patch = EVERY_EPOCH_IS_SAVED + AT_STEP.format(step=17, signal="SIGKILL")
    finish(shortcaps("train", "--data", data, "--config", settings, "--out", run, patch=patch), expect=-signal.SIGKILL)
    newest = run / "checkpoint-00000015.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-5] ^= 1
    newest.write_bytes(damaged)
    other = tmp_path / "other"
    finish(shortcaps("train", "--data", data, "--config", settings, "--seed", 1, "--out", other))
    for suffix in ("json", "safetensors"):
        (run / f"checkpoint-00000020.{suffix}").write_bytes((other / f"checkpoint-00000020.{suffix}").read_bytes())
    output = finish(shortcaps("train", "--resume", run))
    assert "checkpoint-00000020.safetensors belongs to another run: not used" in output
    assert "checkpoint-00000015.safetensors is damaged (its checksum does not match): not used" in output
    assert "resuming after step 10 of 20" in output
    assert_same(run, whole)


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, [3, 15]), (-1.0, [3, 6, 9, 12, 15])])
def test_short_epochs_share_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    data = pictures(tmp_path / "pictures", per_class=8, size=28)
    config = TrainConfig.of(data=str(data), model="cnn-23k", epochs=5, batch_size=8)
    monkeypatch.setattr(loop, "SECONDS_OF_SHORT_EPOCHS", seconds)
    saved, save = [], Trainer.save
    monkeypatch.setattr(Trainer, "save", lambda trainer: (saved.append(trainer.state.step), save(trainer)))
    train(config, tmp_path / "run")
    assert saved == expected, "the first, so that a killed run has something, and the last"
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 6, "a row for each epoch all the same"


def test_a_run_that_goes_on_under_another_commit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.of(
        data=str(pictures(tmp_path / "pictures", per_class=8, size=28)), model="cnn-23k", epochs=1, batch_size=8
    )
    train(config, tmp_path / "run")

    def resumed() -> list[tuple[int, str]]:
        train(config, tmp_path / "run", resume=True)
        noted = json.loads((tmp_path / "run" / "result.json").read_text())["resumed"]
        return [(entry["after_step"], entry["environment"]["commit"]) for entry in noted]

    assert resumed() == []
    now = loop.describe_environment()
    monkeypatch.setattr(loop, "describe_environment", lambda: now | {"commit": "another"})
    assert resumed() == [(3, "another")]


def test_a_run_begun_anew_under_another_commit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.of(
        data=str(pictures(tmp_path / "pictures", per_class=8, size=28)), model="cnn-23k", epochs=1, batch_size=8
    )
    train(config, tmp_path / "run")
    for file in (tmp_path / "run").glob("checkpoint-*"):
        file.unlink()  # killed before the first
    now = loop.describe_environment()
    monkeypatch.setattr(loop, "describe_environment", lambda: now | {"commit": "another"})
    train(config, tmp_path / "run", resume=True)
    (noted,) = json.loads((tmp_path / "run" / "result.json").read_text())["resumed"]
    assert (noted["after_step"], noted["environment"]["commit"]) == (0, "another")


def test_a_run_is_not_resumed_with_other_images(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=8, size=28)
    config = TrainConfig.of(data=str(data), model="cnn-23k", epochs=1, batch_size=8)
    train(config, tmp_path / "run")
    next((data / "test").rglob("*.png")).unlink()
    train(config, tmp_path / "run", resume=True)  # what is tested on may change
    next((data / "val").rglob("*.png")).unlink()
    with pytest.raises(RunError, match=r"pictures \(validation\) are not those that .* was started with: restore them"):
        train(config, tmp_path / "run", resume=True)
    said = finish(shortcaps("evaluate", tmp_path / "run"))
    assert (
        "have changed since this network was trained: if pictures were moved there from another split, it may have been trained "
        "on some of them" in said
    )


def test_refused_checkpoints_do_not_push_out_good_ones(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step, digest in ((10, "ours"), (15, "ours"), (20, "another")):
        run.write_checkpoint(Checkpoint({"weights": torch.zeros(1)}, {"step": step}), digest)
    damaged = tmp_path / "checkpoint-00000015.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    run.write_checkpoint(Checkpoint({"weights": torch.ones(1)}, {"step": 12}), "ours")
    found, complaints = run.read_checkpoint("ours")
    assert found is not None
    assert found.progress["step"] == 12
    assert complaints == []


def test_a_run_whose_checkpoints_are_of_other_settings_is_not_begun_anew(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in (10, 15):
        run.write_checkpoint(Checkpoint({"weights": torch.zeros(1)}, {"step": step}), "with two processes")
    (tmp_path / "checkpoint-00000015.safetensors").write_bytes(b"damaged")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RunError, match=r"another number of processes .*: resume the run as it was started"):
        run.read_checkpoint("with four")
    assert sorted(tmp_path.iterdir()) == before
    for file in before:
        file.write_bytes(b"damaged")
    assert run.read_checkpoint("with two processes")[0] is None  # nothing is lost by beginning anew


def test_a_restored_optimiser_goes_on_as_if_nothing_had_happened_whatever_the_layout_of_weights() -> None:
    """Weights may lie channels last, checkpoints never do, and a fused optimiser goes through memory without a look at strides."""
    recipe = TrainConfig.of(model="compact-23k-plain").make_recipe()
    images, labels = torch.rand(8, 1, 12, 12), torch.arange(8)

    def begun() -> State:
        model = make_network({"name": "compact-23k-plain", "image_size": 12, "channels": 1, "classes": 8}, 0)
        return State(model, make_optimizer(model, recipe, torch.device("cpu")), recipe)

    def take_steps(state: State, count: int) -> None:
        for _ in range(count):
            state.optimizer.zero_grad()
            log_probability_loss(state.model(images), labels).backward()
            state.optimizer.step()

    whole, resumed = begun(), begun()
    take_steps(whole, 3)
    checkpoint = whole.to_checkpoint()
    as_saved = {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in checkpoint.tensors.items()
    }
    assert any(as_saved[name].stride() != tensor.stride() for name, tensor in checkpoint.tensors.items())
    resumed.restore(Checkpoint(as_saved, checkpoint.progress))
    for state in (whole, resumed):
        take_steps(state, 3)
    for name, tensor in whole.to_checkpoint().tensors.items():
        assert torch.equal(tensor, resumed.to_checkpoint().tensors[name]), name

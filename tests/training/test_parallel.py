"""Several processes compute what one computes, and one of them writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shortcaps.training.synced import synchronise_batch_norm
from tests.training.support import environment, finish, pictures, settings_file

SCRIPT = Path(__file__).with_name("dump_gradients.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def start(*command: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["fuzzy", "attention"])
def test_two_processes_with_half_the_batch_have_the_gradients_of_one_with_the_whole(
    tmp_path: Path, routing: str
) -> None:
    data = pictures(tmp_path / "pictures", 12)
    settings = settings_file(tmp_path, routing=routing, precision="64-true")
    settings.write_text(settings.read_text() + "dropout = 0\n")
    finish(start(sys.executable, SCRIPT, data, settings, tmp_path / "one.safetensors"))
    finish(start(*TORCHRUN, SCRIPT, data, settings, tmp_path / "two.safetensors"))
    one, two = load_file(tmp_path / "one.safetensors"), load_file(tmp_path / "two.safetensors")
    assert (int(one.pop("world size")), int(two.pop("world size"))) == (1, 2)
    for name, gradient in one.items():
        scale = gradient.abs().max().item()
        assert (two[name] - gradient).abs().max().item() <= 1e-6 * min(1.0, scale), name
    assert max(gradient.abs().max().item() for gradient in one.values()) > 1e-3


def test_batch_norm_over_processes_keeps_its_statistics_in_full_precision(tmp_path: Path) -> None:
    images = (torch.randn(16, 3, 5, 5) + 7).bfloat16()
    alone, synced = torch.nn.BatchNorm2d(3), torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    expected = alone(images)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        synchronise_batch_norm(synced)
        found = synced(images)
    finally:
        torch.distributed.destroy_process_group()
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(synced[0], name), getattr(alone, name), rtol=1e-5, atol=1e-6)


def assert_complete(run: Path, output: str) -> None:
    assert output.count("test accuracy on") == 1
    assert output.count("epoch 1 of 2") == 1
    assert (run / "report.html").is_file()
    assert len((run / "metrics.csv").read_text().splitlines()) == 3
    assert json.loads((run / "result.json").read_text())["test"]["images"] == 18


@pytest.mark.slow
def test_devices_2_trains_and_one_process_writes(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 12), settings_file(tmp_path, epochs=2)
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "shortcaps",
        "train",
        "--data",
        data,
        "--config",
        settings,
        "--devices",
        2,
        "--out",
        run,
    ]
    assert_complete(run, finish(start(*command)))


INTERRUPTED = """
import os, signal, sys
from shortcaps.training import loop
loop.SECONDS_BETWEEN_CHECKPOINTS = 0
original = loop.Trainer.take_step
def take_step(self):
    result = original(self)
    if self.state.step == 4 and self.fabric.global_rank == 1 and "--resume" not in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    return result
loop.Trainer.take_step = take_step
from shortcaps.cli import main
if __name__ == "__main__":
    main()
"""


def test_two_processes_stop_together_and_go_on_to_the_same_weights(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 24), settings_file(tmp_path, epochs=2)
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    common = ["train", "--data", data, "--config", settings, "--devices", 2, "--out"]
    finish(start(sys.executable, "-m", "shortcaps", *common, tmp_path / "whole"))
    process = start(sys.executable, script, *common, tmp_path / "run")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert output.count("resume with: shortcaps train --resume") == 1, output
    assert "resuming after step 4 of 6" in finish(start(sys.executable, script, "train", "--resume", tmp_path / "run"))
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.slow
def test_torchrun_trains_and_one_process_writes(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 12), settings_file(tmp_path, epochs=2)
    run = tmp_path / "run"
    command = ["-m", "shortcaps", "train", "--data", data, "--config", settings, "--out", run]
    assert_complete(run, finish(start(*TORCHRUN, *command)))


def test_synced_batch_norm_is_batch_norm_in_one_process(tmp_path: Path) -> None:
    from shortcaps.training.synced import SyncedBatchNorm2d

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        images = torch.randn(6, 3, 4, 5, dtype=torch.float64)
        plain, synced = torch.nn.BatchNorm2d(3).double(), SyncedBatchNorm2d(3).double()
        results = []
        for norm in (plain, synced):
            given = images.clone().requires_grad_()
            result = norm(given)
            (result * torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)).sum().backward()
            results.append([result, given.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected)
    finally:
        torch.distributed.destroy_process_group()

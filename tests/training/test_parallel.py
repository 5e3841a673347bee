"""Several processes compute what one computes, and one of them writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import shortcaps
from shortcaps.data import load_dataset
from shortcaps.inference.evaluate import evaluate
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.training.synced import SyncedBatchNorm2d, synchronise_batch_norm
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


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """A process group that has this process only."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_batch_norm_over_processes_keeps_its_statistics_in_full_precision() -> None:
    images = (torch.randn(16, 3, 5, 5) + 7).bfloat16()
    alone, synced = torch.nn.BatchNorm2d(3), torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    expected = alone(images)
    synchronise_batch_norm(synced)
    found = synced(images)
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
import atexit, os, signal, sys
import torch
# In one write: what print writes piece by piece is mixed with what the other processes say.
atexit.register(lambda: os.write(1, f"in a group at the end: {torch.distributed.is_initialized()}\\n".encode()))
os.cpu_count = lambda: 4
from shortcaps.training import loop
loop.SECONDS_BETWEEN_CHECKPOINTS = 0
original = loop.Trainer.take_step
def take_step(self):
    result = original(self)
    if self.state.step == 4 and self.fabric.global_rank == 1 and sys.argv[-1].endswith("/run") and "--resume" not in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    return result
loop.Trainer.take_step = take_step
from shortcaps.cli import main
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "processes", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_processes_stop_together_and_go_on_to_the_same_weights(tmp_path: Path, processes: int) -> None:
    data, settings = pictures(tmp_path / "pictures", 24), settings_file(tmp_path, epochs=2)
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    common = ["train", "--data", data, "--config", settings, "--devices", processes, "--out"]
    output = finish(start(sys.executable, script, *common, tmp_path / "whole"))
    # A process that ends in a group may be taken down by the group's threads.
    assert output.count("in a group at the end: False") == processes, output
    process = start(sys.executable, script, *common, tmp_path / "run")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert output.count("resume with: shortcaps train --resume") == 1, output
    assert "resuming after step 4 of 6" in finish(start(sys.executable, script, "train", "--resume", tmp_path / "run"))
    for name in ("model.safetensors", "checkpoint-00000006.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
def test_torchrun_trains_and_one_process_writes(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 12), settings_file(tmp_path, epochs=2)
    run = tmp_path / "run"
    command = ["-m", "shortcaps", "train", "--data", data, "--config", settings, "--out", run]
    assert_complete(run, finish(start(*TORCHRUN, *command)))


@pytest.mark.usefixtures("group_of_one")
def test_synced_batch_norm_is_batch_norm_in_one_process() -> None:
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


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    "settings",
    [{"affine": False}, {"momentum": None}, {"track_running_stats": False}],
    ids=lambda found: next(iter(found)),
)
def test_every_kind_of_batch_norm_is_synced(settings: dict[str, object]) -> None:
    plain = torch.nn.BatchNorm2d(3, **settings)  # type: ignore[arg-type]
    synced = torch.nn.Sequential(torch.nn.BatchNorm2d(3, **settings))  # type: ignore[arg-type]
    synchronise_batch_norm(synced)
    for _ in range(3):
        images = torch.randn(6, 3, 4, 5) + 2
        torch.testing.assert_close(synced(images), plain(images))
    for ours, expected in zip(synced.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, expected)


SHARED_TEST = """
import atexit, pathlib, sys, time
from shortcaps.training import loop, run
place = pathlib.Path(sys.argv[-1]).parent
original, write_report = loop.class_activations, run.write_report
def class_activations(model, data, *, part, parts, **options):
    atexit.register((place / f"left-{part}").touch)
    found = original(model, data, part=part, parts=parts, batch_size=4, **options)
    (place / f"shown-{part}").write_text(str(int(found.any(1).sum())))
    return found
def report_at_leisure(*arguments):
    began = time.monotonic()
    while not (place / "left-1").exists():
        assert time.monotonic() - began < 60, "the second process waits for the report"
        time.sleep(0.05)
    return write_report(*arguments)
loop.class_activations, run.write_report = class_activations, report_at_leisure
from shortcaps.cli import main
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_processes_share_the_final_test_and_none_waits_for_the_report(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 12), settings_file(tmp_path, epochs=1)
    script, run = tmp_path / "shared.py", tmp_path / "run"
    script.write_text(SHARED_TEST)
    finish(start(sys.executable, script, "train", "--data", data, "--config", settings, "--devices", 2, "--out", run))
    # Batches 0, 2 and 4, of four, four and two images; batches 1 and 3.
    assert [(tmp_path / f"shown-{rank}").read_text() for rank in (0, 1)] == ["10", "8"]
    images = load_dataset(data, "test", image_size=20)
    alone = evaluate(shortcaps.load(run), images, batch_size=4)
    assert json.loads((run / "result.json").read_text())["test"] == alone.to_dict()
    answers = StoredAnswers.read(run / "answers.npz")
    assert torch.equal(answers.predicted, alone.activations.argmax(1))
    assert torch.equal(answers.labels, images.labels)


LOSS_OF_ONE = """
import sys, torch
from shortcaps.training.watch import Watch
original = Watch.check_numbers
def check_numbers(self, step, loss, images):
    # Its gradients are finite: no exchange of them tells the others.
    bad = self.fabric.global_rank == 1 and step == 2
    return original(self, step, loss + torch.inf if bad else loss, images)
Watch.check_numbers = check_numbers
from shortcaps.cli import main
if __name__ == "__main__":
    main()
"""


def test_a_loss_that_is_not_finite_in_one_process_ends_all(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 24), settings_file(tmp_path, epochs=2)
    script, run = tmp_path / "one.py", tmp_path / "run"
    script.write_text(LOSS_OF_ONE)
    command = ["train", "--data", data, "--config", settings, "--devices", 2, "--out", run]
    output = finish(start(sys.executable, script, *command), expect=1)
    assert "the loss is not a number at step 2 (epoch 1, batch 2), first seen in another process" in output
    assert "first seen in the backward pass" in output  # of the process itself, where the layers were all right
    assert "Traceback" not in output
    assert (run / "last-good.safetensors").is_file()


EXCHANGE = """
import sys, torch, torch.distributed as dist
from shortcaps.training.replicas import average_gradients, share_buffers
rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(sys.argv[2], 2))
model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1, bias=False) for name in ("both", "second", "none")})
model["frozen"] = torch.nn.Linear(2, 1, bias=False).requires_grad_(False)
model["norm"] = torch.nn.BatchNorm1d(2, affine=False)
model["both"].weight.grad = torch.tensor([[1.0, 2.0]]) * (rank + 1)
if rank:
    model["second"].weight.grad = torch.tensor([[4.0, 8.0]])
model["norm"].running_mean.fill_(rank + 5)
average_gradients(model)
share_buffers(model)
print({name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()})
print(model["norm"].running_mean.tolist())
dist.barrier()
dist.destroy_process_group()  # as `Replicas` does: a process that ends within its group is aborted, once in some hundred times
"""


@pytest.mark.slow
def test_a_parameter_that_only_some_processes_use_has_a_gradient_in_all(tmp_path: Path) -> None:
    processes = [start(sys.executable, "-c", EXCHANGE, rank, tmp_path / "store") for rank in (0, 1)]
    gradients = {
        "both.weight": [[1.5, 3.0]],
        "second.weight": [[2.0, 4.0]],
        "none.weight": None,
        "frozen.weight": None,
    }
    for process in processes:
        assert finish(process).splitlines() == [str(gradients), "[5.0, 5.0]"]

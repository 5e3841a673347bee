"""Whatever fails around a run, it is never left in a state that it cannot be resumed from, and ends with the very same weights."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shortcaps import files
from shortcaps.errors import DataError, RunError, RunFault
from shortcaps.training import TrainConfig, loop, run, train
from tests.training.support import finish, pictures, settings_file, shortcaps

LAST = "checkpoint-00000004.safetensors"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    data = pictures(tmp_path_factory.mktemp("faults") / "pictures", 4, size=28)
    return TrainConfig.of(data=str(data), model="cnn-23k", batch_size=6, epochs=2)  # two steps each


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step, and a report without its plots."""

    def write_report(folder: Path, *_: Any) -> None:
        with files.atomic_write(folder / "report.html") as file:
            file.write(b"a report")

    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(run, "write_report", write_report)


@pytest.fixture(scope="module")
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    place = tmp_path_factory.mktemp("whole") / "run"
    train(config, place)
    return place


def assert_resumes(config: TrainConfig, place: Path, whole: Path) -> None:
    """What is there is resumed; before there is a run, the same command starts it."""
    train(config, place, resume=(place / "config.json").exists())
    for name in ("model.safetensors", LAST):
        assert (place / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(place.glob(".*.part"))
    for name in ("result.json", "answers.npz", "report.html"):
        assert (place / name).is_file()


class Fault:
    """Counts the calls of functions that change files in a folder, and fails at one of them, or from one on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.at, self.lasting, self.code = str(folder), -1, False, errno.ENOSPC
        self.calls = 0
        for owner, name in ((tempfile, "mkstemp"), (os, "fsync"), (os, "replace"), (os, "unlink")):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            place = options.get("dir", arguments[0] if arguments else "")
            if isinstance(place, int):
                place = os.readlink(f"/proc/self/fd/{place}")
            if str(place).startswith(self.folder):
                self.calls += 1
                if self.calls == self.at or (self.lasting and self.calls > self.at > 0):
                    raise OSError(self.code, os.strerror(self.code), str(place))
            return function(*arguments, **options)

        return call


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are found where Linux keeps them")
@pytest.mark.parametrize(
    ("code", "lasting"),
    [(errno.ENOSPC, True), (errno.EROFS, True), (errno.EIO, False)],
    ids=["the disk is full", "the folder becomes read-only", "one call fails"],
)
def test_a_run_whose_files_cannot_be_changed_from_any_moment_on_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainConfig, whole: Path, code: int, lasting: bool
) -> None:
    with monkeypatch.context() as patch:
        counted = Fault(patch, tmp_path / "counted")
        train(config, tmp_path / "counted")
    assert counted.calls > 40
    # One call in three for each fault, another third for each, so that all are covered between them.
    for n in range(1 + [errno.ENOSPC, errno.EROFS, errno.EIO].index(code), counted.calls + 1, 3):
        place = tmp_path / str(n)
        with monkeypatch.context() as patch:
            fault = Fault(patch, place)
            fault.at, fault.lasting, fault.code = n, lasting, code
            with pytest.raises(RunFault, match=os.strerror(code)):
                train(config, place)
        assert_resumes(config, place, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB: enough for a checkpoint, not for a run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def test_a_run_on_a_disk_that_is_full_or_read_only_is_resumed_when_it_no_longer_is(
    small_disk: Path, config: TrainConfig, whole: Path
) -> None:
    place = small_disk / "run"
    with pytest.raises(RunFault, match="No space left on device"):
        train(config, place)
    with pytest.raises(RunFault, match="No space left on device"):
        train(config, place, resume=True)
    assert not list(place.glob(".*.part"))
    remount(small_disk, "ro")
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    with pytest.raises(RunError, match="cannot be written to"):
        train(config, place, resume=True)
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    remount(small_disk, "rw,size=64m")
    assert_resumes(config, place, whole)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_run_whose_images_cannot_be_read_is_resumed_when_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainConfig, whole: Path, split: str
) -> None:
    def stop(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    place = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "end_epoch", stop)
        with pytest.raises(RunFault):
            train(config, place)
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    picture = next((Path(config.data.name) / split).rglob("*.png"))
    content = picture.read_bytes()
    picture.write_bytes(content[:50])
    try:
        with pytest.raises(DataError, match=picture.name):
            train(config, place, resume=True)
    finally:
        picture.write_bytes(content)
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    assert_resumes(config, place, whole)


@pytest.mark.parametrize(
    "clock",
    [lambda n: -1e6 * n, lambda n: 1e9 * n, lambda n: (-1) ** n * 1e9, lambda n: 0.0],
    ids=["backwards", "ahead", "to and fro", "standing still"],
)
def test_jumps_of_the_clock_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainConfig, whole: Path, clock: Callable[[int], float]
) -> None:
    calls = iter(range(10**9))
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + clock(next(calls)))
        # A coarse monotonic clock may stand still for an epoch.
        patch.setattr(time, "monotonic", lambda: 5.0)
        patch.setattr(loop.Trainer, "end_epoch", _interrupted_after_an_epoch(loop.Trainer.end_epoch))
        with pytest.raises(RunFault):
            train(config, tmp_path / "run")
    assert_resumes(config, tmp_path / "run", whole)


def _interrupted_after_an_epoch(original: Callable[..., None]) -> Callable[..., None]:
    def end_epoch(self: loop.Trainer, epoch: int, speed: float) -> None:
        original(self, epoch, speed)
        raise OSError(errno.EIO, "Input/output error")

    return end_epoch


STOPPED = """
import os, signal
from shortcaps.training.loop import Trainer
original = Trainer.take_step
def take_step(self):
    result = original(self)
    if self.state.step == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return result
Trainer.take_step = take_step
"""


@pytest.mark.slow
def test_a_run_that_is_stopped_and_continued_ends_with_the_same_weights(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures", 12), settings_file(tmp_path)
    common = ["train", "--data", data, "--config", settings, "--out"]
    finish(shortcaps(*common, tmp_path / "undisturbed"))
    process = shortcaps(*common, tmp_path / "run", patch=STOPPED)
    # Whether it stops or ends. Only its state is asked for: it stays a child that `finish` can wait for.
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    time.sleep(0.5)
    process.send_signal(signal.SIGCONT)
    assert state.si_status == signal.SIGSTOP
    finish(process)
    first, second = ((tmp_path / place / "model.safetensors").read_bytes() for place in ("undisturbed", "run"))
    assert first == second

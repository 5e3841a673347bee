"""Files are whole or not there, what killed processes left goes, and JSON is JSON."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shortcaps.data.cache import fits_checksum, only_one_process, read_checked
from shortcaps.errors import RunError
from shortcaps.files import atomic_write, read_json, remove_leftovers, sha256_of, to_json, write_json
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.weights import read_header

WRITER = """
import sys, time
from pathlib import Path
from shortcaps.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def age(file: Path, seconds: float) -> None:
    os.utime(file, (time.time() - seconds,) * 2)


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / name)], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            if name == "dead":
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                continue
            parts = {file.name.split(".")[1]: file for file in tmp_path.glob(".*.part")}
            assert set(parts) == {"dead", "alive"}
            remove_leftovers(tmp_path)
            assert parts["dead"].exists()  # too young to tell
            for part in parts.values():
                age(part, 7 * 24 * 3600)
            remove_leftovers(tmp_path)
            assert (parts["dead"].exists(), parts["alive"].exists()) == (False, True)
            writer.kill()


@pytest.mark.parametrize("place", ["run", "cache"])
def test_leftovers_go_where_somebody_begins_to_write(tmp_path: Path, place: str) -> None:
    left = tmp_path / ".model.safetensors.abc.part"
    left.write_bytes(b"half")
    age(left, 3600)
    if place == "run":
        run = RunDirectory(tmp_path)
        run.claim(resume=False)
        run.release()
    else:
        with only_one_process(tmp_path):
            pass
    assert not left.exists()


def test_json_holds_no_number_that_json_does_not_have(tmp_path: Path) -> None:
    numbers = {"a": [math.nan, 1.0, (math.inf, {"b": -math.inf})]}
    write_json(tmp_path / "x.json", numbers)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert found == {"a": [None, 1.0, [None, {"b": None}]]} == json.loads(to_json(numbers))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 50_000, "[" * 60 + "]" * 60])
def test_what_is_no_json_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"not JSON|too large|too deeply"):
        read_json(tmp_path / "x.json")


def test_a_checksum_that_is_no_text_is_a_checksum_that_does_not_match(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "file") as file:
        file.write(b"content")
    (tmp_path / "file.sha256").write_bytes(b"\xff\xfe")
    assert not fits_checksum(tmp_path / "file")
    assert read_checked(tmp_path / "file") is None


def test_a_json_file_of_any_size_takes_no_more_memory_than_its_limit(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no room
    with pytest.raises(ValueError, match="it has more than 16,777,216 bytes"):
        read_json(tmp_path / "x.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no pipes with names")
@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would take for ever."""
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, sha256_of):
        with pytest.raises(OSError, match="it is not a regular file"):
            read(tmp_path / "pipe")
    for read, kind in ((read_header, ValueError), (StoredAnswers.read, RunError)):
        with pytest.raises(kind, match="it is not a regular file"):
            read(tmp_path / "pipe")
    (tmp_path / "pipe.sha256").write_text("0" * 64)
    assert not fits_checksum(tmp_path / "pipe")
    assert read_checked(tmp_path / "pipe") is None
    os.mkfifo(tmp_path / ".x.part")
    age(tmp_path / ".x.part", 3600)
    remove_leftovers(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("checkpoint-00000003.json", "checkpoint-00000003.safetensors"):
        os.mkfifo(tmp_path / "run" / name)
    found, complaints = RunDirectory(tmp_path / "run").read_checkpoint("ours")
    assert found is None
    assert "it is not a regular file" in complaints[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are found where Linux keeps them")
def test_the_name_of_a_file_is_on_the_disk_when_it_is_said_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a loss of power could leave a note without the checkpoint that it is about."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def noted_replace(source: str, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_json(tmp_path / "x.json", {})
    assert done[1:] == ["replace", str(tmp_path)]
    assert done[0].startswith(str(tmp_path / ".x.json."))


def test_a_folder_that_leads_out_of_a_run_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "run" / "events").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="events is a link to another folder: remove it"):
        RunDirectory(tmp_path / "run").claim(resume=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_that_leads_out_of_a_run_leaves_what_it_leads_to_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="cannot be written to"):
        RunDirectory(tmp_path / "run").claim(resume=False)
    assert (tmp_path / "mine").read_text() == "precious"

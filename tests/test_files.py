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
from shortcaps.files import atomic_write, read_json, remove_leftovers, to_json, write_json
from shortcaps.runs.directory import RunDirectory

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


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 50_000])
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

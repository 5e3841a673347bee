"""A server in a process of its own, and what can be seen of it from outside. Shared by `server.py` and `soak.py`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUN = "mnist-baseline-fuzzy"


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address."""
    command = [sys.executable, "-m", "shortcaps", "serve", RUN, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "the server says where it is"
        yield process, found[0]
    finally:
        process.terminate()
        process.wait()


def resident_megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> list[int]:
    """Processes that it started, and that those started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def is_running(pid: int) -> bool:
    """Whether it does anything: who has ended may wait for its parent, or for init, to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write_section(file: Path, name: str, found: dict[str, Any]) -> None:
    """Put one section into a record that has others."""
    record = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**record, name: found}, indent=2) + "\n")

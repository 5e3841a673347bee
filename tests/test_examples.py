"""The examples run as they stand: each asserts itself what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("route_votes.py", ""),
        ("capsule_head.py", ""),
        ("own_routing.py", "the server takes a picture of a disc for: disc"),
    ],
)
def test_an_example_runs(name: str, says: str, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout
    assert says in said.stdout

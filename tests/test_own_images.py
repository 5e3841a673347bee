"""The commands of README's "Your own images", as they stand there, on fewer pictures and for fewer epochs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shortcaps.client import Client
from tests.serve.support import serving

ROOT = Path(__file__).parents[1]
LESS = {"draw_photos.py": ["--count", "60"], "train": ["--epochs", "2"]}


def readme_commands() -> list[list[str]]:
    """The commands of the section, each as its words."""
    section = (ROOT / "README.md").read_text("utf-8").split("\n## Your own images\n")[1].split("\n## ")[0]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [shlex.split(line) for line in block[1].splitlines()]


def test_there_are_pictures_to_draw_and_five_commands() -> None:
    draw, *commands = readme_commands()
    assert draw[:2] == ["python", "examples/draw_photos.py"]
    assert [command[:2] for command in commands] == [
        ["shortcaps", name] for name in ("data", "train", "explain", "export", "serve")
    ]
    documented = (ROOT / "docs" / "own-images.md").read_text("utf-8")
    assert all(shlex.join(command) in documented for command in (draw, *commands))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_folder_becomes_a_served_exported_and_explained_network(tmp_path: Path) -> None:
    draw, *commands, serve = readme_commands()
    for program, *words in (draw, *commands):
        start = [ROOT / words.pop(0)] if program == "python" else ["-m", "shortcaps"]
        less = next((more for name, more in LESS.items() if name in (str(start[0]).split("/")[-1], *words)), [])
        said = subprocess.run(
            [sys.executable, *start, *words, *less],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        if "train" in words:
            assert "were left out" in said.stdout + said.stderr, "broken pictures are counted"
    assert (tmp_path / "photos-sheet.png").is_file()
    assert (tmp_path / "runs/photos/report.html").is_file()
    assert list(tmp_path.glob("explained-*/*.html"))
    assert list(tmp_path.glob("**/*.onnx"))
    with serving(run=str(tmp_path / serve[2])) as (address, _):
        boat, broken, tree = "boats/0003.png", "houses/0007.jpg", "trees/0002.png"
        answers = list(Client(address).predict_many(tmp_path / "photos" / name for name in (boat, broken, tree)))
        assert set(answers[0].probabilities) == {"boats", "houses", "trees"}
        assert answers[0].answer
        assert answers[2].answer
        assert (answers[1].problem or "").startswith("the picture is broken")

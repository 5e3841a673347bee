"""The documentation keeps up with the package: every public name is described, and the notebooks run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shortcaps

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_every_public_name_stands_in_the_reference() -> None:
    described = {
        name
        for page in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    missing = {f"shortcaps.{name}" for name in shortcaps.__all__} - described
    assert not missing, f"add them to a page in docs/api: {sorted(missing)}"


def test_every_page_and_notebook_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    for page in [*pages, *(f"notebooks/{notebook.stem}.md" for notebook in NOTEBOOKS)]:
        assert re.search(rf"(- |: ){re.escape(page)}$", navigation, re.M), f"{page} is not in the nav of mkdocs.yml"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_is_kept_without_outputs(notebook: Path, tmp_path: Path) -> None:
    content = json.loads(notebook.read_text("utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)
    said = subprocess.run(
        [sys.executable, ROOT / "notebooks" / "execute.py", notebook],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert "data:image/png;base64," in said.stdout
    assert list(tmp_path.iterdir()) == [], "a notebook leaves nothing behind"


def test_a_notebook_that_fails_says_in_which_cell(tmp_path: Path) -> None:
    broken = tmp_path / "broken.ipynb"
    cells = [{"cell_type": kind, "source": [text]} for kind, text in (("markdown", "# A"), ("code", "x = 1\nx / 0"))]
    broken.write_text(json.dumps({"cells": cells}))
    said = subprocess.run(
        [sys.executable, ROOT / "notebooks" / "execute.py", broken], capture_output=True, text=True, check=False
    )
    assert said.returncode == 1
    assert "broken.ipynb, cell 1" in said.stderr
    assert "ZeroDivisionError" in said.stderr

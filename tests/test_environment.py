"""What a record says about the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shortcaps import environment


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_is_this_packages_own_and_no_other_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "project" / ".venv" / "shortcaps" / "environment.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("first\n")
    monkeypatch.setattr(environment, "__file__", str(installed))
    assert environment.describe_environment()["commit"] == "-"
    git(tmp_path / "project", "init", "--quiet")
    git(tmp_path / "project", "commit", "--quiet", "--allow-empty", "--message", "theirs")
    assert environment.describe_environment()["commit"] == "-"
    git(tmp_path / "project", "add", "--force", ".")
    git(tmp_path / "project", "commit", "--quiet", "--message", "ours")
    commit = git(tmp_path / "project", "rev-parse", "--short=12", "HEAD").strip()
    assert environment.describe_environment()["commit"] == commit
    installed.write_text("second\n")
    assert environment.describe_environment()["commit"] == f"{commit} with changes"

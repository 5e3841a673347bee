"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shortcaps.cli import app, main
from shortcaps.errors import DataError
from shortcaps.pretrained import find_run
from tests.data.test_folder import tree


def run(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from shortcaps.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert result.returncode == expect, result.stderr
    return result


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What the command prints in this process, on both streams, when it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["shortcaps", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_data_prepares_a_folder_and_draws_a_sheet(tmp_path: Path) -> None:
    tree(tmp_path / "pets")
    result = run(
        "data", "show", str(tmp_path / "pets"), "--out", str(tmp_path / "sheet.png"), "--colour", "--image-size", "20"
    )
    assert "pets, train: 24 images, 3x20x20, 3 classes" in result.stdout
    assert (tmp_path / "sheet.png").is_file()


def test_what_the_package_logs_stands_beside_the_results(tmp_path: Path) -> None:
    tree(tmp_path / "pets")
    (tmp_path / "pets" / "cats" / "torn.png").write_bytes(b"not a picture")
    result = run("data", str(tmp_path / "pets"), "--skip-broken")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"1 image of {tmp_path / 'pets'} (train) was left out: ")
    assert len(result.stdout.splitlines()) == 3


def test_a_mistake_gets_one_line_and_exit_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run("data", "mnits", expect=2)
    assert result.stderr.startswith("shortcaps: unknown data set 'mnits': choose one of affnist, ")
    assert len(result.stderr.strip().splitlines()) == 1
    for arguments, said in (
        (("data", "mnist", "solids"), "give one data set, not 2"),
        (("data", "show"), "give one data set, not none, e.g. `shortcaps data show mnist`\n"),
    ):
        printed, line = refused(monkeypatch, capsys, *arguments)
        assert line.startswith(f"shortcaps: {said}")
        assert printed == ""


def test_a_mistake_in_usage_gets_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (("trian",), "no such command 'trian'. Did you mean 'train'? (see `shortcaps --help`)"),
        (("train", "--epoks", "3"), "no such option: --epoks"),
        (("train", "--epochs", "many"), "invalid value for '--epochs': "),
        (("predict",), "missing argument 'RUN' (see `shortcaps predict --help`)"),
        (("reproduce", "table1", "--seeds", "0"), "invalid value for '--seeds': "),
    ):
        _, line = refused(monkeypatch, capsys, *arguments)
        assert line.startswith(f"shortcaps: {said}")
        assert line.count("\n") == 1
    printed, _ = refused(monkeypatch, capsys)
    assert "Usage:" in printed


def test_help_fits_eighty_columns_and_has_examples() -> None:
    commands = ["data", "train", "recipe", "evaluate", "predict", "explain", "export", "serve", "bench"]
    commands += [f"reproduce {name}" for name in ("table1", "compact", "table2", "complexity", "figures")]
    for command in commands:
        text = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}).stdout
        assert f"shortcaps {command}" in text.split("Examples")[1]
        assert max(map(len, text.splitlines())) <= 80
    assert run("--version").stdout.startswith("shortcaps ")


def test_evaluate_looks_for_files_where_training_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published affNIST stays in the user's folder; without it a regenerated set would take its place."""
    run_of_old = tmp_path / "run"
    shutil.copytree(find_run("mnist-baseline-fuzzy"), run_of_old)
    config = json.loads((run_of_old / "config.json").read_text())
    config["train"] |= {"data": "affnist", "folder": "/mnt/affnist"}
    (run_of_old / "config.json").write_text(json.dumps(config))
    asked: list[dict[str, object]] = []

    def load_dataset(name: str, *rest: str, **options: object) -> None:
        asked.append({"name": name, **options})
        raise DataError("seen enough")

    monkeypatch.setattr("shortcaps.cli.evaluate.load_dataset", load_dataset)
    for more in ([], ["--data", "mnist"], ["--folder", "/other"]):
        CliRunner().invoke(app, ["evaluate", str(run_of_old), *more])
    assert [(call["name"], call.get("folder")) for call in asked] == [
        ("affnist", "/mnt/affnist"),
        ("mnist", None),
        ("affnist", "/other"),
    ]


@pytest.mark.slow
def test_what_is_not_installed_is_named() -> None:
    def without(module: str, program: str) -> subprocess.CompletedProcess[str]:
        program = f"import sys; sys.modules[{module!r}] = None\n{program}"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)

    said = without("typer", "from shortcaps.__main__ import main; main()")
    assert said.returncode == 1
    assert said.stderr.startswith("shortcaps: the command line needs typer, which is not installed: pip install")
    serve = "from shortcaps.cli import main; sys.argv[1:] = ['serve', 'mnist-baseline-fuzzy']; main()"
    said = without("uvicorn", serve)
    assert said.returncode == 1
    assert said.stderr == "shortcaps: this needs uvicorn, which is not installed: pip install 'shortcaps[all]'\n"
    said = without("filelock", "import shortcaps; shortcaps.list_datasets(); shortcaps.load_dataset('mnist')")
    assert "DataError: the cache needs filelock, which is not installed: pip install 'shortcaps" in said.stderr
    said = without("safetensors", "import shortcaps; shortcaps.load('mnist-baseline-fuzzy')")
    assert "loading a network needs safetensors, which is not installed: pip install 'shortcaps[use]'" in said.stderr

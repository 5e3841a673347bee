"""Names of files and classes are shown as they are, whatever they hold, and refused at the start where that is impossible."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from shortcaps.__main__ import main
from shortcaps.cli.app import console
from shortcaps.data import load_dataset
from shortcaps.errors import DataError, RunFault
from shortcaps.inference.predict import Predictor
from shortcaps.runs.directory import read_manifest
from tests.training.support import pictures

OLD = Path(__file__).parent / "fixtures" / "runs-0.1" / "shortcut-fuzzy"
NAMES = ["[a] :car:", "[/b]", "[bold]c[/bold]"]


def run_with_names(folder: Path) -> Path:
    """A run whose classes are called like rich's markup."""
    shutil.copytree(OLD, folder)
    config = read_manifest(OLD).to_json()
    config["data"]["class_names"] = NAMES
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def shortcaps(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["shortcaps", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code


def test_markup_in_names_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with_names(tmp_path / "run")
    data = tmp_path / "[red]pictures"
    for split in ("train", "val", "test"):
        for name in NAMES:
            place = data / split / name.replace("/", "%")
            place.mkdir(parents=True)
            for number in range(4):
                Image.new("L", (20, 20), 60 * number).save(place / f"[x]{number}.png")
    monkeypatch.chdir(tmp_path)
    # So wide that no name is folded, whatever the terminal was like when the console was made.
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(console, "_height", 50)
    shortcaps(monkeypatch, "predict", run, data.name)
    printed = capsys.readouterr().out
    assert "[red]pictures/train/[a] :car:/[x]0.png" in printed
    assert any(name in re.sub(r"\S+png", "", printed) for name in NAMES)
    shortcaps(monkeypatch, "data", "show", data.name)
    assert "[red]pictures, test: 12 images" in (printed := capsys.readouterr().out)
    assert "contact sheet: [red]pictures-sheet.png" in printed
    config = json.loads((run / "config.json").read_text())
    config["data"]["class_names"] = sorted(name.replace("/", "%") for name in NAMES)
    (run / "config.json").write_text(json.dumps(config))
    shortcaps(monkeypatch, "evaluate", run, "--data", data.name, "--image-size", 20)
    printed = capsys.readouterr().out
    assert "[a] :car:" in printed
    assert "[bold]c[%bold]" in printed


def test_a_class_folder_whose_name_is_not_utf_8_is_refused_at_the_start(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", 4)
    for split in data.iterdir():
        os.mkdir(os.path.join(os.fsencode(split), b"caf\xe9"))
    with pytest.raises(DataError, match=re.escape("has a class folder whose name is not UTF-8 (caf\\xe9): rename it")):
        load_dataset(data, "train")


def test_a_terminal_obeys_nothing_in_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a stranger's run or picture: a new title of the window, a cleared screen, a line that is read from right to left."""
    shutil.copytree(OLD, tmp_path / "run")
    config = read_manifest(OLD).to_json()
    config["data"]["class_names"] = [f"{letter}\x1b[2J\u202ecba" for letter in "abc"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    Image.new("L", (20, 20)).save(tmp_path / "a\x1b]0;owned\x07.png")
    (tmp_path / "b\x9b2J.png").write_bytes(b"no picture")
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(console, "_height", 50)
    monkeypatch.setattr(sys, "argv", ["shortcaps", "predict", str(tmp_path / "run"), str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert "\\x1b[2J\\u202ecba" in printed.out
    assert "a\\x1b]0;owned\\x07.png" in printed.out
    assert "b\\x9b2J.png: not an image" in printed.err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed.out + printed.err)


def test_a_class_whose_name_no_encoding_has_is_shown_with_an_escape(tmp_path: Path) -> None:
    """JSON may hold half a character, and 0.1 wrote such names of folders."""
    shutil.copytree(OLD, tmp_path / "run")
    config = read_manifest(OLD).to_json()
    config["data"]["class_names"] = ["a", "caf\udce9", "\ud800"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert Predictor(tmp_path / "run").class_names == ("a", "caf\\udce9", "\\ud800")


def test_a_picture_whose_name_is_not_utf_8_is_classified(tmp_path: Path) -> None:
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9.png")
    with open(name, "wb") as file:
        Image.new("L", (20, 20)).save(file, "PNG")
    for option in ([], ["--csv"], ["--json"]):
        command = [sys.executable, "-m", "shortcaps", "predict", str(OLD), name, *option]
        answer = subprocess.run(command, capture_output=True, check=True)  # type: ignore[arg-type]
        assert b"caf\\udce9.png" in answer.stdout


def test_an_answer_that_is_not_a_number_is_an_error_and_not_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    predictor = Predictor(OLD)
    monkeypatch.setattr(predictor.network, "forward", lambda images: torch.full((len(images), 3), math.nan))
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    with pytest.raises(RunFault, match="gives an answer that is not a number"):
        list(predictor.predict([tmp_path / "a.png"]))

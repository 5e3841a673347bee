"""A routing of one's own in a file: trained, resumed, evaluated, asked, exported and served by name, if the user names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.errors import RunError
from shortcaps.plugins import load_plugin
from tests.training.support import finish, pictures, settings_file, shortcaps

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_routing.py"
PARTS = """
import torch, shortcaps
from shortcaps.recipes import RECIPES

@shortcaps.register_loss("squares")
def squares(activations, labels, *, epoch):
    return (activations - torch.nn.functional.one_hot(labels, activations.shape[1])).square().sum(1).mean()

shortcaps.register_recipe("brief", RECIPES["fast"].recipe.changed({"loss": "squares", "epochs": 1}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plug-in file and a run that was trained with it from the command line."""
    place = tmp_path_factory.mktemp("plugin")
    plugin = Path(shutil.copy(EXAMPLE, place / "mine.py"))
    data, settings = pictures(place / "pictures", 12), settings_file(place, epochs=2)
    arguments = (
        "--data",
        data,
        "--config",
        settings,
        "--plugin",
        plugin,
        "--routing",
        "nearest",
        "--out",
        place / "run",
    )
    finish(shortcaps("train", *arguments))
    return plugin, place / "run"


def test_the_run_names_the_plugin_and_the_routing(run: tuple[Path, Path]) -> None:
    plugin, path = run
    config = json.loads((path / "config.json").read_text())
    assert config["plugins"] == [str(plugin)]
    assert config["network"]["routing"] == "nearest"


@pytest.mark.slow
def test_every_command_takes_the_run_with_the_plugin(run: tuple[Path, Path], tmp_path: Path) -> None:
    plugin, path = run
    picture = next((path.parent / "pictures" / "test" / "disc").iterdir())
    evaluated = json.loads(finish(shortcaps("evaluate", "--plugin", plugin, path, "--json")))
    tested = json.loads((path / "result.json").read_text())["test"]
    assert evaluated["accuracy"] == tested["accuracy"]
    answers = json.loads(finish(shortcaps("predict", "--plugin", plugin, path, picture, "--json")))
    assert set(answers[0]["activations"]) == {"across", "disc", "down"}
    finish(shortcaps("export", "--plugin", plugin, path, "--out", tmp_path / "own.onnx"), timeout=120)
    assert (tmp_path / "own.onnx").is_file()
    finish(shortcaps("train", "--plugin", plugin, "--resume", path))


@pytest.mark.parametrize("command", [("evaluate",), ("predict", "picture.png"), ("serve",), ("export",)])
def test_without_it_the_error_says_which_is_missing_and_nothing_of_it_runs(
    run: tuple[Path, Path], command: tuple[str, ...]
) -> None:
    plugin, path = run
    output = finish(shortcaps(command[0], path, *command[1:]), expect=2)
    assert "unknown routing 'nearest'" in output
    assert f"it is loaded only if you name it: --plugin {plugin}" in " ".join(
        output.replace("and is loaded", "it is loaded").split()
    )
    assert len(output.strip().splitlines()) == 1


def test_a_network_is_used_without_the_plugin_that_only_trained_it(tmp_path: Path) -> None:
    """The recipe and loss of one's own are needed to train, not to ask the network."""
    plugin = tmp_path / "parts.py"
    plugin.write_text(PARTS)
    data, settings = pictures(tmp_path / "pictures", 8), settings_file(tmp_path)
    settings.write_text(settings.read_text().replace("epochs = 4\n", ""))
    arguments = ("--data", data, "--config", settings, "--recipe", "brief", "--no-adapt", "--out", tmp_path / "run")
    assert "unknown recipe 'brief'" in finish(shortcaps("train", *arguments), expect=2)
    finish(shortcaps("train", "--plugin", plugin, *arguments))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["recipe"]["loss"], config["recipe"]["epochs"]) == ("squares", 1)
    picture = next((data / "test" / "disc").iterdir())
    assert json.loads(finish(shortcaps("predict", tmp_path / "run", picture, "--json")))
    output = finish(shortcaps("train", "--resume", tmp_path / "run"), expect=2)
    assert f"--plugin {plugin}" in output


def test_a_package_in_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package_of_mine").mkdir()
    (tmp_path / "a_package_of_mine" / "__init__.py").write_text("from pathlib import Path\nPath('loaded').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugin("a_package_of_mine")
    assert (tmp_path / "loaded").exists()


@pytest.mark.parametrize("line", ["data = 5", 'data = ["a"]', "start = 5", 'data = "a\\u0000b"'])
def test_settings_that_name_no_data_are_refused_in_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "settings.toml").write_text(line + "\n")
    result = CliRunner().invoke(
        app, ["train", "--config", str(tmp_path / "settings.toml"), "--out", str(tmp_path / "run")]
    )
    assert isinstance(result.exception, RunError), result.output
    assert "should be a name or a path" in str(result.exception)

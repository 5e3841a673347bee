"""Settings: the same by name from the command line, a TOML file and Python; mistakes are named in one line."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shortcaps.cli import app
from shortcaps.cli.settings import spelling
from shortcaps.errors import RunError
from shortcaps.runs.config import FLAGS, SECTIONS, DataConfig, OptimConfig, RunConfig, TrainConfig, read_settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": "3"}, "epochs '3' should be a valid integer"),
        ({"epochs": 2.5}, "epochs 2.5 should be a valid integer"),
        ({"epochs": True}, "epochs True should be a valid integer"),
        ({"epochs": 0}, "epochs 0 should be greater than or equal to 1"),
        ({"max_images": -3}, "max_images -3 should be greater than or equal to 1"),
        ({"lr": 0}, "lr 0 should be greater than 0"),
        ({"shortcut": "no"}, "shortcut 'no' should be a valid boolean"),
        ({"network": 3}, "settings 3 should be a valid dictionary"),
        ({"epoch": 3}, "unknown setting 'epoch': did you mean epochs? choose from"),
        (
            {"routing": "fuzzi"},
            "unknown routing 'fuzzi': choose one of attention, dynamic, em, fuzzy (did you mean fuzzy?)",
        ),
        ({"model": "cnn-23k", "routing": "em"}, "cnn-23k has neither routing nor shortcut: leave them out"),
        ({"precision": "16"}, "unknown precision '16': choose one of 32-true"),
        ({"loss": "square"}, "unknown loss 'square': choose one of log-odds, log-probability"),
        ({"data": "a\0b"}, "data 'a\\x00b' cannot be the path of anything"),
        ({"data": "\ud800"}, "data '\\ud800' cannot be the path of anything"),
        ({"folder": "a\0b"}, "folder 'a\\x00b' cannot be the path of anything"),
        ({"data_options": {"image_size": "big"}}, "image_size is a setting of its own: give it there"),
        ({"lr": float("nan")}, "lr nan should be a finite number"),
        ({"lr": float("inf")}, "lr inf should be a finite number"),
        (
            {"network": {"routing_settings": {"sharpness": float("nan")}}},
            "setting routing_settings.sharpness is wrong: nan",
        ),
        ({"network": {"backbone_settings": {"slope": float("inf")}}}, "setting backbone_settings.slope is wrong: inf"),
        ({"batch_size": 9, "devices": 2}, "batch_size 9 cannot be divided among 2 devices"),
    ],
)
def test_a_mistake_is_named_with_its_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        TrainConfig.of(**values)
    assert len(str(caught.value).splitlines()) == 1


def test_sections_check_themselves() -> None:
    with pytest.raises(RunError, match="epochs 0 should be greater"):
        OptimConfig(epochs=0)
    with pytest.raises(RunError, match="unknown setting 'colors': did you mean colour"):
        DataConfig(colors=True)  # type: ignore[call-arg]


def test_no_two_settings_share_a_name_on_the_command_line() -> None:
    assert len(FLAGS) == sum(len(fields(section)) for section in SECTIONS.values())


def test_a_config_survives_json() -> None:
    config = TrainConfig.of(data="affnist", routing="em", lr=0.5, seed=3, network={"passes": 1})
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.differences(TrainConfig.of(data="affnist", routing="em", lr=0.5)) == ["network", "seed"]


def test_toml_holds_settings_by_their_flags_or_in_tables(tmp_path: Path) -> None:
    flat, nested = tmp_path / "flat.toml", tmp_path / "nested.toml"
    flat.write_text('data = "affnist"\nbatch-size = 32\nseed = 4\n[network]\npasses = 1\n')
    nested.write_text(
        '[data]\nname = "affnist"\n[optim]\nbatch-size = 32\n[run]\nseed = 4\n[model.settings]\npasses = 1\n'
    )
    first, second = (TrainConfig.of(**read_settings(file)) for file in (flat, nested))
    assert first == second
    assert (first.data.name, first.optim.batch_size, first.run) == ("affnist", 32, RunConfig(seed=4))
    assert first.model.settings == {"passes": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "unknown setting 'epoch': did you mean epochs?"),
        ("[optim]\nepoch = 3", "[optim]: unknown setting 'epoch': did you mean epochs?"),
        ("epochs 3", "is not a TOML file"),
        (f"epochs = {'9' * 5000}", "is not a TOML file"),
        ("epochs = " + "[" * 5000, "is not a TOML file: it is nested too deeply"),
        ("lr = '\udcff'", "is not a TOML file"),
    ],
)
def test_mistakes_in_a_toml_file_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "my.toml"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        read_settings(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_every_setting_that_fits_on_a_command_line_is_an_option_of_train() -> None:
    text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).stdout
    for name, flag in FLAGS.items():
        is_table = flag.field.default_factory is dict
        assert (f"{spelling(name)} " in text) != is_table, name
        help_text = str(flag.field.metadata["help"])
        assert is_table or help_text[1:20] in text, "its help is the field's own"


def test_an_augmentation_is_asked_for_by_name_and_contradicts_a_placement() -> None:
    config = TrainConfig.of(augment="photos")
    assert config.make_recipe().augment == "photos"
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert TrainConfig().make_recipe().augment is None
    with pytest.raises(RunError, match=r"unknown augmentation 'photo'.*did you mean photos"):
        TrainConfig.of(augment="photo")
    with pytest.raises(RunError, match="augment digits and placement anywhere contradict each other: give one of them"):
        TrainConfig.of(augment="digits", placement="anywhere")

"""Data sets describe themselves: what a spec says is true, and a set of one's own is as good as one that comes along."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import shortcaps
from shortcaps.cli import app
from shortcaps.data import (
    DATASETS,
    PROTOCOLS,
    SPLITS,
    Dataset,
    affnist,
    find_spec,
    list_datasets,
    load_dataset,
    register_dataset,
    smallnorb,
)
from shortcaps.data.cache import cache_folder, write_checksum
from shortcaps.data.fetch import Mirror
from shortcaps.errors import DataError
from shortcaps.inference.predict import Predictor
from shortcaps.inference.prepare import Preparation
from shortcaps.reproduce.cells import all_cells, choose_cells, columns
from shortcaps.runs.manifest import Manifest
from shortcaps.training import TrainConfig, train
from tests.data.fakes import fake_cifar10, fake_mnist, few_solids, forget_afterwards
from tests.data.test_folder import tree
from tests.data.test_norb import small_matrices

OWN = sorted(name for name in DATASETS if DATASETS.origin(name) is None)


@pytest.fixture
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small fake of every set, in the published formats."""
    fake_mnist(tmp_path / "mnist", monkeypatch)
    fake_cifar10(tmp_path / "cifar10", monkeypatch)
    monkeypatch.setattr(affnist, "MIRROR", Mirror("http://127.0.0.1:9"))  # nobody listens there
    monkeypatch.setattr(smallnorb, "MIRRORS", ())
    few_solids(monkeypatch)
    for part, kind, data in small_matrices((0, 8), (0, 10)):
        file = cache_folder() / "smallnorb" / smallnorb.FILES[part][kind].name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        write_checksum(file)


@pytest.mark.parametrize("name", OWN)
def test_a_spec_tells_the_truth_about_its_images(small_sets: None, name: str) -> None:
    spec = DATASETS[name]
    assert spec.name == name
    assert spec.label
    assert spec.description
    assert not any(character.isupper() for character in spec.description[0]), "it follows a colon in lists"
    for original in (spec.stand_in_for, spec.replica_of):
        assert original is None or original in DATASETS
    for protocol in PROTOCOLS:
        for split in SPLITS:
            data = load_dataset(name, split, protocol)
            assert data.image_shape == (spec.channels, *spec.image_size)
            told = DATASETS[data.name]
            assert name in (told.name, told.replica_of)
            assert (data.bright_on_dark, data.centred_digits) == (told.bright_on_dark, told.centred_digits)
            assert data.caveats == told.caveats(protocol)
            if spec.bright_on_dark:
                assert int(data.images[..., 0].median()) == 0, "the rim is black but for a stroke here and there"


@pytest.mark.parametrize("name", OWN)
def test_a_protocol_leaks_where_it_changes_what_validates(small_sets: None, name: str) -> None:
    default, paper = (load_dataset(name, "validation", protocol).images for protocol in ("default", "paper"))
    assert "default" not in DATASETS[name].leaks
    assert ("paper" in DATASETS[name].leaks) == (not torch.equal(default, paper))


@pytest.mark.parametrize("name", OWN)
def test_a_set_takes_the_options_it_names_and_no_other(small_sets: None, name: str) -> None:
    values = {"camera": "stereo", "viewpoints": "familiar"}
    options = {option: values[option] for option in DATASETS[name].options}
    changed = load_dataset(name, "test", **options)
    assert bool(options) == (changed.image_shape != load_dataset(name, "test").image_shape)
    for option in values.keys() - options.keys():
        with pytest.raises(DataError, match=f"the data set {name} has no option '{option}'"):
            load_dataset(name, "test", **{option: values[option]})


def test_the_replica_has_a_name_of_its_own_and_gives_way_to_the_published_files(
    small_sets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = DATASETS["affnist-regenerated"]
    fallen_back = load_dataset("affnist", "test")
    assert fallen_back.name == "affnist-regenerated"
    assert fallen_back.caveats == replica.notes
    assert not replica.original_is_here()

    published = torch.full((64, 1, 40, 40), 9, dtype=torch.uint8), torch.arange(64) % 10
    (cache_folder() / "affnist").mkdir()
    (cache_folder() / "affnist" / "test.mat").touch()
    monkeypatch.setattr(affnist, "read_published", lambda split, folder: published)
    assert replica.original_is_here()
    assert torch.equal(load_dataset("affnist", "test").images, published[0])
    assert load_dataset("affnist", "test").caveats == ()
    assert torch.equal(load_dataset("affnist-regenerated", "test").images, fallen_back.images)
    assert {load_dataset("affnist-regenerated", split).name for split in SPLITS} == {"affnist-regenerated"}


def test_a_folder_is_no_data_set_that_happens_to_have_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    data = load_dataset("./mnist", "test", colour=True)
    assert (data.image_shape, data.bright_on_dark, data.centred_digits, data.caveats) == ((3, 28, 28), False, False, ())
    assert find_spec("somewhere/photos").options == (
        *("image_size", "colour", "fit", "skip_broken", "group_by", "image_memory"),
    )
    with pytest.raises(DataError, match="has no option 'color': did you mean colour"):
        load_dataset("./mnist", "test", color=True)


def test_runs_say_how_pictures_are_prepared_and_specs_answer_for_those_of_old() -> None:
    def prepared(name: str, **more: object) -> tuple[bool, bool]:
        data = {"name": name, "label": name, "protocol": "default", "class_names": ["a", "b"], **more}
        recipe = {"epochs": 1, "batch_size": 1, "lr": 0.1, "schedule": "", "loss": "", "routing_settings": {}}
        stored = {"format": 1, "train": {}, "recipe": recipe, "environment": {}, "data": data}
        found = Preparation.of_run(Manifest.from_json({**stored, "network": {"image_size": 28, "channels": 1}}))
        assert found.stored_size == (28, 28)
        return found.bright_on_dark, found.digits

    assert prepared("mnist") == prepared("affnist") == prepared("affnist-regenerated") == (True, True)
    assert prepared("fashion-mnist") == (True, False)
    assert prepared("solids") == prepared("smallnorb-azimuth") == prepared("my/photos") == (False, False)
    said = {"bright_on_dark": True, "centred_digits": False}
    assert prepared("mnist", preparation=said) == prepared("of a plug-in", preparation=said) == (True, False)


NOTE = "Stripes are drawn, not photographed."


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of one's own, in memory."""
    forget_afterwards(monkeypatch)

    @register_dataset(
        "stripes",
        image_size=20,
        bright_on_dark=True,
        notes=[NOTE],
        stand_in_for="mnist",
        leaks={"paper": "The test validates."},
    )
    def load(split: str, protocol: str, *, width: int = 3) -> Dataset:
        """white stripes on black"""
        generator = torch.Generator().manual_seed(SPLITS.index(split))
        images = torch.zeros((48, 1, 20, 20), dtype=torch.uint8)
        for n, place in enumerate(torch.randint(20 - width, (48,), generator=generator).tolist()):
            part = images[n, 0].T if n % 2 else images[n, 0]
            part[place : place + width] = 255
        return Dataset("whatever", "stripes", split, protocol, images, torch.arange(48) % 2, ("across", "down"))


def test_a_set_of_ones_own_is_loaded_by_name_and_carries_what_its_spec_says(stripes: None) -> None:
    assert "stripes" in list_datasets("str*") == shortcaps.list_datasets("*ipes")
    data = shortcaps.load_dataset("stripes", "test", "paper")
    assert data.name == "stripes", "whatever its loader calls it"
    assert (data.bright_on_dark, data.centred_digits) == (True, False)
    assert data.caveats == (NOTE, "The test validates.")
    assert int(load_dataset("stripes", width=5).images[0].sum()) == 255 * 5 * 20
    assert DATASETS["stripes"].options == ("width",)
    assert DATASETS["stripes"].description == "white stripes on black"
    with pytest.raises(DataError, match=re.escape("the data set stripes has no option 'folder': it takes width")):
        load_dataset("stripes", folder=".")
    with pytest.raises(DataError, match=r"unknown data set 'strips': .*did you mean stripes"):
        load_dataset("strips")


def test_a_set_of_ones_own_can_be_looked_at_trained_on_and_used(stripes: None, tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["data", "stripes"]).stdout
    assert "stripes, train: 48 images, 1x20x20, 2 classes" in listed

    small = {"capsule_channels": (2, 3, 2), "backbone_settings": {"width": 4}}
    result = train(
        TrainConfig.of(data="stripes", protocol="paper", epochs=1, batch_size=24, network=small), tmp_path / "run"
    )
    assert result is not None
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["data"]
    assert (stored["bright_on_dark"], stored["centred_digits"]) == (True, False)
    report = (tmp_path / "run" / "report.html").read_text()
    assert NOTE in report
    assert "The test validates." in report
    evaluated = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--json"]).stdout
    assert json.loads(evaluated)["accuracy"] == pytest.approx(result.test.accuracy)
    assert Predictor(tmp_path / "run").preparation.bright_on_dark


def test_a_stand_in_of_ones_own_has_cells_beside_the_papers(stripes: None) -> None:
    assert columns() == ("mnist", "affnist", "smallnorb", "solids", "solids-small", "stripes")
    assert len(choose_cells("*/shortcut/*/stripes", all_cells())) == 8


def test_what_cannot_be_registered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_afterwards(monkeypatch)
    with pytest.raises(ValueError, match="there is already a data set called 'mnist'"):
        register_dataset("mnist", image_size=28)(lambda split, protocol: None)
    with pytest.raises(ValueError, match="leaks names an unknown protocol 'papr': choose from default, paper"):
        register_dataset("other", image_size=28, leaks={"papr": "all of it"})
    register_dataset("pair", image_size=28)(lambda split, protocol: (1, 2))
    with pytest.raises(TypeError, match="the loader of pair returned a tuple: it must return a Dataset"):
        load_dataset("pair")


def test_the_package_offers_data_sets_without_importing_them_first() -> None:
    assert shortcaps.load_dataset is load_dataset
    assert shortcaps.register_dataset is register_dataset
    assert set(shortcaps.__all__) <= set(dir(shortcaps))
    with pytest.raises(AttributeError, match="module 'shortcaps' has no attribute 'load_data'"):
        _ = shortcaps.load_data

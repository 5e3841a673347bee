"""`shortcaps.train` with objects: a network and data sets instead of names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import shortcaps
from shortcaps.data import Dataset
from shortcaps.errors import DataError, RunError
from shortcaps.models import Network
from shortcaps.runs.directory import read_manifest
from shortcaps.runs.located import locate_data
from shortcaps.runs.weights import read_tensors
from shortcaps.training import TrainConfig
from shortcaps.training import train as train_config
from shortcaps.training.objects import _splits
from tests.training.support import failing_at

TINY = {"backbone_settings": {"widths": (4, 4), "strides": (2, 2)}}
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 12, "show": False}


def stripes(count: int = 60, split: str = "train", **more: Any) -> Dataset:
    """Stripes across or down, on noise."""
    generator = torch.Generator().manual_seed(len(split))
    images = torch.randint(0, 60, (count, 1, 16, 16), generator=generator)
    labels = torch.arange(count) % 2
    images[labels == 0, :, ::4] += 180
    images[labels == 1, :, :, ::4] += 180
    return Dataset("stripes", "stripes", split, "default", images.to(torch.uint8), labels, ("across", "down"), **more)


def network(**settings: Any) -> Network:
    torch.manual_seed(0)
    return shortcaps.create_model("compact-23k", classes=2, image_size=16, **TINY, **settings)


def test_a_network_is_trained_in_place_and_leaves_a_run(tmp_path: Path) -> None:
    model = network(routing=shortcaps.Fuzzy(sharpness=2.0))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = shortcaps.train(
        model, stripes(), stripes(20, "validation"), stripes(20, "test"), out=tmp_path / "run", **{**QUICK, "epochs": 1}
    )
    assert result is not None
    assert result.test.count == 20
    first = read_tensors(tmp_path / "run" / "checkpoint-00000000.safetensors")
    assert all(torch.equal(first[f"model.{name}"], tensor) for name, tensor in before.items()), "it began with these"
    images = torch.rand(3, 1, 16, 16)
    again = shortcaps.load(tmp_path / "run")
    assert torch.equal(again(images), model.eval()(images))
    assert not torch.equal(model.state_dict()["backbone.layers.0.0.weight"], before["backbone.layers.0.0.weight"])
    assert model.class_names == ("across", "down")
    assert isinstance(again, shortcaps.CapsuleNetwork)
    assert again.routing == shortcaps.Fuzzy(sharpness=2.0), "the network's, not the recipe's"


def test_a_run_is_trained_further_as_it_was_trained(tmp_path: Path) -> None:
    parts = stripes(), stripes(20, "validation"), stripes(20, "test")
    shortcaps.train(network(), *parts, out=tmp_path / "first", **{**QUICK, "epochs": 1, "lr": 1e-3, "loss": "margin"})
    shortcaps.train(tmp_path / "first", *parts, out=tmp_path / "further", epochs=1)
    recipe = read_manifest(tmp_path / "further").recipe
    assert recipe.loss == "margin"
    assert recipe.lr == pytest.approx(1e-4)


def test_splits_are_told_by_their_names_and_not_by_their_order(tmp_path: Path) -> None:
    parts = {"test": stripes(20, "test"), "train": stripes(), "validation": stripes(24, "validation")}
    config = TrainConfig.of(data="stripes", model="compact-23k-plain", epochs=1)
    result = train_config(config, tmp_path / "run", splits=parts)
    assert result is not None
    assert result.test.count == 20
    with pytest.raises(RunError, match="splits train, test should be train, validation, test"):
        train_config(config, tmp_path / "other", splits={name: parts[name] for name in ("train", "test")})


def test_it_resumes_bit_exactly_with_the_same_images(tmp_path: Path) -> None:
    parts = stripes(), stripes(20, "validation"), stripes(20, "test")
    shortcaps.train(network(), *parts, out=tmp_path / "whole", **QUICK)
    with failing_at(3):
        shortcaps.train(network(), *parts, out=tmp_path / "run", **QUICK)
    model = network()
    torch.nn.init.zeros_(model.state_dict()["backbone.layers.0.0.weight"])  # what it begins with is in the run
    with pytest.raises(RunError, match="are not those that"):
        shortcaps.train(model, stripes(48), *parts[1:], out=tmp_path / "run", resume=True, **QUICK)
    shortcaps.train(model, *parts, out=tmp_path / "run", resume=True, **QUICK)
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    with pytest.raises(DataError, match=r"the images \(stripes\) were given in Python, and cannot be loaded by name"):
        locate_data(read_manifest(tmp_path / "run"))


def test_a_run_resumes_only_as_it_was_started(tmp_path: Path) -> None:
    parts = stripes(), stripes(20, "validation"), stripes(20, "test")
    run = tmp_path / "run"
    with failing_at(3):
        shortcaps.train(network(), *parts, out=run, **QUICK)

    def refused(message: str, model: Any, **settings: Any) -> None:
        before = {file.name for file in run.iterdir()}
        with pytest.raises(RunError, match=message) as caught:
            shortcaps.train(model, *parts, out=run, resume=True, show=False, **settings)
        assert "\n" not in str(caught.value)
        assert {file.name for file in run.iterdir()} == before, "nothing was trained"

    other = shortcaps.create_model("compact-68k", classes=2, image_size=16)
    refused("the network has name compact-68k, but that of .*run has compact-23k: create it alike", other)
    refused("the network has routing em, but that of .*run has", network(routing="em"))
    refused(r"epochs 50 is not what .*run was started with \(2\): leave it out, or start another", network(), epochs=50)
    refused(r"lr 0.5 is not what .*run was started with \(None\)", network(), lr=0.5)
    refused("model compact-68k is not what", "compact-68k")
    refused("unknown setting 'epoch'", network(), epoch=3)
    trained = shortcaps.save(network(), tmp_path / "saved", class_names=("across", "down"))
    refused("run did not begin with the weights of .*saved: give the run it began with", trained)
    assert shortcaps.train("compact-23k", *parts, out=run, resume=True, show=False, network=TINY) is not None
    shortcaps.train(trained, *parts, out=tmp_path / "further", **QUICK)
    assert shortcaps.train(trained, *parts, out=tmp_path / "further", resume=True, show=False) is not None


def test_a_name_is_created_for_the_images_and_a_run_is_trained_further(tmp_path: Path) -> None:
    shortcaps.train("compact-23k", stripes(), out=tmp_path / "run", network=TINY, **QUICK)
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.network["image_size"], manifest.network["classes"], manifest.origin) == (16, 2, None)
    renamed = replace(stripes(), class_names=("rows", "columns"))
    shortcaps.train(tmp_path / "run", renamed, out=tmp_path / "further", freeze="backbone", **QUICK)
    origin = read_manifest(tmp_path / "further").origin
    assert origin is not None
    assert origin.run == str((tmp_path / "run").resolve())
    assert origin.made_anew[-1] == "head.shortcuts.0.beta"
    before, after = (read_tensors(tmp_path / name / "model.safetensors") for name in ("run", "further"))
    assert torch.equal(before["backbone.layers.0.0.weight"], after["backbone.layers.0.0.weight"])


def test_a_tenth_each_is_held_out_and_originals_stay_together() -> None:
    parts = _splits(stripes(), None, None)
    assert [len(part) for part in parts.values()] == [48, 6, 6]
    grouped = stripes(originals=torch.arange(60) // 3)
    held = _splits(grouped, None, None)
    seen = [set(part.originals.tolist()) for part in held.values() if part.originals is not None]
    assert [len(originals) for originals in seen] == [16, 2, 2]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    copied = stripes(hashes=(torch.arange(60) // 2)[:, None].to(torch.uint8).expand(60, 32))
    kept = [
        set(part.hashes.flatten().tolist()) for part in _splits(copied, None, None).values() if part.hashes is not None
    ]
    assert [len(hashes) for hashes in kept] == [24, 3, 3], "copies too"
    given = _splits(stripes(), None, stripes(20, "test"))
    assert [len(part) for part in given.values()] == [54, 6, 20]


def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    def refused(message: str, model: Any, data: Any = None, **settings: Any) -> None:
        with pytest.raises(RunError, match=message) as caught:
            shortcaps.train(model, stripes() if data is None else data, out=tmp_path / "run", **{**QUICK, **settings})
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    other = shortcaps.create_model("compact-23k", classes=3, image_size=16, **TINY)
    refused("the network has 3 classes, but stripes has 2: create it with classes=2", other)
    colour = shortcaps.create_model("compact-23k", classes=2, image_size=16, channels=3, **TINY)
    refused("stripes has images of 1x16x16, but the network takes 3x16x16", colour)
    refused("unknown network 'compact-32k'.*did you mean compact-23k.*or give a Network or a run", "compact-32k")
    refused("a Linear is not a Network", torch.nn.Linear(2, 2))
    refused("train_data is a list: give a Dataset", network(), [1, 2])
    refused("8 images are too few to hold some out: give validation_data and test_data", network(), stripes(8))
    refused("routing is a setting of the network, which was given: leave it out", network(), routing="em")
    asked = {"per_class": 5, "image_size": 32, "colour": True, "draw": 1, "max_images": 3, "protocol": "paper"}
    for name, value in {**asked, "camera": "left", "group_by": "x", "data_options": {"a": 1}}.items():
        refused(f"{name} goes with data sets by name, but the images were given", network(), **{name: value})
    refused("there are no images for validation: give some as validation_data", network(), validation_data=stripes(0))
    refused("there are no images for test: give some as test_data", network(), test_data=stripes(0))
    refused("unknown setting 'epoch': did you mean epochs", network(), epoch=3)

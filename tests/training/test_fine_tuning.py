"""A run may begin with the network of another: what is kept of it, what is made anew, what stays frozen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import shortcaps as package
from shortcaps.errors import RunError
from shortcaps.recipes import find_recipe
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.weights import read_tensors
from shortcaps.training import TrainConfig, train
from shortcaps.training.start import settings_from, tensors_of_classes
from tests.training.support import failing_at, finish, pictures, shortcaps

SMALL = {"backbone_settings": {"widths": [4, 6], "strides": [2, 2]}}
CLASSES_OWN = ["head.pose_weight", "head.pose_bias", "head.shortcuts.0.transform", "head.shortcuts.0.beta"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on three classes, beside pictures of two of them."""
    place = tmp_path_factory.mktemp("source")
    data = pictures(place / "three", 8)
    for split in ("train", "val", "test"):
        for name in ("across", "disc"):
            shutil.copytree(data / split / name, place / "two" / split / name)
    settings: dict[str, Any] = {"model": "compact-23k", "network": SMALL, "image_size": 20, "batch_size": 12}
    train(TrainConfig.of(data=str(data), epochs=2, **settings), place / "run")
    return place / "run"


def config(source: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.of(**settings_from(source, {"epochs": 2, **settings}))


def first_weights(run: Path) -> dict[str, Tensor]:
    """What a run began with, of its checkpoint before the first step."""
    tensors = read_tensors(run / "checkpoint-00000000.safetensors")
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[str]:
    return {name for name in one if one[name].shape != other[name].shape or not torch.equal(one[name], other[name])}


def test_a_finished_run_is_extended_as_a_new_one_that_says_where_it_began(source: Path, tmp_path: Path) -> None:
    train(config(source, epochs=1), tmp_path / "run")
    kept = read_tensors(source / "model.safetensors")
    assert differing(kept, first_weights(tmp_path / "run")) == set()
    origin = read_manifest(tmp_path / "run").origin
    assert origin is not None
    assert origin.run == str(source.resolve())
    assert origin.sha256 in (source / "model.safetensors").read_bytes().decode("latin-1")
    assert (origin.trained_on, origin.kept, origin.made_anew) == ("three", len(kept), [])
    assert origin.epochs == json.loads((source / "result.json").read_text())["best_epoch"]
    assert f"Training began with the weights of {source.resolve()}, three, after" in (
        (tmp_path / "run" / "report.html").read_text()
    )
    assert read_manifest(source).origin is None


def test_for_other_classes_the_tensors_of_the_classes_are_made_anew_and_all_others_kept(
    source: Path, tmp_path: Path
) -> None:
    output = finish(
        shortcaps("train", "--from", source, "--data", source.parent / "two", "--epochs", 1, "--out", tmp_path / "run")
    )
    before = read_tensors(source / "model.safetensors")
    assert f"{len(before) - 4} tensors kept; made anew: {', '.join(CLASSES_OWN)}" in output
    assert differing(before, first_weights(tmp_path / "run")) == set(CLASSES_OWN)
    model = package.load(tmp_path / "run")
    assert (model.class_names, model.image_size, model.channels) == (("across", "disc"), (20, 20), 1)


def test_as_many_classes_of_other_names_are_other_classes(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source.parent / "three", tmp_path / "renamed")
    for split in ("train", "val", "test"):
        (tmp_path / "renamed" / split / "disc").rename(tmp_path / "renamed" / split / "dot")
    train(config(source, data=str(tmp_path / "renamed"), epochs=1), tmp_path / "run")
    origin = read_manifest(tmp_path / "run").origin
    assert origin is not None
    assert origin.made_anew == CLASSES_OWN


@pytest.mark.parametrize("name", package.list_models())
def test_every_network_has_tensors_that_belong_to_the_classes_and_others(name: str) -> None:
    network = {"name": name, "image_size": 28, "channels": 1, "classes": 3}
    found = tensors_of_classes(network)
    with torch.device("meta"):
        every = package.create_model(**network).state_dict()
    assert 0 < len(found) < len(every)
    for tensor in found:
        assert 3 in every[tensor].shape or every[tensor].numel() % 3 == 0


def test_a_frozen_backbone_keeps_its_weights_and_statistics_while_the_rest_learns(source: Path, tmp_path: Path) -> None:
    train(config(source, freeze="backbone"), tmp_path / "run")
    changed = differing(
        read_tensors(source / "model.safetensors"), read_tensors(tmp_path / "run" / "model.safetensors")
    )
    assert not any(name.startswith("backbone.") for name in changed)
    assert "head.primary.0.convolution.weight" in changed
    train(config(source), tmp_path / "free")
    changed = differing(
        read_tensors(source / "model.safetensors"), read_tensors(tmp_path / "free" / "model.safetensors")
    )
    assert "backbone.layers.0.1.running_mean" in changed


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_began_with_another_resumes_bit_exactly_without_that_one(
    source: Path, tmp_path: Path, step: int
) -> None:
    """Before the first epoch has ended, only the checkpoint of the beginning has the weights."""
    begun = tmp_path / "begun with"
    shutil.copytree(source, begun)
    chosen = config(begun, data=str(source.parent / "two"), freeze="backbone", epochs=3)
    train(chosen, tmp_path / "whole")
    with failing_at(step):
        train(chosen, tmp_path / "run")
    shutil.rmtree(begun)
    train(chosen, tmp_path / "run", resume=True)
    for name in ("model.safetensors", "checkpoint-00000006.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_whose_first_weights_are_lost_is_not_begun_with_others(source: Path, tmp_path: Path) -> None:
    chosen = config(source, epochs=1)
    train(chosen, tmp_path / "run")
    for file in (tmp_path / "run").glob("checkpoint-*"):
        file.unlink()
    with pytest.raises(RunError, match="has no checkpoint that can be used, and so not the weights it began with"):
        train(chosen, tmp_path / "run", resume=True)


def test_training_goes_on_at_a_tenth_of_the_rate_unless_one_is_given(source: Path) -> None:
    usual = read_manifest(source).recipe.lr
    assert config(source).make_recipe().lr == pytest.approx(usual / 10)
    assert config(source, lr=usual).make_recipe().lr == usual


def test_the_rate_is_a_tenth_of_that_which_took_effect(source: Path, tmp_path: Path) -> None:
    slow = TrainConfig.of(data=str(source.parent / "three"), model="compact-23k", lr=1e-4, loss="margin", epochs=1)
    train(slow, tmp_path / "slow")
    further = config(tmp_path / "slow", epochs=1)
    assert further.make_recipe().lr == pytest.approx(1e-5)
    assert further.make_recipe().loss == "margin"
    train(further, tmp_path / "further")
    assert config(tmp_path / "further").make_recipe().lr == pytest.approx(1e-5), "it is low already"


def test_a_recipe_that_is_given_takes_the_place_of_all_that_would_be_inherited(source: Path, tmp_path: Path) -> None:
    other = TrainConfig.of(
        data=str(source.parent / "three"), model="compact-23k", loss="margin", batch_size=8, epochs=1
    )
    train(other, tmp_path / "run")
    asked, usual = config(tmp_path / "run", recipe="paper").make_recipe(), find_recipe("paper").recipe
    assert (asked.loss, asked.batch_size) == (usual.loss, usual.batch_size)
    assert asked.lr == pytest.approx(usual.lr / 10)


def test_a_recipe_file_that_is_gone_is_asked_for(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(package.__file__).parent / "recipes" / "compact.toml", tmp_path / "mine.toml")
    monkeypatch.chdir(tmp_path)
    train(
        TrainConfig.of(data=str(source.parent / "three"), model="compact-23k", recipe="mine.toml", epochs=1),
        tmp_path / "run",
    )
    assert config(tmp_path / "run").make_recipe().loss == "log-probability"
    (tmp_path / "mine.toml").unlink()
    with pytest.raises(RunError, match=r"was trained by the recipe mine.toml, which is not found from here: give it"):
        config(tmp_path / "run")


def test_the_same_folder_is_divided_as_it_was(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(source, tmp_path / "run")
    stored = json.loads((run / "config.json").read_text())
    stored["train"]["data"]["group_by"] = "thing"
    (run / "config.json").write_text(json.dumps(stored))
    monkeypatch.chdir(source.parent)
    assert settings_from(run, {"data": "three"})["group_by"] == "thing", "or its test would have been trained on"
    assert "group_by" not in settings_from(run, {"data": "two"})


def test_what_does_not_fit_is_refused_in_one_line(source: Path, tmp_path: Path) -> None:
    def refused(message: str, **settings: Any) -> None:
        with pytest.raises(RunError, match=message) as caught:
            train(config(source, **settings), tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    refused(r"holds a network with model compact-23k, not cnn-23k: leave --model out", model="cnn-23k")
    refused(r"holds a network with routing fuzzy, not em: leave --routing out", routing="em")
    refused(r"three has images of 3x20x20, but .* takes 1x20x20 .*: choose --image-size and --colour", colour=True)
    refused(r"leave \[network\] out", network={"passes": 2})
    refused(r"--freeze stem is not known: choose one of backbone", freeze="stem")
    with pytest.raises(RunError, match="--freeze backbone needs trained weights: give --from RUN"):
        train(TrainConfig.of(data=str(source.parent / "three"), freeze="backbone"), tmp_path / "run")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(source, unfinished)
    RunDirectory(unfinished).weights_file.unlink()
    with pytest.raises(RunError, match="has no weights yet: its training has not finished"):
        train(config(unfinished), tmp_path / "run")


def test_images_of_another_size_are_taken_where_no_weight_depends_on_it(source: Path, tmp_path: Path) -> None:
    train(config(source, image_size=24, epochs=1), tmp_path / "run")
    assert package.load(tmp_path / "run").image_size == (24, 24)

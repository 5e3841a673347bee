"""A network of one's own, trained in a loop of one's own, becomes a run that every command takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import shortcaps
from shortcaps.backbones import BACKBONES
from shortcaps.data import Dataset
from shortcaps.errors import RunError
from shortcaps.inference.predict import Predictor
from shortcaps.models import Architecture, HeadNetwork, Network
from shortcaps.runs.directory import read_manifest
from shortcaps.runs.sample import read_sample
from shortcaps.runs.weights import read_tensors
from tests.data.test_folder import tree
from tests.runs.test_portable import command

NAMES = ("cat", "dog", "owl")
TINY = {"backbone_settings": {"widths": (4, 4), "strides": (2, 2)}}
MADE: dict[str, dict[str, Any]] = {
    "compact-23k": TINY,
    "compact-23k-plain": TINY,
    "cnn-23k": {},
    "baseline": {"capsule_channels": (2, 3, 2), "shortcut": False, "routing": "em"},
    "sabour": {},
}


def network(name: str = "compact-23k", **settings: Any) -> Network:
    torch.manual_seed(0)
    return shortcaps.create_model(name, classes=3, image_size=20, **{**MADE.get(name, {}), **settings})


def answers(model: Network) -> Tensor:
    images = torch.rand(4, model.channels, *model.image_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(images)


@pytest.mark.parametrize("name", MADE)
def test_any_network_is_saved_and_gives_the_same_answers(name: str, tmp_path: Path) -> None:
    model = network(name)
    before = answers(model.train())
    assert shortcaps.save(model.train(), tmp_path / "run", class_names=NAMES) == tmp_path / "run"
    assert model.training, "it is left as it was"
    again = shortcaps.load(tmp_path / "run")
    assert torch.equal(answers(again), before)
    assert again.class_names == NAMES
    assert type(again) is type(model)


@pytest.mark.parametrize("name", ["compact-23k", "cnn-23k", "sabour"])
def test_predict_explain_and_evaluate_take_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shortcaps.save(network(name), tmp_path / "run", class_names=("cats", "dogs", "owls"))
    data = tree(tmp_path / "pets")
    picture = next(data.rglob("*.png"))
    (found,) = json.loads(command("predict", tmp_path / "run", picture, "--json").stdout)
    assert found["class"] in ("cats", "dogs", "owls")
    tested = json.loads(command("evaluate", tmp_path / "run", "--data", data, "--json").stdout)
    assert tested["images"] > 0
    alone = command("evaluate", tmp_path / "run", expect=1)
    assert "was trained in Python and saved: nothing says on which images; give --data" in str(alone.exception)
    said = command("explain", tmp_path / "run", picture, "--out", tmp_path / "page", "--data", data)
    has_capsules = name == "compact-23k"
    told = (
        "which has no pose capsules: no routing maps, no poses and no equivariance score, only what transformations do"
    )
    assert (told in " ".join(said.stderr.split())) != has_capsules
    drawn = {file.name for file in (tmp_path / "page").iterdir()}
    assert "transformations.png" in drawn
    assert ("poses.png" in drawn) == has_capsules
    Predictor(tmp_path / "run")


def test_what_create_model_was_given_is_what_is_saved(tmp_path: Path) -> None:
    """Objects become names: a routing, an architecture."""
    architecture = Architecture(capsule_channels=(2, 3, 2), passes=1, pose=3)
    routing = shortcaps.Fuzzy(iterations=3, sharpness=4.0)
    model = shortcaps.create_model(architecture, routing=routing, classes=3, image_size=(20, 24))
    before = answers(model)
    shortcaps.save(model, tmp_path / "run", class_names=NAMES)
    again = shortcaps.load(tmp_path / "run")
    assert isinstance(again, shortcaps.CapsuleNetwork)
    assert again.routing == routing
    assert again.image_size == (20, 24)
    assert torch.equal(answers(again), before)


def test_a_saved_network_says_how_its_pictures_are_prepared(tmp_path: Path) -> None:
    shortcaps.save(network(), tmp_path / "plain", class_names=NAMES)
    preparation = {"stored_size": 24, "bright_on_dark": True}
    shortcaps.save(network(), tmp_path / "ink", class_names=NAMES, preparation=preparation, label="ink")
    plain, ink = Predictor(tmp_path / "plain").preparation, Predictor(tmp_path / "ink").preparation
    assert (plain.stored_size, plain.bright_on_dark) == ((20, 20), False)
    assert (ink.stored_size, ink.image_size, ink.bright_on_dark) == ((24, 24), (20, 20), True)
    assert read_manifest(tmp_path / "ink").data.label == "ink"
    Image.new("L", (50, 50), 255).save(tmp_path / "paper.png")
    assert Predictor(tmp_path / "plain").read(tmp_path / "paper.png").min() == 1
    assert Predictor(tmp_path / "ink").read(tmp_path / "paper.png").max() == 0
    assert read_sample(tmp_path / "ink", (1, 20, 20)) is None


def test_a_data_set_gives_names_preparation_and_a_sample(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 1, 20, 20), dtype=torch.uint8)
    data = Dataset("n", "noise", "train", "default", images, torch.arange(40) % 3, NAMES, bright_on_dark=True)
    shortcaps.save(network(), tmp_path / "run", preparation=data)
    manifest = read_manifest(tmp_path / "run")
    assert (manifest.data.class_names, manifest.data.label, manifest.data.bright_on_dark) == (NAMES, "noise", True)
    sample = read_sample(tmp_path / "run", (1, 20, 20))
    assert sample is not None
    assert len(sample) == 40
    kept, given = ({bytes(image.flatten().tolist()) for image in part} for part in ((sample * 255).byte(), images))
    assert kept == given


def test_a_network_that_was_trained_further_gets_the_classes_of_what_it_was_trained_on(tmp_path: Path) -> None:
    shortcaps.save(network(), tmp_path / "before", class_names=NAMES)
    model, others = shortcaps.load(tmp_path / "before"), ("boat", "house", "tree")
    images = torch.randint(0, 256, (12, 1, 20, 20), dtype=torch.uint8)
    data = Dataset("n", "noise", "train", "default", images, torch.arange(12) % 3, others)
    shortcaps.save(model, tmp_path / "after", preparation=data)
    assert shortcaps.load(tmp_path / "after").class_names == others
    shortcaps.save(model, tmp_path / "as-it-was")
    assert shortcaps.load(tmp_path / "as-it-was").class_names == NAMES


def test_a_preparation_that_would_make_every_answer_wrong_is_refused(tmp_path: Path) -> None:
    def refused(message: str, preparation: Any = None, model: Network | None = None, **options: Any) -> None:
        options = {"class_names": NAMES, "preparation": preparation, **options}
        with pytest.raises(RunError, match=message) as caught:
            shortcaps.save(model or network(), tmp_path / "run", **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    refused("stored_size 10x10 is smaller than the 20x20 of which the network sees the middle", {"stored_size": 10})
    refused("stored_size 24x16 is smaller than the 20x20", {"stored_size": [24, 16]})
    refused("unknown fit 'squash': choose one of stretch, pad, crop", {"fit": "squash"})
    refused(
        "centred_digits goes with grey pictures, but the network takes 3 channels",
        {"centred_digits": True},
        network(channels=3),
    )
    refused("stored_size 24.0 is no size: give whole numbers of pixels", {"stored_size": 24.0})
    refused(r"stored_size \[24\] is no size", {"stored_size": [24]})
    refused("preparation is a list: give a Dataset, or a mapping with any of stored_size", [1])
    refused("class_names 3 is no list: give a text for each class", class_names=3)
    refused("class_names has 0, which is no text", class_names=[0, 1, 2])


def test_names_may_be_in_an_array_and_sizes_of_any_integer_type(tmp_path: Path) -> None:
    preparation = {"stored_size": np.int64(24)}
    shortcaps.save(network(), tmp_path / "run", class_names=np.array(NAMES), preparation=preparation)  # type: ignore[arg-type]
    data = read_manifest(tmp_path / "run").data
    assert (data.class_names, data.stored_size) == (NAMES, (24, 24))


def test_a_preparation_that_was_damaged_later_is_refused_when_it_is_used(tmp_path: Path) -> None:
    def refused(message: str, **changes: Any) -> None:
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        config["data"].update(changes)
        shutil.copytree(tmp_path / "run", tmp_path / "changed", dirs_exist_ok=True)
        (tmp_path / "changed" / "config.json").write_text(json.dumps(config))
        with pytest.raises(RunError, match=message):
            Predictor(tmp_path / "changed")

    shortcaps.save(network(), tmp_path / "run", class_names=NAMES)
    refused("stored_size 10x20 is smaller", stored_size=[10, 20])
    refused("unknown fit 'squash'", fit="squash")


def test_the_sample_of_another_network_does_not_stay(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (20, 1, 20, 20), dtype=torch.uint8)
    data = Dataset("n", "noise", "train", "default", images, torch.arange(20) % 3, NAMES)
    shortcaps.save(network(), tmp_path / "run", preparation=data)
    (tmp_path / "run" / "config.json").unlink()
    shortcaps.save(network(), tmp_path / "run", class_names=NAMES)
    assert read_sample(tmp_path / "run", (1, 20, 20)) is None


def test_what_cannot_be_made_again_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model: Network, message: str, **options: Any) -> None:
        with pytest.raises(RunError, match=message) as caught:
            shortcaps.save(model, tmp_path / "run", **{"class_names": NAMES, **options})
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()

    class Halved(nn.Module):
        out_channels = 4

        def __init__(self, in_channels: int) -> None:
            super().__init__()
            self.layer = nn.Conv2d(in_channels, 4, 3, 2)

        def forward(self, images: Tensor) -> Tensor:
            features: Tensor = self.layer(images)
            return features

    backbone = Halved(1)
    refused(
        network(backbone=backbone, backbone_settings={}),
        r"the backbone is a Halved that has no name.*register_backbone",
    )
    head = shortcaps.CapsuleHead(4, classes=3)
    built = HeadNetwork(backbone, head, image_size=(20, 20), channels=1)
    refused(built, "nothing says how to make this HeadNetwork again: make it by create_model")
    refused(network(), "the network has 3 classes, but there are 2 class_names: give one for each", class_names="ab")
    refused(network(), "two classes have the same name: a, b, a", class_names="aba")
    refused(network(), "preparation: unknown setting 'colour'", preparation={"colour": True})
    changed = network("cnn-23k")
    changed.classify = nn.Linear(32, 3, bias=False)  # type: ignore[assignment]
    refused(changed, "create_model makes another network than this of cnn-23k: .*classify.bias")
    otherwise = network("cnn-23k")
    monkeypatch.setattr(otherwise, "forward", lambda images: torch.full((len(images), 3), 0.1))
    refused(otherwise, "does something else than the cnn-23k that create_model makes")
    broken = network("cnn-23k")
    with torch.no_grad():
        broken.classify.bias[0] = torch.nan  # type: ignore[union-attr, index, operator]
    refused(broken, "not finite, in classify.bias")
    shortcaps.save(network(), tmp_path / "run", class_names=NAMES)
    with pytest.raises(RunError, match="already holds a run"):
        shortcaps.save(network(), tmp_path / "run", class_names=NAMES)


PLUGIN = """
import torch, shortcaps

@shortcaps.register_backbone("halved")
class Halved(torch.nn.Module):
    def __init__(self, in_channels, width=4):
        super().__init__()
        self.out_channels = width
        self.layer = torch.nn.Conv2d(in_channels, width, 3, 2)

    def forward(self, images):
        return torch.relu(self.layer(images))
"""


def test_a_head_on_a_backbone_of_ones_own_is_saved_once_the_backbone_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entries in ("_parts", "_places", "_plugins"):  # what is registered here is gone afterwards
        monkeypatch.setattr(BACKBONES, entries, dict(getattr(BACKBONES, entries)))
    (tmp_path / "mine.py").write_text(PLUGIN)
    shortcaps.load_plugin(tmp_path / "mine.py")
    model = shortcaps.create_model(
        "compact-23k", backbone="halved", backbone_settings={"width": 6}, capsules=3, classes=3, image_size=20
    )
    shortcaps.save(model, tmp_path / "run", class_names=NAMES)
    assert torch.equal(answers(shortcaps.load(tmp_path / "run")), answers(model))
    assert read_manifest(tmp_path / "run").plugins == (str(tmp_path / "mine.py"),)
    # A head that was built by hand: what create_model would have been given says how.
    assert isinstance(model, HeadNetwork)
    built = HeadNetwork(model.backbone, model.head, image_size=(20, 20), channels=1)
    given = {"name": "compact-23k", "backbone": "halved", "backbone_settings": {"width": 6}, "capsules": 3}
    shortcaps.save(built, tmp_path / "built", class_names=NAMES, network=given)
    assert torch.equal(answers(shortcaps.load(tmp_path / "built")), answers(model))
    program = f"import shortcaps; shortcaps.load({str(tmp_path / 'run')!r})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"is loaded only if you name it: --plugin {tmp_path / 'mine.py'}" in result.stderr


def test_a_saved_network_is_trained_further(tmp_path: Path) -> None:
    model = network()
    shortcaps.save(model, tmp_path / "run", class_names=NAMES, label="noise")
    images = torch.randint(0, 256, (40, 1, 20, 20), dtype=torch.uint8)
    data = Dataset("n", "more noise", "train", "default", images, torch.arange(40) % 3, NAMES)
    result = shortcaps.train(tmp_path / "run", data, out=tmp_path / "further", epochs=1, batch_size=8, show=False)
    assert result is not None
    origin = read_manifest(result.run).origin
    assert origin is not None
    assert (origin.trained_on, origin.epochs, origin.made_anew) == ("noise", None, [])
    first = read_tensors(result.run / "checkpoint-00000000.safetensors")
    assert all(torch.equal(first[f"model.{name}"], tensor) for name, tensor in model.state_dict().items())
    assert not torch.equal(answers(shortcaps.load(result.run)), answers(model))


@pytest.mark.parametrize("name", ["cnn-23k", "compact-23k-plain"])
def test_features_are_what_the_linear_layer_sees(name: str) -> None:
    model = network(name).eval()
    images = torch.rand(2, 1, 20, 20)
    features = model.features(images)  # type: ignore[operator]
    assert features.shape == (2, model.classify.in_features)  # type: ignore[union-attr]
    assert torch.equal(model.classify(features).softmax(-1), model(images))  # type: ignore[operator]


def test_importing_the_package_brings_neither_trainer_nor_server() -> None:
    program = (
        "import sys, shortcaps; before = set(sys.modules); shortcaps.save; assert callable(shortcaps.train); "
        "print([m for m in before if m.startswith(('shortcaps.training', 'shortcaps.serve', 'lightning', 'pydantic', 'safetensors'))])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_trained_network_answers_without_pytorchs_compiler() -> None:
    """It takes longer to load than everything else together; meta tensors bring it in unasked."""
    program = (
        "import sys, torch, shortcaps\n"
        "with torch.inference_mode():\n"
        "    shortcaps.load('mnist-baseline-fuzzy')(torch.rand(1, 1, 28, 28))\n"
        "shortcaps.create_model('compact-160k', image_size=32, channels=3)\n"
        "for name in ('cnn-23k', 'sabour'):\n"
        "    with torch.device('meta'):\n"
        "        shortcaps.create_model(name)\n"
        "print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

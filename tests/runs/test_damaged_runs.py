"""A run that was damaged, or that means harm, is refused in one line, before anything is allocated for it."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import shortcaps
from shortcaps.data import Dataset, load_dataset
from shortcaps.data.registry import register_dataset
from shortcaps.errors import DataError, RunError
from shortcaps.pretrained import FOLDER
from shortcaps.runs.directory import Checkpoint, RunDirectory, read_manifest
from shortcaps.runs.weights import read_header, read_tensors, write_weights
from shortcaps.training import TrainConfig
from tests.data.fakes import forget_afterwards

OLD = Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "shortcut-fuzzy"
BUNDLED = FOLDER / "mnist-baseline-fuzzy"


def run_with(folder: Path, config: Any = None, weights: bytes | None = None, of: Path = OLD) -> Path:
    """A copy of a run with another config or other weights."""
    folder.mkdir(exist_ok=True)
    whole = read_manifest(of).to_json()
    (folder / "config.json").write_text(json.dumps(whole if config is None else config))
    (folder / "model.safetensors").write_bytes((of / "model.safetensors").read_bytes() if weights is None else weights)
    return folder


def refusal(run: Path) -> str:
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError) as caught:
        shortcaps.load(run)
    assert time.process_time() - begun < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_byte_of_the_weights_can_change_unnoticed(tmp_path: Path) -> None:
    write_weights(load_file(OLD / "model.safetensors"), tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    shortcaps.load(run_with(tmp_path / "run", weights=whole))
    length = 8 + int.from_bytes(whole[:8], "little")
    chosen = {*range(0, length, 3), *range(length - 40, len(whole), 97), len(whole) - 1}
    chosen |= set(range(8, 120))  # where the checksum is
    file = tmp_path / "run" / "model.safetensors"
    for place in sorted(chosen):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"model.safetensors is .*damaged"):
            read_tensors(file)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refusal(tmp_path / "run").endswith(
        "model.safetensors is damaged (its checksum does not match): restore it, or train the network again"
    )


def test_the_checksum_of_a_run_is_written_with_its_weights(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    tensors = {"b": torch.randn(3), "a": torch.arange(4)}
    run.write_weights(tensors, run.weights_file)
    assert read_header(run.weights_file).sha256 is not None
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read_tensors(run.weights_file).items())
    assert read_header(BUNDLED / "model.safetensors").sha256 is not None
    assert read_header(OLD / "model.safetensors").sha256 is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, number: float) -> None:
    """1e300 is finite in the file, but not in the network."""
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(OLD / "model.safetensors").items()
    }
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].flatten()[-1] = number
    save_file(tensors, tmp_path / "w")
    message = refusal(run_with(tmp_path / "run", weights=(tmp_path / "w").read_bytes()))
    assert f"holds numbers that are not finite, in {name}: train the network again" in message


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    tensors = {name: tensor.long() for name, tensor in load_file(OLD / "model.safetensors").items()}
    save_file(tensors, tmp_path / "w")
    assert "has another type" in refusal(run_with(tmp_path / "run", weights=(tmp_path / "w").read_bytes()))


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    side = 100_000
    config = read_manifest(BUNDLED).to_json()
    config["network"]["classes"] = side
    config["data"]["class_names"] = [str(n) for n in range(side)]
    with torch.device("meta"):
        shapes = {name: list(t.shape) for name, t in shortcaps.create_model(**config["network"]).state_dict().items()}
    entries = {
        name: {"dtype": "I64" if name.endswith("tracked") else "F32", "shape": shape, "data_offsets": [0, 4]}
        for name, shape in shapes.items()
    }
    header = json.dumps(entries).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(200_000)
    assert "damaged" in refusal(run_with(tmp_path / "run", config, weights))


def test_a_header_of_brackets_takes_neither_long_nor_much_memory(tmp_path: Path) -> None:
    header = b'{"a": [' + b"[]," * 5_000_000 + b"1]}"
    weights = len(header).to_bytes(8, "little") + header
    assert "its header should have 15,000,010 bytes, which it does not have, or are too many" in refusal(
        run_with(tmp_path / "run", weights=weights)
    )


def network(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["network"].update(settings)


def data(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["data"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (data(class_names=["a", "b"]), "the network has 3 classes, but there are 2 class_names"),
        (data(class_names=["a", "b", "c", "d"]), "the network has 3 classes, but there are 4 class_names"),
        (data(class_names="abc"), "class_names 'abc' should be a valid tuple"),
        (data(class_names=["a", "b", 5]), "class_names.2 5 should be a valid string"),
        (data(class_names=[]), "class_names"),
        (data(class_names=["a", "b", "a"]), "class_names has 'a' more than once"),
        (network(backbone_settings=json.loads('{"a":' * 60 + "1" + "}" * 60)), "it is nested too deeply"),
        (data(stored_size=[20, 10**9]), "stored_size.1 1000000000 should be less than or equal to 4096"),
        (data(stored_size=[20]), "stored_size"),
        (data(bright_on_dark="yes"), "bright_on_dark 'yes' should be a valid boolean"),
        (data(colour=True), "unknown setting 'colour'"),
        (lambda config: config["data"].pop("label"), "label is missing"),
        (lambda config: config.pop("network"), "network is missing"),
        (lambda config: config.update(network=[1]), "network [1] should be a valid dictionary"),
        (lambda config: config.update(environment={"torch": 2}), "environment.torch 2 should be a valid string"),
        (lambda config: config["train"]["optim"].update(epochs="3"), "epochs '3' should be a valid integer"),
        (lambda config: config["recipe"].update(lr="fast"), "lr 'fast' should be a valid number"),
        (lambda config: config["network"].pop("classes"), "the network's setting classes is missing"),
        (network(classes=10**9), "setting classes is 1e+09, but its weights have"),
        (network(classes="3"), "setting classes is wrong: '3' should be a valid integer"),
        (network(name="nonsense"), "unknown network 'nonsense'"),
        (network(name=["a"]), "setting name is wrong"),
        (network(routing="nonsense"), "unknown routing 'nonsense'"),
        (network(routing_settings={"sharpness": "much"}), "'much' should be a valid number"),
        (network(image_size=10**9), "setting image_size is wrong"),
        (network(image_size=2000), "in the weights, but"),
        (network(image_size=1), "image_size 1 is too small"),
        (network(channels=10**6), "setting channels is 1e+06, but its weights have"),
        (network(channels=3), "in the weights, but"),
        (network(pose=10**6), "setting pose is 1e+06"),
        (network(passes=10**9), "setting passes is wrong"),
        (network(iterations="2"), "setting iterations is wrong"),
        (network(backbone_settings={"width": 10**9}), "backbone_settings.width is 1e+09"),
        (network(backbone="residual", backbone_settings={"blocks": [4000, 1, 1]}), "more layers than the"),
        (network(capsule_channels=[2] * 3000, kernels=[*[1] * 2999, None], strides=[1] * 3000), "more layers than the"),
        (network(shortcut=0), "setting shortcut is wrong"),
        (network(nonsense=1), "has no setting 'nonsense'"),
        (network(pose=10**400), "a number of more than 300 digits"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    config = read_manifest(OLD).to_json()
    change(config)
    config["train"].setdefault("data", {})
    assert message in refusal(run_with(tmp_path / "run", config))


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "[" * 100_000, '{"format": 2', b"\xff\xfe", "7", "null"])
def test_what_is_no_json_object_is_no_config(tmp_path: Path, text: str | bytes) -> None:
    run = run_with(tmp_path / "run")
    (run / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert "config.json cannot be used" in refusal(run)


def test_what_training_accepts_can_be_loaded() -> None:
    """A bound that only loading knows would refuse a run after its training."""
    with pytest.raises(RunError, match="image_size 5000 should be less than or equal to 4096"):
        TrainConfig.of(data="x", image_size=5000)
    with pytest.raises(RunError, match=r"setting passes is wrong: 100000 should be less than or equal to 1000"):
        TrainConfig.of(network={"passes": 100_000})
    assert TrainConfig.of(network={"kernels": (3, None)}).model.settings


def test_the_descriptor_of_a_refused_file_is_closed(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", weights=b"nonsense")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refusal(run)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("written_as", [1, 2])
def test_a_checkpoint_whose_progress_was_changed_is_not_used(tmp_path: Path, written_as: int) -> None:
    run = RunDirectory(tmp_path)
    for step in (10, 20):
        run.write_checkpoint(Checkpoint({"weights": torch.zeros(1)}, {"step": step, "losses": [0.1, 1e-300]}), "ours")
    note = tmp_path / "checkpoint-00000020.json"
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "format": written_as, "progress": {**content["progress"], "step": 19}}))
    found, complaints = run.read_checkpoint("ours")
    assert found is not None
    assert found.progress["step"] == 10
    assert complaints == ["checkpoint-00000020.safetensors is damaged (its checksum does not match): not used"]


def test_a_split_without_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_afterwards(monkeypatch)

    @register_dataset("empty", image_size=8)
    def load_empty(split: str, protocol: str) -> Dataset:
        count = 0 if split == "test" else 2
        images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
        return Dataset("empty", "empty", split, protocol, images, torch.arange(count), ("a", "b"))

    assert len(load_dataset("empty", "train")) == 2
    with pytest.raises(DataError, match="empty has no images for test: add some"):
        load_dataset("empty", "test")


def test_fewer_images_than_devices_are_refused() -> None:
    with pytest.raises(RunError, match="max_images 1 is too small for 2 devices: each needs at least one image"):
        TrainConfig.of(devices=2, max_images=1)
    assert TrainConfig.of(devices=2, max_images=2).data.max_images == 2


def test_tensors_that_share_memory_are_each_written(tmp_path: Path) -> None:
    one = torch.arange(6.0)
    tied = {"first": one, "second": one, "part": one[2:4], "other": torch.ones(2)}
    write_weights(tied, tmp_path / "tied.safetensors")
    found = read_tensors(tmp_path / "tied.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tied.items())

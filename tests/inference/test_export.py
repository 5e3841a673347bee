"""An exported network says what PyTorch says, at any batch size, and carries what is needed to use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import shortcaps
from shortcaps.data import Dataset, sample_images
from shortcaps.errors import RunFault
from shortcaps.inference import export as module
from shortcaps.inference.export import CALIBRATION_IMAGES, export, largest_difference, quantize

onnxruntime = pytest.importorskip("onnxruntime")
SMALL = {"capsule_channels": (2, 3, 2), "backbone_settings": {"width": 4}, "passes": 1}


def network(routing: str = "fuzzy", *, shortcut: bool = True) -> shortcaps.CapsuleNetwork:
    torch.manual_seed(0)
    model = shortcaps.create_model(routing=routing, shortcut=shortcut, classes=3, **SMALL)  # type: ignore[arg-type]
    model.class_names = ("cat", "dog", "owl")
    return model.eval()


def digits(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Dataset("n", "noise", "test", "default", images, torch.arange(count) % 3, ("cat", "dog", "owl"))


# An export takes ten seconds and more, so as a rule two stand for the eight; torch.export itself is tested with all.
THOROUGH = bool(os.environ.get("SHORTCAPS_THOROUGH"))
CASES = [(routing, shortcut) for routing in shortcaps.ROUTINGS for shortcut in (True, False)]


@pytest.mark.parametrize(("routing", "shortcut"), CASES if THOROUGH else [("fuzzy", True), ("em", False)])
def test_every_network_exports_and_agrees_at_all_batch_sizes(routing: str, shortcut: bool, tmp_path: Path) -> None:
    model = network(routing, shortcut=shortcut)
    done = export(model, torch.rand(5, 1, 28, 28), tmp_path / "n.onnx", metadata={"preparation": {"digits": True}})
    assert done.error <= 1e-4
    assert done.bytes == (tmp_path / "n.onnx").stat().st_size
    session = onnxruntime.InferenceSession(tmp_path / "n.onnx")
    assert [(part.name, part.shape[0]) for part in session.get_inputs()] == [("images", "batch")]
    assert [part.name for part in session.get_outputs()] == ["activations", "probabilities", "poses"]
    images = torch.rand(7, 1, 28, 28)
    activations, probabilities, poses = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(activations, model(images).numpy(), atol=1e-4)
    np.testing.assert_allclose(probabilities, activations / activations.sum(1, keepdims=True), rtol=1e-5)
    assert poses.shape == (7, 3, 4, 4)
    assert all(np.isnan(output).all() for output in session.run(None, {"images": 255 * images.numpy()}))
    kept = session.get_modelmeta().custom_metadata_map
    assert json.loads(kept["class_names"]) == ["cat", "dog", "owl"]
    assert json.loads(kept["preparation"]) == {"digits": True}


def test_the_file_refuses_what_is_not_in_0_to_1_and_clips_what_resampling_leaves(tmp_path: Path) -> None:
    settings = {"backbone_settings": {"widths": (4, 4), "strides": (2, 2)}}
    model = shortcaps.create_model("compact-23k-plain", classes=3, image_size=16, **settings).eval()
    session = onnxruntime.InferenceSession(export(model, torch.rand(5, 1, 16, 16), tmp_path / "n.onnx").file)
    images = torch.rand(6, 1, 16, 16)
    images[1] *= 255
    images[2] = (images[2] - 0.5) / 0.25
    images[3, 0, 0, 0] = torch.nan
    images[4, 0, 0, :2] = torch.tensor([-0.05, 1.05])
    outputs = session.run(None, {"images": images.numpy()})
    for output in outputs:
        finite = np.isfinite(output).reshape(6, -1)
        assert finite.all(1).tolist() == [True, False, False, False, True, True]
        assert finite.any(1).tolist() == [True, False, False, False, True, True]
    with torch.no_grad():
        np.testing.assert_allclose(outputs[0][[0, 4, 5]], model(images[[0, 4, 5]].clamp(0, 1)).numpy(), atol=1e-5)
    for kind in (np.uint8, np.float64):
        with pytest.raises(Exception, match="Unexpected input data type"):
            session.run(None, {"images": np.zeros((1, 1, 16, 16), kind)})


def test_the_file_refuses_what_is_not_a_number_wherever_it_is(tmp_path: Path) -> None:
    model = network("fuzzy", shortcut=True)
    session = onnxruntime.InferenceSession(export(model, torch.rand(5, 1, 28, 28), tmp_path / "n.onnx").file)
    images = torch.rand(28 * 28, 1, 28, 28)
    images.flatten(1).fill_diagonal_(torch.nan)
    for output in session.run(None, {"images": images.numpy()}):
        assert np.isnan(output).all()


@pytest.mark.parametrize("name", ["compact-23k", "compact-23k-plain"])
def test_a_head_and_its_plain_twin_export_too(name: str, tmp_path: Path) -> None:
    settings = {"backbone_settings": {"widths": (4, 4), "strides": (2, 2)}}
    model = shortcaps.create_model(name, classes=3, image_size=16, **settings).eval()
    done = export(model, torch.rand(5, 1, 16, 16), tmp_path / "n.onnx")
    session = onnxruntime.InferenceSession(done.file)
    outputs = [part.name for part in session.get_outputs()]
    assert outputs == ["activations", "probabilities", *(["poses"] if name == "compact-23k" else [])]


def test_a_network_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = network("attention", shortcut=False)
    with torch.no_grad():
        other.stem.convolution.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    original = module.to_onnx
    monkeypatch.setattr(module, "to_onnx", lambda _, metadata: original(other, metadata))
    with pytest.raises(RunFault, match="nothing was written"):
        export(network("attention", shortcut=False), torch.rand(4, 1, 28, 28), tmp_path / "n.onnx")
    assert not list(tmp_path.iterdir())


def test_int8_is_smaller_and_its_loss_is_measured(tmp_path: Path) -> None:
    model = network()
    data = digits(60)
    done = export(model, data.view(data.images[:8]), tmp_path / "n.onnx")
    sample = sample_images(data, CALIBRATION_IMAGES)
    small = quantize(done.file, tmp_path / "n.int8.onnx", sample, data)
    assert (small.images, small.calibrated_on) == (60, 60)
    assert 0.5 < small.agreement <= 1
    with torch.no_grad():
        answers = model(data.view(data.images)).argmax(1)
    assert small.full_accuracy == pytest.approx((answers == data.labels).float().mean().item())
    session = onnxruntime.InferenceSession(small.file)
    difference = largest_difference(model, session, data.view(data.images[:64]))
    assert 0 < difference < 0.3  # rounded, not broken
    alone = quantize(done.file, tmp_path / "alone.int8.onnx", sample)
    assert (alone.accuracy, alone.images, alone.agreement) == (None, 0, small.agreement)


def test_the_network_of_sabour_is_exported_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = shortcaps.create_model("sabour", classes=2, image_size=17).eval()
    done = export(model, torch.rand(3, 1, 17, 17), tmp_path / "n.onnx")
    assert done.error <= 1e-4


def test_int8_ranges_are_learned_from_all_classes() -> None:
    images = (torch.arange(900) // 300 * 100).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 28, 28)
    data = Dataset("n", "by class", "train", "default", images, torch.arange(900) // 300, ("cat", "dog", "owl"))
    shown = sample_images(data, CALIBRATION_IMAGES)
    assert len(shown) == 512
    assert all(160 <= int((shown[:, 0, 0, 0] * 255 / 100).round().eq(k).sum()) <= 180 for k in range(3))
    assert len(sample_images(data.subset(slice(0, 7)), CALIBRATION_IMAGES)) == 7

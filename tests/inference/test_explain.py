"""What is shown of a network is what the network does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import shortcaps
from shortcaps.cli import app
from shortcaps.data import Dataset, sample_images
from shortcaps.inference.explain import (
    TRANSFORMATIONS,
    equivariance_score,
    images_needed,
    routing_maps,
    transformed,
    traverse,
)
from shortcaps.inference.explain.equivariance import PROBES
from shortcaps.inference.explain.page import explain, write_explanation
from shortcaps.models import CapsuleNetwork
from shortcaps.models.network import ClassCapsules
from shortcaps.training import TrainConfig, train
from tests.training.support import pictures


def network(**changes: object) -> CapsuleNetwork:
    torch.manual_seed(0)
    return shortcaps.create_model(capsule_channels=(4, 5, 3), **changes).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", shortcaps.ROUTINGS)
def test_maps_are_the_coefficients_of_the_winning_class_relative_to_their_mean(routing: str) -> None:
    model, images = network(routing=routing), torch.rand(3, 1, 28, 28)
    found = routing_maps(model, images)
    capsules = model.capsules(images)
    assert capsules.coefficients is not None
    assert torch.equal(found.classes, capsules.activation.argmax(1))
    assert [tuple(block.shape) for block in found.maps] == [(3, 2, 4, 5, 5), (3, 2, 5, 3, 3), (3, 2, 3, 1, 1)]
    for block, coefficients in zip(found.maps, capsules.coefficients, strict=True):
        torch.testing.assert_close(block.mean((2, 3, 4)), torch.ones(3, 2))
        own = torch.stack([coefficients[n, :, winner] for n, winner in enumerate(found.classes)])
        torch.testing.assert_close(block * own.mean((2, 3, 4), keepdim=True), own)
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(3))
    other = routing_maps(model, images, torch.tensor([4, 4, 4]))
    assert other.classes.tolist() == [4, 4, 4]


def test_a_sequential_network_shows_its_last_layer() -> None:
    found = routing_maps(network(shortcut=False, routing="em"), torch.rand(2, 1, 28, 28))
    assert [tuple(block.shape) for block in found.maps] == [(2, 1, 3, 3, 3)]


def test_transformations_move_pixels_where_they_say() -> None:
    image = torch.zeros(1, 1, 21, 21)
    image[0, 0, 10, 15] = 1  # right of the centre
    assert torch.equal(transformed(image), image)

    def brightest(moved: torch.Tensor) -> tuple[int, int]:
        return divmod(int(moved.flatten().argmax()), 21)

    assert brightest(transformed(image, rotation=90)) == (15, 10)  # clockwise: below
    assert brightest(transformed(image, shift_x=3)) == (10, 18)
    assert brightest(transformed(image, shift_y=-4)) == (6, 15)
    assert brightest(transformed(image, scale=1.6)) == (10, 18)
    image = torch.zeros(1, 1, 21, 31)
    image[0, 0, 5, 15] = 1  # above the centre, in an image that is not square
    assert brightest(transformed(image, rotation=-90)) == divmod(10 * 31 + 10, 21)
    assert transformed(image, shear=0.4).flatten().argmax() == 5 * 31 + 13
    with pytest.raises(ValueError, match="scale 0 is too small: it must be above 0"):
        transformed(image, scale=0)


def test_a_traversal_is_the_network_on_the_transformed_images() -> None:
    model, image = network(), torch.rand(1, 28, 28)
    found = traverse(model, image, "rotation", (-10.0, 0.0, 10.0))
    expected = model.capsules(transformed(image[None], rotation=10.0))
    torch.testing.assert_close(found.poses[2:], expected.pose)
    torch.testing.assert_close(found.activations[2:], expected.activation)
    with pytest.raises(ValueError, match="unknown transformation 'twist'"):
        traverse(model, image, "twist")


class Moments(CapsuleNetwork):
    """A stand-in whose pose is linear in the image's moments, which a rotation mixes linearly: equivariant by construction;
    with noise of its own for every image it is not."""

    shortcut = True

    def __init__(self, noise: float) -> None:
        model = network(image_size=33)
        super().__init__(model.image_size, model.channels, model.classes, model.routing, "auto")
        self.noise = noise

    def _capsules(self, images: torch.Tensor, keep_coefficients: bool) -> ClassCapsules:
        x = torch.linspace(-1, 1, 33)
        total = images.sum((1, 2, 3))
        first = (images.sum((1, 2)) * x).sum(1) / total, (images.sum((1, 3)) * x).sum(1) / total
        pose = torch.zeros(len(images), 10, 4, 4)
        pose[:, :, 0, 0], pose[:, :, 0, 1], pose[:, :, 0, 2] = first[0][:, None], first[1][:, None], 1.0
        pose += self.noise * torch.randn(pose.shape)
        return ClassCapsules(pose, torch.full((len(images), 10), 0.5))

    def summary(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def test_the_equivariance_score_tells_an_equivariant_network_from_another() -> None:
    torch.manual_seed(0)
    images = torch.zeros(128, 1, 33, 33)
    for n in range(128):  # a blob somewhere, clear of the rim
        row, column = torch.randint(11, 22, (2,)).tolist()
        images[n, 0, row - 2 : row + 3, column - 2 : column + 3] = 1
    score = equivariance_score(Moments(0.0), images, ridge=1e-6)
    assert score.score > 0.98
    assert set(score.by_transformation) == set(PROBES)
    assert score.by_transformation["rotation"] > 0.98
    assert equivariance_score(Moments(0.5), images).score < 0.7
    assert images_needed(Moments(0.0)) == 128
    with pytest.raises(ValueError, match=r"127 images are too few .*: give at least 128"):
        equivariance_score(Moments(0.0), images[:127])


@pytest.mark.parametrize("shortcut", [True, False])
def test_an_explanation_is_one_page_and_its_pictures(shortcut: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = network(shortcut=shortcut)
    model.class_names = ("<zero>", "$1_$5", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    explanation = explain(model, torch.rand(1, 28, 28), class_number=0)
    assert set(explanation.traversals) == set(TRANSFORMATIONS)
    page = write_explanation(explanation, tmp_path / "out", "a picture & more").read_text()
    assert "&lt;zero&gt;" in page
    assert "<zero>" not in page
    assert "$1_$5" in page, "a name is no formula"
    assert "a picture &amp; more" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"explanation.html", "routing-by-pass.png", "poses.png", "transformations.png"} <= names
    assert math.isclose(float(explanation.found.probabilities.sum()), 1, rel_tol=1e-5)


def test_a_network_with_one_position_has_a_page_without_maps(tmp_path: Path) -> None:
    explanation = explain(network(shortcut=False, image_size=20), torch.rand(1, 20, 20))
    page = write_explanation(explanation, tmp_path / "out", "small").read_text()
    assert "Last layer by channel" in page
    assert not (tmp_path / "out" / "routing-by-pass.png").exists()


def test_images_for_the_score_come_from_all_over_the_set() -> None:
    images = torch.arange(100).repeat_interleave(2).to(torch.uint8).reshape(200, 1, 1, 1)
    labels = torch.arange(200) // 20
    data = Dataset(
        "toy", "toy", "test", "default", images, labels, tuple("0123456789"), originals=torch.arange(200) // 2
    )
    chosen = (sample_images(data, 60) * 255).round().flatten().tolist()
    assert len(set(chosen)) == 60, "one view of each original"
    assert min(chosen) < 20
    assert max(chosen) > 80
    assert len(sample_images(data, 150)) == 150, "where there are not enough originals, more than one view"
    assert len(sample_images(data, 400)) == 200


def test_too_few_test_images_give_a_page_without_a_score(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=2, size=28)
    small = {"capsule_channels": (2, 3, 2), "backbone_settings": {"width": 4}}
    train(TrainConfig.of(data=str(data), epochs=1, batch_size=2, network=small), tmp_path / "run")
    picture = next((data / "test").rglob("*.png"))
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), str(picture), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    assert "no equivariance score: 3 images are too few" in result.stderr
    assert "quivariance" not in (tmp_path / "out" / "explanation.html").read_text()
    few = ["explain", str(tmp_path / "run"), str(picture), "--out", str(tmp_path / "few"), "--score-images", "21"]
    result = CliRunner().invoke(app, few)
    said = " ".join(result.stderr.split())
    assert "no equivariance score: --score-images 21 is too few: give at least 128, or 0 to skip it" in said

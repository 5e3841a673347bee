"""Networks to compare with: their sizes, their ways in and out, and that a run of one is used like any other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from shortcaps.errors import RunError
from shortcaps.inference.load import load
from shortcaps.inference.predict import Predictor
from shortcaps.models import SabourNetwork, create_model
from shortcaps.training import TrainConfig, train
from tests.training.support import pictures


def size(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("name", "like"), [("cnn-23k", "baseline"), ("cnn-68k", "expanded")])
def test_a_cnn_is_as_large_as_the_network_it_is_compared_with(name: str, like: str) -> None:
    assert size(create_model(name)) == pytest.approx(size(create_model(like)), rel=0.005)


def test_the_network_of_sabour_has_its_published_size() -> None:
    network = create_model("sabour")
    assert isinstance(network, SabourNetwork)
    assert size(network) == 8_215_568  # "8.2M", with 1.4M of them in the decoder
    assert size(network) - size(network.decoder) == 6_804_224  # "6.8M"
    assert network.summary().parameters == size(network)


@pytest.mark.parametrize("name", ["cnn-23k", "cnn-68k", "sabour"])
def test_images_of_any_kind_become_probabilities(name: str) -> None:
    network = create_model(name, image_size=(24, 21), channels=3, classes=4).eval()
    probabilities = network(torch.rand(2, 3, 24, 21))
    assert probabilities.shape == (2, 4)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert create_model(name, image_size=17).eval()(torch.rand(1, 1, 17, 17)).shape == (1, 10)
    with pytest.raises(ValueError, match="image_size 16 is too small: this network needs at least 17"):
        create_model(name, image_size=16)


def test_sabour_routes_as_its_paper_says() -> None:
    """Procedure 1 written out: b = 0, then c = softmax(b), s = Σ c û, v = squash(s), b ← b + û · v, three times."""
    network = SabourNetwork(image_size=(17, 17), channels=1, classes=3).double().eval()
    images = torch.rand(2, 1, 17, 17, dtype=torch.float64)

    def squash(s: torch.Tensor) -> torch.Tensor:
        squared = s.square().sum(-1, keepdim=True)
        return squared / (1 + squared) * s / squared.sqrt()

    maps = network.primary(F.relu(network.convolution(images)))
    u = squash(maps.reshape(2, 32, 8).double())
    u_hat = torch.einsum("imhk,bik->bimh", network.transform, u)
    b = torch.zeros(2, 32, 3, dtype=torch.float64)
    for _ in range(3):
        c = b.exp() / b.exp().sum(2, keepdim=True)
        v = squash((c[..., None] * u_hat).sum(1))
        b = b + (u_hat * v[:, None]).sum(-1)
    torch.testing.assert_close(network(images), v.norm(dim=-1))


def test_sabour_draws_from_the_capsule_of_the_true_class_alone() -> None:
    network = SabourNetwork(image_size=(17, 17), channels=1, classes=3)
    pose, labels = torch.randn(2, 3, 16, 1), torch.tensor([0, 2])
    drawn = network.draw(pose, labels)
    other = pose.clone()
    other[0, 1:] += 1
    other[1, :2] -= 1
    torch.testing.assert_close(network.draw(other, labels), drawn)
    images = torch.rand(2, 1, 17, 17)
    probabilities, penalty = network(images, labels)
    torch.testing.assert_close(probabilities, network(images))
    error = (network.draw(network.capsules(images).pose, labels) - images.flatten(1)).square().sum() / 2
    assert math.isclose(penalty.item(), 0.0005 * error.item(), rel_tol=1e-5)


@pytest.mark.parametrize("name", ["cnn-23k", "sabour"])
def test_a_run_of_one_is_used_like_any_other_but_has_no_pose_capsules(name: str, tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", per_class=6)
    result = train(TrainConfig.of(data=str(data), model=name, epochs=1, image_size=20), tmp_path / "run")
    assert result is not None
    network = load(tmp_path / "run")
    assert network.class_names == ("across", "disc", "down")
    picture = next((data / "test" / "disc").iterdir())
    (prediction,) = Predictor(tmp_path / "run").predict([picture])
    assert set(prediction.probabilities) == set(network.class_names)
    with pytest.raises(RunError, match="which has no pose capsules"):
        _ = Predictor(tmp_path / "run").model
    assert network.title in (tmp_path / "run" / "report.html").read_text()


def test_a_network_without_routing_takes_none() -> None:
    with pytest.raises(RunError, match="cnn-23k has neither routing nor shortcut"):
        TrainConfig.of(model="cnn-23k", routing="em")

"""What PyTorch can do with a network besides a forward and a backward pass: it works, or one line says which path does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

import shortcaps
from shortcaps.kernels import library
from shortcaps.routing import paths
from shortcaps.routing.fused import FusedVotes
from shortcaps.routing.paths import describe_path, make_votes

native = pytest.mark.skipif(not library.AVAILABLE, reason="there is no native library")


def network(path: str, routing: str = "fuzzy", **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    small = {"capsule_channels": [2, 3, 2], "backbone_settings": {"width": 4}}
    made = shortcaps.create_model(
        "baseline", routing=routing, image_size=28, channels=1, classes=3, path=path, **small, **settings
    )
    return made.double().eval()


IMAGES, LABELS = (
    torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1)).double(),
    torch.tensor([0, 1, 2, 0]),
)


def loss(model: nn.Module, parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return shortcaps.log_probability_loss(functional_call(model, parameters, (images,)), labels)


def plain_gradients(model: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss(model, dict(model.named_parameters()), IMAGES, LABELS), parameters)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("path", ["auto", "factored", "dense"])
def test_networks_and_images_in_channels_last_give_the_same(path: str) -> None:
    for model in (network(path), network(path, shortcut=False)):
        with torch.no_grad():
            expected = model(IMAGES)
            nested = nn.Sequential(model).to(memory_format=torch.channels_last)
            found = nested(IMAGES.to(memory_format=torch.channels_last))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert next(m for m in model.modules() if isinstance(m, nn.Conv2d)).weight.is_contiguous(
        memory_format=torch.channels_last
    )


def test_moving_and_casting_a_local_block_keeps_its_parameters() -> None:
    block = shortcaps.layers.LocalBlock(2, 3, (3, 3))
    before = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    ids = [id(parameter) for parameter in block.parameters()]
    block = block.to(torch.float64, memory_format=torch.channels_last).to("cpu").float()
    assert [id(parameter) for parameter in block.parameters()] == ids
    for name, tensor in block.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.shape == before[name].shape
    assert block.to("meta").transform.shape == before["transform"].shape


@pytest.mark.parametrize("path", ["auto", "factored", "dense"])
def test_gradients_of_torch_func_are_those_of_a_backward_pass(path: str) -> None:
    model = network(path)
    expected = plain_gradients(model)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    found = grad(lambda p: loss(model, p, IMAGES, LABELS))(parameters)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("path", ["auto", "factored"])
def test_gradients_of_single_images_by_vmap_have_the_gradient_of_the_batch_as_their_mean(path: str) -> None:
    model = network(path)
    expected = plain_gradients(model)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    each = vmap(grad(lambda p, image, label: loss(model, p, image[None], label[None])), (None, 0, 0))
    for name, gradients in each(parameters, IMAGES, LABELS).items():
        assert gradients.shape[0] == len(IMAGES)
        torch.testing.assert_close(gradients.mean(0), expected[name], rtol=1e-9, atol=1e-12)


def test_directional_derivatives_by_jvp_work_where_the_path_is_chosen_automatically() -> None:
    model, step = network("auto"), 1e-6
    direction = torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(2)).double()
    _, found = jvp(lambda images: model(images), (IMAGES,), (direction,))
    with torch.no_grad():
        expected = (model(IMAGES + step * direction) - model(IMAGES - step * direction)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("routing", ["fuzzy", "em", "dynamic", "attention"])
def test_second_derivatives_of_factored_votes_are_those_of_dense_ones(routing: str) -> None:
    found = []
    for path in ("factored", "dense"):
        model, images = network(path, routing), IMAGES.clone().requires_grad_()
        (first,) = torch.autograd.grad(shortcaps.log_probability_loss(model(images), LABELS), images, create_graph=True)
        first.square().sum().backward()
        found.append(images.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-12)


@native
@pytest.mark.parametrize("routing", ["fuzzy", "dynamic"])
def test_native_code_refuses_second_derivatives_in_one_line(routing: str) -> None:
    model, images = network("fused", routing), IMAGES.clone().requires_grad_()
    (first,) = torch.autograd.grad(shortcaps.log_probability_loss(model(images), LABELS), images, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivatives .*: use path='factored' or path='dense'"):
        first.square().sum().backward()


@native
def test_native_code_refuses_transforms_in_one_line() -> None:
    model = network("fused")
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    with pytest.raises(NotImplementedError, match=r"no transforms of torch\.func: use path='dense' or path='auto'"):
        grad(lambda p: loss(model, p, IMAGES, LABELS))(parameters)
    with torch.no_grad(), pytest.raises(NotImplementedError, match=r"no transforms of torch\.func"):
        vmap(lambda image: model(image[None]))(IMAGES)


class Unhelped(shortcaps.Fuzzy):
    """A routing without native code, since a subclass does not inherit it."""


def votes_of(path: str, routing: shortcaps.Routing | None = None, batch: int = 2) -> shortcaps.Votes:
    poses, transforms = torch.rand(batch, 3, 5, 4, 4), torch.rand(3, 7, 4, 4)
    return make_votes(poses, transforms, path, routing=routing)


def test_without_native_code_auto_builds_small_votes_and_not_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(votes_of("auto", Unhelped(iterations=2))) is shortcaps.DenseVotes
    assert type(votes_of("factored", Unhelped(iterations=2))) is shortcaps.FactoredVotes
    monkeypatch.setattr(paths, "DENSE_NUMBERS", 2 * 15 * 7 * 16)
    assert type(votes_of("auto", Unhelped(iterations=2))) is shortcaps.DenseVotes
    assert type(votes_of("auto", Unhelped(iterations=2), batch=3)) is shortcaps.FactoredVotes
    monkeypatch.setattr(library, "AVAILABLE", False)
    assert type(votes_of("auto", shortcaps.Fuzzy(iterations=2))) is shortcaps.DenseVotes
    assert describe_path("auto", shortcaps.Fuzzy(iterations=2)).startswith("dense for small layers")


@native
def test_auto_takes_native_code_where_the_routing_has_it() -> None:
    assert type(votes_of("auto", shortcaps.Fuzzy(iterations=2))) is FusedVotes
    assert type(votes_of("auto")) is FusedVotes
    assert type(votes_of("fused", Unhelped(iterations=2))) is FusedVotes
    assert describe_path("auto", Unhelped(iterations=2)).startswith("dense for small layers")

"""Every layer equals its loop-by-loop oracle, and its gradients those of finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shortcaps.backbones import Stem
from shortcaps.layers import (
    ActivatedPrimaryCapsules,
    CapsuleConvolution,
    CapsuleDropout,
    LocalBlock,
    PrimaryCapsules,
    ShortcutRouting,
)
from shortcaps.layers.maps import squash_map
from shortcaps.routing import EM, Attention, Dynamic, Fuzzy, Routing, route, squash
from shortcaps.testing import random_orthogonal
from tests.oracles import layers as oracle
from tests.problems import FUSED, NATIVE, PATHS, ROUTINGS, routing_name


def random_maps(batch: int, channels: int, pose: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Capsule maps, and the same poses in the paper's order (batch, channels, height, width, rows, cols)."""
    maps = torch.randn(batch, pose, channels, pose, height, width, dtype=torch.float64)
    return maps, maps.permute(0, 2, 4, 5, 3, 1)


@pytest.mark.parametrize("path", PATHS)
@given(
    channels=st.integers(1, 6),
    outputs=st.integers(1, 4),
    pose=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    squashes=st.booleans(),
)
def test_local_block_matches_the_oracle(
    path: str, channels: int, outputs: int, pose: int, kernel: tuple[int, int], stride: int, squashes: bool
) -> None:
    block = LocalBlock(channels, outputs, kernel, stride, pose, squashes=squashes, path=path).double()
    maps, poses = random_maps(2, channels, pose, 5, 6)
    next_maps, pre_voted = block(maps)
    for b in range(2):
        expected = oracle.pre_vote(poses[b], block.transform, stride)
        torch.testing.assert_close(pre_voted[b].permute(1, 3, 4, 2, 0), expected)
        mixed = oracle.mix(expected, block.mix)
        torch.testing.assert_close(next_maps[b].permute(1, 3, 4, 2, 0), squash(mixed) if squashes else mixed)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_shortcut_routes_the_votes_of_equation_4(routing: Routing, path: str) -> None:
    layer = ShortcutRouting(3, 5, routing, pose=2, path=path).double()
    pre_voted, poses = random_maps(2, 3, 2, 2, 3)
    start = torch.randn(2, 5, 2, 2, dtype=torch.float64)
    votes = torch.stack([oracle.shortcut_votes(poses[b], layer.transform) for b in range(2)])
    expected = route(votes, routing, start=start, thresholds=layer.thresholds(), keep_coefficients=True)
    found = layer(layer.votes(pre_voted), start, keep_coefficients=True)
    torch.testing.assert_close(found.pose, expected.pose)
    torch.testing.assert_close(found.activation, expected.activation)
    torch.testing.assert_close(found.coefficients, expected.coefficients)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_capsule_convolution_routes_each_position_by_itself(routing: Routing, stride: int, path: str) -> None:
    layer = CapsuleConvolution(2, 3, (2, 3), stride, routing, pose=2, path=path).double()
    maps, poses = random_maps(2, 2, 2, 4, 5)
    activations = torch.rand(2, 2, 4, 5, dtype=torch.float64) if routing.uses_activations else None
    next_maps, probabilities, _ = layer(maps, activations)
    for b in range(2):
        for i in range(next_maps.shape[-2]):
            for j in range(next_maps.shape[-1]):
                votes = oracle.patch_votes(poses[b], layer.transform, stride, i, j)
                seen = None
                if activations is not None:
                    window = activations[b, :, i * stride : i * stride + 2, j * stride : j * stride + 3]
                    seen = window.permute(1, 2, 0).reshape(1, -1)
                expected = route(votes.unsqueeze(0), routing, activations=seen, thresholds=layer.thresholds())
                torch.testing.assert_close(next_maps[b, :, :, :, i, j].permute(1, 2, 0), expected.pose[0])
                assert expected.activation is not None
                torch.testing.assert_close(probabilities[b, :, i, j], expected.activation[0])


def test_squash_of_a_map_squashes_every_pose() -> None:
    maps, poses = random_maps(2, 3, 2, 4, 5)
    torch.testing.assert_close(squash_map(maps).permute(0, 2, 4, 5, 3, 1), squash(poses))


@NATIVE
@pytest.mark.parametrize("order", ["abcdef", "aefbcd", "bcdefa", "fedcba"], ids=lambda order: f"order-{order}")
@pytest.mark.parametrize(("batch", "side"), [(1, 3), (3, 1), (2, 3), (17, 2)])
def test_squash_takes_maps_in_any_memory_order(order: str, batch: int, side: int) -> None:
    dimensions = ["abcdef".index(letter) for letter in order]
    maps = torch.randn(batch, 4, 5, 3, side, side + 1, dtype=torch.float64)
    stored = maps.permute(dimensions).contiguous().permute(torch.tensor(dimensions).argsort().tolist())
    upstream = torch.randn_like(maps)
    found = []
    for path in ("factored", "fused"):
        leaf = stored.detach().requires_grad_()
        result = squash_map(leaf, path)
        found.append((result, torch.autograd.grad(result, leaf, upstream)[0]))
    torch.testing.assert_close(found[1], found[0])


def test_primary_capsules_have_relu_and_batch_norm_and_activated_ones_have_neither() -> None:
    features = torch.randn(4, 6, 3, 3)
    assert PrimaryCapsules(6, 2, pose=3)(features).shape == (4, 3, 2, 3, 3, 3)
    layer = ActivatedPrimaryCapsules(6, 2, pose=3, activates=True, squashes=False)
    maps, activations = layer(features)
    assert maps.shape == (4, 3, 2, 3, 3, 3)
    assert activations.shape == (4, 2, 3, 3)
    assert ((activations > 0) & (activations < 1)).all()
    torch.testing.assert_close(layer(2 * features)[0], 2 * maps)
    squashed, none = ActivatedPrimaryCapsules(6, 2, pose=3, activates=False, squashes=True)(features)
    assert none is None
    assert squashed.square().sum((1, 3)).max() < 1


def test_capsule_dropout_drops_whole_capsules_and_keeps_the_expectation() -> None:
    dropout = CapsuleDropout(0.2)
    maps = torch.ones(50, 4, 8, 4, 6, 6)
    dropped = dropout(maps)
    by_capsule = dropped.permute(0, 2, 4, 5, 1, 3).flatten(4)
    assert ((by_capsule == 0).all(-1) | (by_capsule == 1.25).all(-1)).all()
    share = (by_capsule[..., 0] == 0).float().mean().item()
    assert share == pytest.approx(0.2, abs=0.02)  # 14,400 draws: five standard deviations
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)


def test_capsule_dropout_drops_an_activation_with_its_pose() -> None:
    maps, activations = torch.ones(5, 2, 3, 2, 4, 4), torch.full((5, 3, 4, 4), 0.7)
    dropped, left = CapsuleDropout(0.5).drop_with_activations(maps, activations)
    gone = dropped[:, 0, :, 0] == 0
    assert 0 < gone.float().mean() < 1
    assert (left[gone] == 0).all()
    assert (left[~gone] == 0.7).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("memory", ["samples apart", "samples side by side"])
@pytest.mark.parametrize("batch", [1, 11])
def test_a_local_block_scales_capsules_before_it_uses_them(path: str, memory: str, batch: int) -> None:
    block = LocalBlock(3, 5, (3, 3), squashes=True, path=path).double()
    maps = torch.randn(4, 3, 4, 6, 7, batch, dtype=torch.float64).movedim(-1, 0)
    maps = (maps if memory == "samples side by side" else maps.contiguous()).requires_grad_()
    scale = torch.rand(batch, 3, 6, 7, dtype=torch.float64)
    for ours, expected in zip(block(maps, scale), block(maps * scale[:, None, :, None]), strict=True):
        torch.testing.assert_close(ours, expected)
        (gradient,) = torch.autograd.grad(ours.square().sum(), maps, retain_graph=True)
        (expected_gradient,) = torch.autograd.grad(expected.square().sum(), maps, retain_graph=True)
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("path", PATHS)
def test_a_scale_of_another_dtype_shape_or_with_a_gradient_is_no_danger(path: str) -> None:
    block = LocalBlock(3, 5, (3, 3), path=path).double()
    maps = torch.randn(2, 4, 3, 4, 6, 7, dtype=torch.float64)
    scale = torch.rand(2, 3, 6, 7)
    for ours, expected in zip(block(maps, scale), block(maps, scale.double()), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"scale has shape \(2, 1, 6, 7\): these maps need \(2, 3, 6, 7\)"):
        block(maps, scale[:, :1])
    scale = scale.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: block(maps, s), scale)


def test_capsule_dropout_does_nothing_outside_training() -> None:
    maps = torch.randn(2, 4, 8, 4, 6, 6)
    assert CapsuleDropout(0.2).eval()(maps) is maps
    with pytest.raises(ValueError, match=r"dropout 1\.0 is out of range: it must be at least 0 and below 1"):
        CapsuleDropout(1.0)


def gradcheck(module: torch.nn.Module, run, *inputs: Tensor) -> None:
    """Finite differences with respect to the inputs and all parameters."""
    names, parameters = zip(*module.double().named_parameters(), strict=True)
    arguments = [tensor.detach().clone().requires_grad_() for tensor in (*inputs, *parameters)]

    def call(*values: Tensor) -> object:
        given = dict(zip(names, values[len(inputs) :], strict=True))
        return torch.func.functional_call(
            _Runner(module, run), {f"module.{n}": v for n, v in given.items()}, values[: len(inputs)]
        )

    assert torch.autograd.gradcheck(call, arguments)


class _Runner(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, run) -> None:
        super().__init__()
        self.module, self.run = module, run

    def forward(self, *inputs: Tensor) -> object:
        return self.run(self.module, *inputs)


@pytest.mark.parametrize("path", ["factored", FUSED])
@pytest.mark.parametrize("squashes", [False, True])
def test_gradcheck_of_the_local_block(squashes: bool, path: str) -> None:
    maps, _ = random_maps(2, 2, 2, 4, 3)
    gradcheck(LocalBlock(2, 3, (2, 2), 1, 2, squashes=squashes, path=path), lambda m, x: m(x), maps)


GRADCHECKED: list[Routing] = [Attention(), Dynamic(), Fuzzy(), EM(sharpness=0.3, floor=1e-2)]


@pytest.mark.parametrize("routing", GRADCHECKED, ids=routing_name)
def test_gradcheck_of_the_shortcut(routing: Routing) -> None:
    maps, _ = random_maps(2, 2, 2, 2, 2)
    start = torch.randn(2, 3, 2, 2, dtype=torch.float64)

    def run(layer: ShortcutRouting, pre_voted: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
        capsules = layer(layer.votes(pre_voted), begin)
        return capsules.pose, capsules.activation

    gradcheck(ShortcutRouting(2, 3, routing, 2), run, maps, start)


@pytest.mark.parametrize("routing", GRADCHECKED, ids=routing_name)
def test_gradcheck_of_the_capsule_convolution(routing: Routing) -> None:
    maps, _ = random_maps(1, 2, 2, 3, 3)
    if routing.uses_activations:
        activations = torch.rand(1, 2, 3, 3, dtype=torch.float64)
        gradcheck(CapsuleConvolution(2, 2, (2, 2), 1, routing, 2), lambda m, x, a: m(x, a)[:2], maps, activations)
    else:
        gradcheck(CapsuleConvolution(2, 2, (2, 2), 1, routing, 2), lambda m, x: m(x)[:2], maps)


def test_gradcheck_of_the_layers_below() -> None:
    images, features = torch.rand(3, 1, 5, 5, dtype=torch.float64), torch.randn(3, 4, 2, 2, dtype=torch.float64)
    gradcheck(Stem(1, 2, 3, 2), lambda m, x: m(x), images)
    gradcheck(PrimaryCapsules(4, 2, 2), lambda m, x: m(x), features)
    for squashes in (True, False):
        gradcheck(ActivatedPrimaryCapsules(4, 2, 2, activates=True, squashes=squashes), lambda m, x: m(x), features)


@pytest.mark.parametrize("path", ["factored", FUSED])
def test_maps_that_do_not_fit_a_layer_are_refused_on_every_path(path: str) -> None:
    local = LocalBlock(2, 3, (3, 3), pose=4, path=path)
    convolution = CapsuleConvolution(2, 3, (3, 3), 1, Attention(), pose=4, path=path)
    for layer in (local, convolution):
        for shape in ((1, 4, 5, 4, 6, 6), (1, 3, 2, 3, 6, 6), (1, 2, 4, 6, 6)):
            with pytest.raises(ValueError, match="this layer takes"):
                layer(torch.randn(shape))
        with pytest.raises(ValueError, match="capsule maps of 2x6 are too small for a kernel of 3x3"):
            layer(torch.randn(1, 4, 2, 4, 2, 6))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("routing", [Attention(), Dynamic(), Fuzzy()], ids=routing_name)
def test_turning_all_poses_turns_the_class_poses(routing: Routing, path: str) -> None:
    """Equivariance from the local capsules to the class capsules, through Eq. (2)–(5): poses times an orthogonal R."""
    turned = random_orthogonal(4)
    block = LocalBlock(2, 3, (3, 3), pose=4, squashes=routing.squashes, path=path).double()
    shortcut = ShortcutRouting(2, 3, routing, pose=4, path=path).double()

    def classes(maps: Tensor) -> Tensor:
        next_maps, pre_voted = block(maps)
        return shortcut(shortcut.votes(pre_voted), next_maps[..., 0, 0].permute(0, 2, 3, 1)).pose

    maps, _ = random_maps(2, 2, 4, 3, 3)
    moved = torch.einsum("bcnrhw,cd->bdnrhw", maps, turned)
    torch.testing.assert_close(classes(moved), classes(maps) @ turned, rtol=1e-9, atol=1e-9)

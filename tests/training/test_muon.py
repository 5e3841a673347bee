"""Muon: what its steps are, which weights take them, and that a run resumes with it."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shortcaps.errors import RunError
from shortcaps.recipes import FOLDER, Recipe
from shortcaps.runs.config import TrainConfig
from shortcaps.training.muon import LENGTH, MOMENTUM, orthogonalise
from shortcaps.training.optimizer import make_optimizer, set_rate
from shortcaps.training.run import train
from shortcaps.training.setup import make_network
from tests.training.support import pictures

CPU = torch.device("cpu")
SMALL = {"name": "compact-23k", "image_size": 12, "channels": 1, "classes": 4}


def recipe(**changes: object) -> Recipe:
    return TrainConfig.of(model="compact-23k").make_recipe().changed({"optimizer": "muon", **changes})


def gradients(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("shape", [(24, 216), (216, 24), (16, 16), (3, 5, 4, 4)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_all_directions_of_a_matrix_come_out_about_equally_long(shape: tuple[int, ...], scale: float) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalise(matrices * scale)
    lengths = torch.linalg.svdvals(found.double())
    before = torch.linalg.svdvals(matrices.double())
    # The smallest of a square matrix may be so small that five turns do not lift it.
    counted = before > 0.02 * torch.linalg.matrix_norm(matrices.double())[..., None]
    assert counted.float().mean() > 0.8
    assert lengths[counted].min() > 0.65 and lengths.max() < 1.25


def test_directions_stay_and_only_lengths_change() -> None:
    matrix = torch.randn(6, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.mT @ orthogonalise(matrix) @ right.mT
    torch.testing.assert_close(turned, torch.diag(turned.diagonal()), atol=1e-12, rtol=0)
    assert (turned.diagonal() > 0).all()


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert not orthogonalise(torch.zeros(3, 7)).any()


def test_kernels_of_convolutions_take_orthogonal_steps_and_nothing_else_does() -> None:
    model = make_network(SMALL, 0)
    optimizer = make_optimizer(model, recipe(weight_decay=0.1), CPU)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kernels = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    groups = {bool(group["orthogonal"]): set() for group in optimizer.param_groups}
    for group in optimizer.param_groups:
        groups[group["orthogonal"]] |= {names[id(parameter)] for parameter in group["params"]}
    assert groups[True] == kernels
    assert groups[True] | groups[False] == set(names.values())
    decayed = {group["weight_decay"] for group in optimizer.param_groups if group["params"][0].ndim > 1}
    assert decayed == {0.1}
    assert [group["weight_decay"] for group in optimizer.param_groups if group["params"][0].ndim <= 1] == [0.0]


def test_a_kernel_for_each_channel_by_itself_is_no_matrix() -> None:
    separable = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Conv2d(8, 4, 1, bias=False))
    kernels, others = make_optimizer(separable, recipe(), CPU).param_groups
    assert [tuple(p.shape) for p in kernels["params"]] == [(4, 8, 1, 1)]
    assert [tuple(p.shape) for p in others["params"]] == [(8, 1, 3, 3)]


def test_a_step_follows_the_mean_of_the_gradients_a_step_ahead() -> None:
    """Written again from the definition, in float64, over three steps."""
    convolution = nn.Conv2d(5, 3, 3, bias=False).double()
    optimizer = make_optimizer(convolution, recipe(weight_decay=0.3), CPU)
    weight, mean = convolution.weight.detach().clone(), torch.zeros(3, 45, dtype=torch.float64)
    for number in range(3):
        set_rate(optimizer, 0.1 / (number + 1))
        gradients(convolution, number)
        assert convolution.weight.grad is not None
        gradient = convolution.weight.grad
        mean = MOMENTUM * mean + (1 - MOMENTUM) * gradient.flatten(1)
        ahead = MOMENTUM * mean + (1 - MOMENTUM) * gradient.flatten(1)
        optimizer.step()
        rate = 0.1 / (number + 1)
        weight = weight * (1 - rate * 0.3) - rate * LENGTH * 45**0.5 * orthogonalise(ahead).view(3, 5, 3, 3)
    torch.testing.assert_close(convolution.weight.detach(), weight, atol=1e-12, rtol=0)


def test_weights_of_one_shape_step_together_as_each_does_by_itself() -> None:
    # The last is a matrix of the same shape, (5, 27), of another kernel.
    shapes = [(5, 3, 3), (5, 3, 3), (3, 5, 1), (5, 3, 3), (5, 27, 1)]
    together = nn.ModuleList(nn.Conv2d(inside, out, size, bias=False) for out, inside, size in shapes).double()
    alone = copy.deepcopy(together)
    optimizers = [make_optimizer(module, recipe(weight_decay=0.3), CPU) for module in alone]
    whole = make_optimizer(together, recipe(weight_decay=0.3), CPU)
    for number in range(2):
        gradients(together, number)
        for own, other in zip(together.parameters(), alone.parameters(), strict=True):
            assert own.grad is not None
            other.grad = own.grad.clone()
        for optimizer in (whole, *optimizers):
            set_rate(optimizer, 0.1)
            optimizer.step()
    for own, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-12, rtol=0)


def test_a_step_is_about_as_long_as_one_of_adam() -> None:
    steps: dict[str, list[Tensor]] = {}
    for name in ("adam", "muon"):
        model = make_network(SMALL, 0)
        before = copy.deepcopy(model)
        optimizer = make_optimizer(model, recipe(optimizer=name, weight_decay=0.0), CPU)
        set_rate(optimizer, 1e-3)
        gradients(model)
        optimizer.step()
        pairs = zip(model.parameters(), before.parameters(), strict=True)
        steps[name] = [(new - old).detach() for new, old in pairs]
    for adam, muon in zip(steps["adam"], steps["muon"], strict=True):
        ratio = float(muon.square().mean().sqrt() / adam.square().mean().sqrt())
        # Adam's first step has the full length of the rate, later ones a fifth to two fifths of it.
        assert ratio == pytest.approx(1.0, abs=1e-5) if adam.ndim < 4 or adam.shape[-1] == 4 else 0.08 < ratio < 0.25


def test_weights_without_a_gradient_stay() -> None:
    model = make_network(SMALL, 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    make_optimizer(model, recipe(), CPU).step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_unknown_optimiser_is_refused_in_one_line() -> None:
    with pytest.raises(RunError, match="unknown optimizer 'sgd': choose one of adam, muon"):
        recipe(optimizer="sgd")


def test_a_run_by_muon_resumes_to_the_same_weights(tmp_path: Path) -> None:
    file = tmp_path / "muon.toml"
    file.write_text('optimizer = "muon"\n' + (FOLDER / "fast.toml").read_text())
    data = pictures(tmp_path / "pictures", 12)
    config = TrainConfig.of(
        data=str(data), image_size=20, batch_size=12, epochs=3, recipe=str(file), model="compact-23k"
    )
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for checkpoint in (tmp_path / "resumed").glob("checkpoint-00000009.*"):
        checkpoint.unlink()
    (tmp_path / "resumed" / "model.safetensors").unlink()
    train(config, tmp_path / "resumed", resume=True)
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "resumed"))
    assert first.read_bytes() == second.read_bytes()

"""The paths give the same numbers, and the factored one never builds the votes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shortcaps.kernels import library
from shortcaps.kernels.library import native
from shortcaps.layers import LocalBlock
from shortcaps.models import create_model
from shortcaps.routing import EM, Fuzzy, Routing
from shortcaps.routing.paths import make_votes
from tests.problems import (
    FUSED,
    NATIVE,
    NATIVE_ROUTINGS,
    PATHS,
    ROUTINGS,
    FactoredProblem,
    factored_problem,
    routing_name,
)

FAST_PATHS = ["factored", FUSED]


def assert_close_relative(
    ours: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str, scale: float = 1e-3
) -> None:
    """The error against the largest value, or against `scale` where all values are smaller than that: where a sum
    cancels altogether, what is left of it is rounding."""
    error = (ours - expected).abs().max().item() / max(expected.abs().max().item(), scale)
    assert error <= tolerance, f"{what}: relative error {error:.2e}"


@pytest.mark.parametrize("path", FAST_PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["f64", "f32"])
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@given(
    shortcut=st.booleans(),
    readout=st.booleans(),
    groups=st.integers(1, 20),
    members=st.integers(1, 9),
    outputs=st.integers(1, 12),
    rows=st.integers(1, 5),
    cols=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_equal_those_of_dense_votes(
    routing: Routing, dtype: torch.dtype, tolerance: float, path: str, seed: int, **shape: int
) -> None:
    # With one input the variance is nothing but rounding, and a narrow floor divides by it, in any path.
    if isinstance(routing, EM):
        routing = EM(floor=0.1, sharpness=0.1)
    elif isinstance(routing, Fuzzy):
        routing = Fuzzy(floor=1e-2)
    problem = factored_problem(routing, batch=2, seed=seed, dtype=dtype, **shape)
    dense, fast = problem.solve(routing, "dense"), problem.solve(routing, path)
    for part in ("pose", "activation"):
        assert_close_relative(getattr(fast, part), getattr(dense, part), tolerance, part)
    expected = problem.gradients(routing, "dense")
    scale = 0.1 * max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in problem.gradients(routing, path).items():
        assert_close_relative(gradient, expected[name], tolerance, f"gradient of {name}", scale)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                # An expanded view occupies only its storage.
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "sequential"])
def test_factored_votes_are_never_built_forward_or_backward(routing: Routing, shortcut: bool) -> None:
    # As in the expanded network: a shortcut over 5x5 positions, a capsule convolution with a 3x3 kernel.
    groups, members, outputs = (32, 25, 10) if shortcut else (288, 1, 32)
    problem = factored_problem(
        routing, shortcut=shortcut, batch=8, groups=groups, members=members, outputs=outputs, rows=4, cols=4
    )
    votes = 8 * groups * members * outputs * 16

    with LargestTensor() as largest:
        problem.gradients(routing, "factored")
    assert largest.numel <= votes / 4
    with LargestTensor() as largest_dense:
        problem.gradients(routing, "dense")
    assert largest_dense.numel >= votes


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "sequential"])
@pytest.mark.parametrize("batch", [1, 7, 64, 131])
def test_fused_results_do_not_depend_on_the_number_of_threads(routing: Routing, shortcut: bool, batch: int) -> None:
    shape = {"batch": batch, "rows": 4, "cols": 4, "outputs": 5}
    problem = factored_problem(routing, shortcut=shortcut, **shape, dtype=torch.float32, readout=True)
    results = []
    for path in ("fused", "fused, three threads"):
        capsules = problem.solve(routing, path)
        results.append([capsules.pose, capsules.activation, *problem.gradients(routing, path).values()])
    for others in results[1:]:
        for found, expected in zip(others, results[0], strict=True):
            assert torch.equal(found, expected)


@NATIVE
@pytest.mark.parametrize("variant", range(3), ids=["baseline instructions", "AVX2", "AVX-512"])
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_every_instruction_set_gives_the_same_numbers(routing: Routing, variant: int) -> None:
    library = native()
    assert library is not None
    if not library.shortcaps_limit_variant(variant):
        pytest.skip("this machine does not have these instructions")
    try:
        problem = factored_problem(routing, shortcut=True, batch=21, rows=4, cols=4, outputs=5)
        expected = problem.gradients(routing, "dense")
        for name, gradient in problem.gradients(routing, "fused").items():
            assert_close_relative(gradient, expected[name], 1e-9, name)
    finally:
        for widest in (2, 1, 0):
            if library.shortcaps_limit_variant(widest):
                break


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_fused_routing_reads_poses_in_any_memory_order(routing: Routing) -> None:
    # More members and groups than any instruction set has lanes, so that squares of numbers are turned and some are left over.
    problem = factored_problem(routing, shortcut=True, batch=19, groups=5, members=21, rows=4, cols=4)
    expected = problem.solve(routing, "fused").pose
    gradients = problem.gradients(routing, "fused")
    convolutions, channels_last = (0, 4, 1, 3, 2), (0, 2, 4, 1, 3)
    for order in ((4, 3, 2, 1, 0), (1, 0, 3, 4, 2), (0, 2, 1, 4, 3), convolutions, channels_last):
        inverse = sorted(range(5), key=order.__getitem__)
        poses = problem.poses.permute(order).contiguous().permute(inverse)
        assert not poses.is_contiguous()
        other = FactoredProblem(poses, problem.transforms, problem.start, None, problem.thresholds)
        assert torch.equal(other.solve(routing, "fused").pose, expected)
        assert torch.equal(other.gradients(routing, "fused")["poses"], gradients["poses"])
    with_gaps = problem.poses.repeat_interleave(2, dim=1)[:, ::2]
    other = FactoredProblem(with_gaps, problem.transforms, problem.start, None, problem.thresholds)
    assert torch.equal(other.solve(routing, "fused").pose, expected)


@pytest.mark.parametrize("batch", [1, 19])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_votes_behind_a_relu_are_those_of_rectified_poses(routing: Routing, path: str, batch: int) -> None:
    problem = factored_problem(routing, shortcut=True, batch=batch, members=21, rows=4, cols=4, rectified=True)
    channels_last = problem.poses.permute(0, 2, 4, 1, 3).contiguous().permute(0, 3, 1, 4, 2)
    behind = replace(problem, poses=torch.relu(problem.poses), rectified=False)
    expected, gradients = behind.solve(routing, "dense"), behind.gradients(routing, "dense")
    for poses in (problem.poses, channels_last):
        for keep_coefficients in (False, True):
            found = replace(problem, poses=poses).solve(routing, path, keep_coefficients=keep_coefficients)
            assert_close_relative(found.pose, expected.pose, 1e-9, "pose")
            assert_close_relative(found.activation, expected.activation, 1e-9, "activation")
        for name, gradient in replace(problem, poses=poses).gradients(routing, path).items():
            wanted = gradients[name] * (problem.poses > 0) if name == "poses" else gradients[name]
            assert_close_relative(gradient, wanted, 1e-9, name)


@NATIVE
def test_a_relu_in_native_code_hides_no_fault() -> None:
    problem = factored_problem(Fuzzy(), shortcut=True, batch=19, rows=4, cols=4, rectified=True)
    problem.poses[3, 0, 0, 0, 0] = torch.nan
    pose = problem.solve(Fuzzy(), "fused").pose
    assert pose[3].isnan().any() and not pose[:3].isnan().any() and not pose[4:].isnan().any()


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_the_fused_operator_is_registered_properly(routing: Routing) -> None:
    problem = factored_problem(routing, shortcut=True, batch=3, readout=True).requiring_grad()
    assert routing.native is not None and problem.readout is not None
    thresholds = routing.native.thresholds(problem.thresholds)
    arguments = (problem.poses, problem.transforms, problem.start, None, *thresholds, routing.native.kind, 2, True)
    for keeps_state in (True, False):
        for more in (problem.readout, (), (*problem.readout, True)):
            given = (*arguments, keeps_state, 2.0, 1.0, 0.1, *more)
            torch.library.opcheck(torch.ops.shortcaps.route.default, given)


@NATIVE
def test_the_operators_of_a_local_block_are_registered_properly() -> None:
    maps = torch.randn(3, 4, 2, 4, 5, 5, requires_grad=True)
    for scale in (None, torch.rand(3, 2, 5, 5)):
        torch.library.opcheck(torch.ops.shortcaps.pre_vote.default, (maps, torch.randn(2, 3, 3, 4, 4), scale, 1))
    torch.library.opcheck(torch.ops.shortcaps.mix.default, (torch.randn(5, 2, requires_grad=True), maps))
    by_place = torch.randn(3, 5, 5, 4, 2, 4).permute(0, 3, 4, 5, 1, 2).requires_grad_()
    for lies in (maps, by_place):
        torch.library.opcheck(torch.ops.shortcaps.squash.default, (lies,))


@NATIVE
@pytest.mark.parametrize("order", ["abcdef", "aefbcd", "bcdefa", "fedcba"], ids=lambda order: f"order-{order}")
@pytest.mark.parametrize(("batch", "channels", "pose"), [(1, 2, 4), (3, 6, 3), (17, 6, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_local_block_takes_maps_in_any_memory_order(
    order: str, batch: int, channels: int, pose: int, dtype: torch.dtype
) -> None:
    """And gives their gradient in the same order: layers below, such as a batch norm, are slow where the two differ."""
    dimensions = ["abcdef".index(letter) for letter in order]
    maps = torch.randn(batch, pose, channels, pose, 5, 6, dtype=dtype)
    stored = maps.permute(dimensions).contiguous().permute(torch.tensor(dimensions).argsort().tolist())
    block = LocalBlock(channels, 1, (3, 2), 2, pose).to(dtype)
    scale = torch.rand(batch, channels, 5, 6, dtype=dtype)
    found = []
    for values in (maps, stored):
        leaf = values.detach().requires_grad_()
        result = torch.ops.shortcaps.pre_vote(leaf, block.transform, scale, 2)
        found.append((result, *torch.autograd.grad(result.square().sum(), (leaf, block.transform))))
        assert found[-1][1].stride() == leaf.stride()
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    leaf = maps.detach().requires_grad_()
    expected = block.pre_vote(leaf * scale[:, None, :, None])
    gradients = torch.autograd.grad(expected.square().sum(), (leaf, block.transform))
    torch.testing.assert_close(found[0], (expected, *gradients))


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("members", [1, 2, 7, 8, 25])
def test_small_batches_give_the_same_with_and_without_a_way_back(routing: Routing, batch: int, members: int) -> None:
    """Without one, the lanes of a small batch are inputs instead of samples."""
    for shortcut in (True, False):
        problem = factored_problem(
            routing, shortcut=shortcut, batch=batch, groups=3, members=members, outputs=5, rows=4, cols=4
        )
        expected = problem.solve(routing, "dense")
        found = problem.solve(routing, "fused"), problem.requiring_grad().solve(routing, "fused")
        for capsules in found:
            assert_close_relative(capsules.pose.detach(), expected.pose, 1e-9, "pose")
            assert_close_relative(capsules.activation.detach(), expected.activation, 1e-9, "activation")


@NATIVE
@pytest.mark.parametrize("distance", [10.0, 1e3])
def test_em_divides_among_the_inputs_however_far_an_output_is(distance: float) -> None:
    """Its shares are all below what a number can be, and still sum to 1 over the inputs."""
    routing = EM(floor=0.1)
    problem = factored_problem(routing, shortcut=True, batch=9, groups=3, members=5, outputs=4, rows=4, cols=4)
    assert problem.start is not None
    problem.start[:, 1] += distance
    problem.start[::2, 2] -= distance
    problem.poses[:] *= distance  # the others are as far, on other sides
    expected = problem.gradients(routing, "dense")
    for name, gradient in problem.gradients(routing, "fused").items():
        assert_close_relative(gradient, expected[name], 1e-7, name)
    assert_close_relative(problem.solve(routing, "fused").pose, problem.solve(routing, "dense").pose, 1e-9, "pose")


def tight_votes(batch: int, tightness: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Poses, transforms and a start that is far from where all votes for each output lie, closely together."""
    generator = torch.Generator().manual_seed(3)
    poses = torch.ones(batch, 2, 6, 4, 4, dtype=torch.float64)
    poses += tightness * torch.randn(poses.shape, generator=generator, dtype=torch.float64)
    transforms = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4) * torch.tensor([1.0, 2.0, -1.0]).view(1, 3, 1, 1)
    start = torch.zeros(batch, 3, 4, 4, dtype=torch.float64)
    start[:, 1] = 5
    return poses, transforms.contiguous(), start


def spread_activations(poses: torch.Tensor, transforms: torch.Tensor, start: torch.Tensor, path: str) -> torch.Tensor:
    # A floor far below the spread, so that the activation tells it.
    capsules = Fuzzy(iterations=1, floor=1e-12)(make_votes(poses, transforms, path), start=start)
    assert capsules.activation is not None
    return capsules.activation


@NATIVE
@pytest.mark.parametrize("tightness", [1.0, 1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("batch", [1, 20])
def test_votes_that_lie_closely_together_far_from_the_start_keep_their_spread(batch: int, tightness: float) -> None:
    """Found as a difference of two large numbers it would be lost: at 1e-3 it is a ten-millionth of either."""
    problem = tight_votes(batch, tightness)
    expected = spread_activations(*problem, "dense")
    ours = spread_activations(*(tensor.float() for tensor in problem), "fused")
    logits = [torch.logit(found.double()) for found in (ours, expected)]
    torch.testing.assert_close(*logits, rtol=0, atol=2e-3)


@NATIVE
def test_no_result_depends_on_the_samples_beside_it() -> None:
    ordinary, tight = (tuple(tensor.float() for tensor in tight_votes(16, t)) for t in (1.0, 1e-3))
    poses, start = ordinary[0].clone(), ordinary[2].clone()
    poses[5], start[5] = tight[0][5], tight[2][5]
    found = spread_activations(poses, ordinary[1], start, "fused")
    alone = spread_activations(*ordinary, "fused"), spread_activations(*tight, "fused")
    others = [n for n in range(16) if n != 5]
    assert torch.equal(found[others], alone[0][others])
    assert torch.equal(found[5], alone[1][5])


@NATIVE
@pytest.mark.parametrize("scale", [1e4, 1e7, 1e10])
def test_large_poses_do_not_overflow_fuzzy_routing(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    poses = scale * torch.rand(20, 2, 9, 4, 4, generator=generator)
    transforms = torch.randn(2, 3, 4, 4, generator=generator)
    ours, dense = (Fuzzy()(make_votes(poses, transforms, path)) for path in ("fused", "dense"))
    torch.testing.assert_close(ours.pose, dense.pose, rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(ours.activation, dense.activation, rtol=1e-3, atol=0)


@NATIVE
def test_an_operator_called_without_a_state_still_has_gradients() -> None:
    problem = factored_problem(Fuzzy(), shortcut=True, batch=3, rows=4, cols=4).requiring_grad()
    arguments = (problem.poses, problem.transforms, problem.start, None, problem.thresholds["beta"], None, 2, 2, True)
    settings = (2.0, 1.0, 1e-6)
    gradients = []
    for keeps_state in (True, False):
        pose, activation, _ = torch.ops.shortcaps.route(*arguments, keeps_state, *settings)
        gradients.append(torch.autograd.grad(pose.sum() + activation.sum(), problem.poses)[0])
    assert torch.equal(*gradients)


@NATIVE
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_forward_mode_derivatives_are_refused_by_native_code_and_right_without(needs_gradient: bool) -> None:
    images, direction = torch.rand(2, 1, 28, 28), torch.randn(2, 1, 28, 28)
    model = create_model(routing="attention", path="fused").eval().requires_grad_(needs_gradient)
    with pytest.raises(NotImplementedError, match="path='dense'"):
        torch.func.jvp(model, (images,), (direction,))
    model = create_model(routing="attention", path="dense").double().eval().requires_grad_(needs_gradient)
    images, direction = images.double(), direction.double()
    _, tangent = torch.func.jvp(model, (images,), (direction,))
    with torch.no_grad():
        numeric = (model(images + 1e-6 * direction) - model(images - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close(tangent, numeric, rtol=1e-4, atol=1e-6)


@NATIVE
def test_a_library_of_other_source_files_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(library._load(), str)
    monkeypatch.setattr(library, "source_digest", lambda: "of other files")
    assert library._load() == "built from other source files than these (reinstall the package)"


def test_without_the_native_library_everything_runs_and_says_so() -> None:
    program = (
        "import torch, shortcaps\n"
        "model = shortcaps.create_model().eval()\n"
        "print(model(torch.zeros(1, 1, 28, 28)).shape)\n"
        "print(str(model.summary()).splitlines()[-1])\n"
        "try: shortcaps.create_model(path='fused')(torch.zeros(1, 1, 28, 28))\n"
        "except RuntimeError as error: print(error)\n"
    )
    environment = {**os.environ, "SHORTCAPS_NO_NATIVE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    shape, path, refusal = result.stdout.splitlines()
    assert shape == "torch.Size([1, 10])"
    assert path == "path: dense for small layers, factored for large ones (there is no native code for it)"
    assert refusal.startswith("path 'fused' needs the native library, which is disabled by SHORTCAPS_NO_NATIVE")


@NATIVE
def test_a_traced_network_computes_and_does_not_remember() -> None:
    model = create_model().eval()
    first, second = torch.rand(2, 2, 1, 28, 28)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer says that shapes are taken as they are
        traced = torch.jit.trace(model, first)
        torch.testing.assert_close(traced(second), model(second))

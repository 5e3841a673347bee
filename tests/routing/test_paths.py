"""The paths give the same numbers, and the factored one never builds the votes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shortcaps.routing import EM, Routing
from tests.problems import ROUTINGS, factored_problem, routing_name

FAST_PATHS = ["factored"]


def assert_close_relative(ours: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """The error against the largest value, which is what a relative error of a sum can mean."""
    error = (ours - expected).abs().max().item() / max(expected.abs().max().item(), 1e-3)
    assert error <= tolerance, f"{what}: relative error {error:.2e}"


@pytest.mark.parametrize("path", FAST_PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["f64", "f32"])
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@given(
    shortcut=st.booleans(),
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
    if isinstance(routing, EM):
        routing = EM(floor=0.1, sharpness=0.1)  # narrow Gaussians amplify float32 rounding, in either path
    problem = factored_problem(routing, batch=2, seed=seed, dtype=dtype, **shape)
    dense, fast = problem.solve(routing, "dense"), problem.solve(routing, path)
    for part in ("pose", "activation", "coefficients", "memberships"):
        assert_close_relative(getattr(fast, part), getattr(dense, part), tolerance, part)
    expected = problem.gradients(routing, "dense")
    for name, gradient in problem.gradients(routing, path).items():
        assert_close_relative(gradient, expected[name], tolerance, f"gradient of {name}")


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

"""The gradients of every routing are those of finite differences, in float64, and are finite in the worst places."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shortcaps.routing import EM, Attention, Dynamic, Fuzzy, Readout, Routing, squash
from tests.problems import NATIVE, PATHS, PATHS_AND_THREADS, ROUTINGS, FactoredProblem, factored_problem, routing_name

SETTINGS = pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "sequential"])


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@pytest.mark.parametrize(
    "routing",
    [
        *ROUTINGS,
        Dynamic(3),
        Fuzzy(1, fuzziness=1.5, sharpness=0.1),
        EM(sharpness=0.3, floor=1e-2),
        EM(temperature=4.0),
    ],
    ids=str,
)
@SETTINGS
def test_gradcheck(routing: Routing, shortcut: bool, path: str) -> None:
    shape = {"groups": 2, "members": 2, "outputs": 3, "rows": 2, "cols": 3}
    problem = factored_problem(routing, shortcut=shortcut, **shape, readout=shortcut).requiring_grad()
    names, tensors = zip(*problem.tensors().items(), strict=True)

    def solve(*arguments: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, arguments, strict=True))
        capsules = FactoredProblem(
            given["poses"],
            given["transforms"],
            given.get("start"),
            given.get("activations"),
            {name: given[name] for name in problem.thresholds},
            Readout(given["readout"], given["readout_bias"]) if problem.readout else None,
        ).solve(routing, path)
        assert capsules.activation is not None
        return capsules.pose, capsules.activation

    assert torch.autograd.gradcheck(solve, tensors)


@NATIVE
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e2, 1e6])
def test_a_readout_of_activations_at_their_limits_has_the_gradients_of_dense_votes(scale: float) -> None:
    problem = factored_problem(
        Attention(), shortcut=True, rows=4, cols=4, scale=scale, dtype=torch.float32, readout=True
    )
    found, expected = problem.gradients(Attention(), "fused"), problem.gradients(Attention(), "dense")
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in found.items():
        assert torch.isfinite(gradient).all(), name
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5 * largest + 1e-30, msg=name)


def test_gradcheck_of_squash_even_at_zero() -> None:
    poses = torch.randn(3, 2, 2, dtype=torch.float64)
    poses[1] = 0
    assert torch.autograd.gradcheck(squash, poses.requires_grad_())
    assert squash(torch.zeros(1, 2, 2)).abs().max() == 0


def equal_votes(problem: FactoredProblem) -> FactoredProblem:
    return FactoredProblem(
        problem.poses[:, :1, :1].expand_as(problem.poses),
        problem.transforms[:1].expand_as(problem.transforms),
        problem.start,
        problem.activations,
        problem.thresholds,
    )


def votes_at_the_centre(problem: FactoredProblem) -> FactoredProblem:
    equal = equal_votes(problem)
    start = None if problem.start is None else equal.votes("dense").dense()[:, 0]
    return FactoredProblem(equal.poses, equal.transforms, start, equal.activations, equal.thresholds)


HARD_CASES = {
    "zero poses": lambda problem: FactoredProblem(
        torch.zeros_like(problem.poses),
        problem.transforms,
        None if problem.start is None else torch.zeros_like(problem.start),
        problem.activations,
        problem.thresholds,
    ),
    "equal votes": equal_votes,
    "votes equal to the centre": votes_at_the_centre,
    "everything as it comes": lambda problem: problem,
}
SHAPES = {
    "many": {},
    "one input": {"groups": 1, "members": 1},
    "one class": {"outputs": 1},
    "one position": {"members": 1},
    "1e4-scaled poses": {"scale": 1e4},
}


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16 autocast"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", HARD_CASES)
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@SETTINGS
def test_nothing_is_nan_or_infinite(
    routing: Routing, shortcut: bool, case: str, shape: str, autocast: bool, path: str
) -> None:
    settings = {"rows": 4, "cols": 4, **SHAPES[shape]}
    problem = factored_problem(routing, shortcut=shortcut, dtype=torch.float32, **settings)
    problem = HARD_CASES[case](problem)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        capsules = problem.solve(routing, path)
        gradients = problem.gradients(routing, path)
        kept = problem.solve(routing, path, keep_coefficients=True)
    for value in (capsules.pose, capsules.activation, kept.coefficients, kept.memberships):
        assert value is not None
        assert torch.isfinite(value).all()
        assert value.dtype == torch.float32
    for name, gradient in gradients.items():
        assert torch.isfinite(gradient).all(), f"gradient of {name}"


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@pytest.mark.parametrize("missing", ["all", "some"])
@pytest.mark.parametrize("routing", [*ROUTINGS, Fuzzy(fuzziness=1.2)], ids=str)
def test_inputs_that_do_not_exist_are_finite_and_agree_on_all_paths(routing: Routing, missing: str, path: str) -> None:
    problem = factored_problem(routing, shortcut=False, dtype=torch.float32)
    assert problem.activations is not None
    problem.activations[:, :: 1 if missing == "all" else 2] = 0
    capsules, expected = problem.solve(routing, path), problem.solve(routing, "dense")
    torch.testing.assert_close(capsules.pose, expected.pose, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(capsules.activation, expected.activation, rtol=1e-4, atol=1e-5)
    dense = problem.gradients(routing, "dense")
    for name, gradient in problem.gradients(routing, path).items():
        assert torch.isfinite(gradient).all(), f"gradient of {name}"
        scale = dense[name].abs().max().item()
        torch.testing.assert_close(gradient, dense[name], rtol=1e-3, atol=1e-3 * scale + 1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("batch", [1, 9], ids=["lanes over inputs", "lanes over samples"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("routing", [Fuzzy(fuzziness=1.005), EM(temperature=1e-3)], ids=str)
def test_an_input_that_does_not_exist_may_be_nearest_by_far(
    routing: Routing, dtype: torch.dtype, batch: int, path: str
) -> None:
    problem = factored_problem(routing, shortcut=True, batch=batch, groups=1, members=3, outputs=2, dtype=dtype)
    problem.transforms[:] = torch.eye(3, dtype=dtype)
    problem.poses[:] = 5 + 0.01 * problem.poses
    problem.poses[:, :, 1] = 0  # at the first centre, where no other input is
    assert problem.start is not None
    problem.start[:, 0], problem.start[:, 1] = 0, 5
    activations = torch.tensor([[0.3, 0.0, 0.2]], dtype=dtype).repeat(batch, 1)
    problem = replace(problem, activations=activations)
    capsules, expected = problem.solve(routing, path), problem.solve(routing, "dense")
    torch.testing.assert_close(capsules.pose, expected.pose, rtol=1e-3, atol=1e-3)
    for name, gradient in problem.gradients(routing, path).items():
        assert torch.isfinite(gradient).all(), f"gradient of {name}"


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
@SETTINGS
def test_what_is_not_a_number_stays_visible(routing: Routing, shortcut: bool, path: str) -> None:
    problem = factored_problem(routing, shortcut=shortcut, dtype=torch.float32, rows=4, cols=4)
    problem.poses[1, 0, 0, 0, 0] = float("nan")
    capsules = problem.solve(routing, path)
    assert capsules.activation is not None
    assert torch.isfinite(capsules.activation[0]).all()
    assert torch.isnan(capsules.activation[1]).all()
    assert torch.isnan(capsules.pose[1]).any()

"""Every routing equals its loop-by-loop oracle, in both settings, on every path."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shortcaps.routing import EM, Attention, Dynamic, Fuzzy, Routing
from tests.oracles import routings as oracle
from tests.problems import PATHS_AND_THREADS, ROUTINGS, FactoredProblem, factored_problem, routing_name


def solve_by_oracle(routing: Routing, problem: FactoredProblem) -> list[torch.Tensor]:
    """Poses, activations, coefficients and memberships of the whole batch."""
    votes = problem.votes("dense").dense()
    batch, inputs, outputs, rows, cols = votes.shape
    numbers = {name: value.tolist() for name, value in problem.thresholds.items()}
    settings = {field.name: getattr(routing, field.name) for field in fields(routing) if field.name != "iterations"}
    results = []
    for b in range(batch):
        arguments: list[Any] = [
            votes[b].flatten(2).tolist(),
            None if problem.start is None else problem.start[b].flatten(1).tolist(),
            None if problem.activations is None else problem.activations[b].tolist(),
            routing.iterations,
        ]
        results.append(getattr(oracle, routing.name)(*arguments, **settings, **numbers))
    pose, activation, coefficients, memberships = (
        torch.tensor(part, dtype=torch.float64) for part in zip(*results, strict=True)
    )
    return [pose.unflatten(2, (rows, cols)), activation, coefficients, memberships]


shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "groups": st.integers(1, 4),
        "members": st.integers(1, 4),
        "outputs": st.integers(1, 5),
        "rows": st.integers(1, 4),
        "cols": st.integers(1, 4),
        "seed": st.integers(0, 1000),
        "shortcut": st.booleans(),
    }
)


def assert_matches(routing: Routing, shape: dict[str, Any], path: str) -> None:
    problem = factored_problem(routing, **shape)
    capsules = problem.solve(routing, path)
    kept = problem.solve(routing, path, keep_coefficients=True)
    pose, activation, coefficients, memberships = solve_by_oracle(routing, problem)
    for found in (capsules, kept):
        torch.testing.assert_close(found.pose, pose, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.activation, activation, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kept.coefficients, coefficients, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kept.memberships, memberships, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "sequential"])
@pytest.mark.parametrize("routing", ROUTINGS, ids=routing_name)
def test_every_routing_matches_its_oracle_as_it_comes(routing: Routing, shortcut: bool, path: str) -> None:
    assert_matches(routing, {"shortcut": shortcut, "members": 6}, path)


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@given(shape=shapes, iterations=st.integers(1, 4))
def test_attention_matches_the_oracle_in_float64(path: str, shape: dict[str, Any], iterations: int) -> None:
    assert_matches(Attention(iterations), shape, path)


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@given(shape=shapes, iterations=st.integers(1, 4))
def test_dynamic_matches_the_oracle_in_float64(path: str, shape: dict[str, Any], iterations: int) -> None:
    assert_matches(Dynamic(iterations), shape, path)


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@given(
    shape=shapes,
    iterations=st.integers(1, 4),
    fuzziness=st.sampled_from([1.2, 1.5, 2.0, 2.7, 4.0]),
    sharpness=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_fuzzy_matches_the_oracle_in_float64(
    path: str, shape: dict[str, Any], iterations: int, fuzziness: float, sharpness: float
) -> None:
    # A wide floor, as for EM below: a vote at its centre is a division by rounding.
    assert_matches(Fuzzy(iterations, fuzziness=fuzziness, sharpness=sharpness, floor=1e-3), shape, path)


@pytest.mark.parametrize("path", PATHS_AND_THREADS)
@given(
    shape=shapes,
    iterations=st.integers(1, 3),
    sharpness=st.sampled_from([0.1, 0.5]),
    temperature=st.sampled_from([1.0, 16.0]),
)
def test_em_matches_the_oracle_in_float64(
    path: str, shape: dict[str, Any], iterations: int, sharpness: float, temperature: float
) -> None:
    # A wide floor: with a narrow one a repeated E step amplifies rounding beyond any tolerance, in either code.
    assert_matches(EM(iterations, sharpness=sharpness, temperature=temperature, floor=1e-2), shape, path)

"""What a routing says of its kernel is what the library has, and a kernel runs for the very class that names it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields, replace

import pytest
import torch

import shortcaps.routing.dynamic
from shortcaps.kernels import spec
from shortcaps.kernels.library import RoutingProblem, native
from shortcaps.kernels.spec import NativeSpec, spec_of
from shortcaps.routing import Attention, Capsules, Fuzzy, Routing, fused
from shortcaps.routing.paths import describe_path
from tests.problems import NATIVE, NATIVE_ROUTINGS, factored_problem, routing_name


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds that were computed natively."""
    kinds: list[int] = []
    run_route = fused.run_route

    def counted(*arguments, **settings):
        kinds.append(arguments[8])
        return run_route(*arguments, **settings)

    monkeypatch.setattr(fused, "run_route", counted)
    return kinds


@pytest.fixture
def _known_kinds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "_KINDS", dict(spec._KINDS))


@NATIVE
def test_every_kind_of_the_library_belongs_to_one_routing() -> None:
    library = native()
    assert library is not None
    kinds = [routing.native.kind for routing in NATIVE_ROUTINGS if routing.native is not None]
    assert sorted(kinds) == list(range(library.shortcaps_routing_kinds()))


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_python_and_the_library_agree_on_what_is_kept_for_the_way_back(routing: Routing) -> None:
    library, described = native(), routing.native
    assert library is not None
    assert described is not None
    assert spec_of(described.kind) is described
    for iterations, outputs, rows, cols in ((1, 1, 1, 1), (1, 3, 4, 4), (2, 10, 4, 4), (3, 7, 2, 5), (5, 2, 4, 4)):
        problem = RoutingProblem(
            kind=described.kind,
            iterations=iterations,
            batch=4,
            groups=2,
            members=3,
            outputs=outputs,
            rows=rows,
            cols=cols,
        )
        assert library.shortcaps_route_state_size(problem) == described.state_size(iterations, outputs, rows * cols)


@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_no_threshold_is_left_behind(routing: Routing) -> None:
    problem = factored_problem(routing, shortcut=True)
    assert routing.native is not None
    passed = [threshold for threshold in routing.native.thresholds(problem.thresholds) if threshold is not None]
    assert {id(threshold) for threshold in passed} == {id(threshold) for threshold in problem.thresholds.values()}


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_no_setting_is_left_behind(routing: Routing) -> None:
    problem = factored_problem(routing, shortcut=True)
    usual = problem.solve(routing, "dense")
    for setting in fields(routing):
        value = getattr(routing, setting.name)
        changed = replace(routing, **{setting.name: value + 1 if isinstance(value, int) else 1.5 * value + 0.1})
        found, expected = problem.solve(changed, "fused"), problem.solve(changed, "dense")
        assert (expected.activation - usual.activation).abs().max() > 1e-6, f"{setting.name} changes nothing"
        torch.testing.assert_close(found.pose, expected.pose, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.activation, expected.activation, rtol=1e-9, atol=1e-9)


@NATIVE
@pytest.mark.parametrize("routing", NATIVE_ROUTINGS, ids=routing_name)
def test_the_fused_path_is_native(routing: Routing, calls: list[int]) -> None:
    factored_problem(routing, shortcut=True).solve(routing, "fused")
    assert routing.native is not None
    assert calls == [routing.native.kind]


@NATIVE
def test_a_subclass_does_not_inherit_a_kernel(calls: list[int]) -> None:
    class Halved(Fuzzy):
        def route(self, *arguments) -> Capsules:
            capsules = super().route(*arguments)
            return Capsules(capsules.pose / 2, capsules.activation)

    assert Halved.native is None
    assert Fuzzy.native is not None
    assert describe_path("fused", Halved()).startswith("factored")
    problem = factored_problem(Fuzzy(), shortcut=True)
    torch.testing.assert_close(problem.solve(Halved(), "fused").pose, problem.solve(Fuzzy(), "dense").pose / 2)
    assert calls == []


@NATIVE
def test_a_subclass_may_name_a_kernel_for_itself(calls: list[int]) -> None:
    @dataclass(frozen=True)
    class Softer(Fuzzy):
        native = Fuzzy.native

        fuzziness: float = 3.0

    problem = factored_problem(Fuzzy(), shortcut=True)
    expected = problem.solve(Fuzzy(fuzziness=3.0), "dense").pose
    torch.testing.assert_close(problem.solve(Softer(), "fused").pose, expected)
    assert Fuzzy.native is not None
    assert calls == [Fuzzy.native.kind]


@pytest.mark.usefixtures("_known_kinds_stay")
def test_a_kind_belongs_to_one_routing_only() -> None:
    assert Attention.native is not None
    kind = Attention.native.kind
    with pytest.raises(ValueError, match=rf"native kind {kind} of .*Other already belongs to .*Attention"):

        class Other(Fuzzy):
            native = NativeSpec(kind=kind, state_size=lambda iterations, outputs, size: 1)

    assert spec_of(kind) is Attention.native


@pytest.mark.usefixtures("_known_kinds_stay")
def test_a_routing_may_be_loaded_anew() -> None:
    before = shortcaps.routing.dynamic.Dynamic
    try:
        after = importlib.reload(shortcaps.routing.dynamic).Dynamic
        assert after is not before
        assert after.native is not None
        assert spec_of(after.native.kind) is after.native
    finally:
        shortcaps.routing.dynamic.Dynamic = before


@NATIVE
@pytest.mark.usefixtures("_known_kinds_stay")
def test_a_routing_whose_kernel_is_missing_says_so() -> None:
    class Missing(Fuzzy):
        native = NativeSpec(kind=4000, state_size=lambda iterations, outputs, size: outputs * size)

    problem = factored_problem(Fuzzy(), shortcut=True)
    with pytest.raises(
        RuntimeError, match=r"^the native library has no kernel for routing kind 4000: it has the kinds 0 to"
    ):
        problem.solve(Missing(), "fused")


def test_a_kind_that_no_routing_has_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown routing kind 4000: the known kinds are 0 \(Attention\), 1 \(Dynamic\)"
    ):
        spec_of(4000)


@NATIVE
def test_a_routing_of_ones_own_runs_on_any_path() -> None:
    class Sharper(Fuzzy):
        pass

    problem = factored_problem(Sharper(), shortcut=True)
    expected = problem.solve(Fuzzy(), "dense").pose
    torch.testing.assert_close(problem.solve(Sharper(), "fused").pose, expected)

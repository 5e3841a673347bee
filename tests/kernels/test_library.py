"""What the Python side says of the native library, and of the tensors it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

from shortcaps.kernels import library
from shortcaps.kernels.library import RoutingProblem, is_plain, refuse_transforms
from tests.problems import NATIVE


def test_is_plain_answers_and_forward_mode_is_refused_apart() -> None:
    numbers, trained = torch.ones(2), torch.ones(2, requires_grad=True)
    assert is_plain(numbers, None)
    assert not is_plain(numbers, trained)
    with torch.no_grad():
        assert is_plain(trained)
    refuse_transforms(numbers, trained, None)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(numbers, numbers)
        assert not is_plain(dual)
        with pytest.raises(NotImplementedError, match="path='dense'"):
            refuse_transforms(numbers, dual)


def test_a_library_that_does_not_load_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_native.so")
    assert library._load() == "not built (a C++ compiler at install time builds it)"
    library.LIBRARY.write_text("no library")
    reason = library._load()
    assert isinstance(reason, str)
    assert reason.startswith("not available on this platform (")


@NATIVE
@pytest.mark.parametrize("entry", ["route_forward", "route_backward"])
@pytest.mark.parametrize("kind", [-1, 4000])
def test_a_kind_that_the_library_does_not_have_is_named(entry: str, kind: int) -> None:
    expected = rf"^the native library has no kernel for routing kind {kind}: it has the kinds 0 to \d+$"
    with pytest.raises(RuntimeError, match=expected):
        library.call(entry, RoutingProblem(kind=kind))


def test_an_entry_point_that_fails_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        shortcaps_route_forward = staticmethod(lambda problem: 7)

    monkeypatch.setattr(library, "_LIBRARY", Failing)
    with pytest.raises(RuntimeError, match=r"^route_forward of the native library failed with code 7$"):
        library.call("route_forward", RoutingProblem())


def test_an_operator_without_the_library_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_LIBRARY", None)
    monkeypatch.setattr(library, "_LOADED", "disabled by a test")
    with pytest.raises(RuntimeError, match=r"^squash_forward needs the native library, which is disabled by a test$"):
        torch.ops.shortcaps.squash(torch.zeros(1, 1, 1, 1, 1, 1))

"""What the Python side says of the native library, and of the tensors it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

from shortcaps.kernels import library
from shortcaps.kernels.library import is_plain, refuse_forward_mode


def test_is_plain_answers_and_forward_mode_is_refused_apart() -> None:
    numbers, trained = torch.ones(2), torch.ones(2, requires_grad=True)
    assert is_plain(numbers, None)
    assert not is_plain(numbers, trained)
    with torch.no_grad():
        assert is_plain(trained)
    refuse_forward_mode(numbers, trained, None)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(numbers, numbers)
        assert not is_plain(dual)
        with pytest.raises(NotImplementedError, match="path='dense'"):
            refuse_forward_mode(numbers, dual)


def test_a_library_that_does_not_load_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_native.so")
    assert library._load() == "not built (a C++ compiler at install time builds it)"
    library.LIBRARY.write_text("no library")
    reason = library._load()
    assert isinstance(reason, str)
    assert reason.startswith("not available on this platform (")

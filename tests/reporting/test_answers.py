"""Stored answers come back as they were, in few bytes, and damaged files are named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from shortcaps.errors import RunError
from shortcaps.reporting.answers import StoredAnswers


@pytest.mark.parametrize("originals", [None, torch.arange(320_000) // 32])
def test_answers_come_back_as_they_were(tmp_path: Path, originals: torch.Tensor | None) -> None:
    labels = torch.arange(320_000) % 10
    predicted = torch.where(torch.rand(320_000) < 0.02, (labels + 1) % 10, labels)
    StoredAnswers(predicted, labels, originals).write(tmp_path / "answers.npz")
    found = StoredAnswers.read(tmp_path / "answers.npz")
    assert torch.equal(found.predicted, predicted)
    assert torch.equal(found.labels, labels)
    assert (found.originals is None) if originals is None else torch.equal(found.originals, originals)
    assert torch.equal(found.right, predicted == labels)
    assert (tmp_path / "answers.npz").stat().st_size < 320_000, "less than a byte for an image"


def test_what_is_no_answers_is_named(tmp_path: Path) -> None:
    file = tmp_path / "answers.npz"
    for content in (b"", b"PK", b"no archive at all"):
        file.write_bytes(content)
        with pytest.raises(RunError, match=re.escape(f"{file} cannot be read as the answers of a network")):
            StoredAnswers.read(file)
    np.savez(file, predicted=np.zeros(3), other=np.zeros(3))
    with pytest.raises(RunError, match="cannot be read as the answers"):
        StoredAnswers.read(file)
    np.savez(file, predicted=np.zeros(3), labels=np.zeros(4))
    with pytest.raises(RunError, match="does not hold one answer for each label"):
        StoredAnswers.read(file)
    np.savez(file, predicted=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(RunError, match="cannot be read as the answers"):
        StoredAnswers.read(file)

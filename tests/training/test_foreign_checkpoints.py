"""A checkpoint that is whole and makes no sense, because somebody else wrote it, is refused in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shortcaps.errors import RunError
from shortcaps.runs.directory import Checkpoint, RunDirectory
from shortcaps.training import TrainConfig, train
from tests.training.support import pictures


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("foreign")
    data = pictures(place / "pictures", 4, size=28)
    train(TrainConfig.of(data=str(data), model="cnn-23k", batch_size=6, epochs=2), place / "run")
    return place / "run"


def progress(**values: Any) -> Callable[[Checkpoint], object]:
    return lambda checkpoint: checkpoint.progress.update(values)


def tensor(prefix: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Checkpoint], object]:
    """A change of the first filter among the tensors with this prefix; None takes it away."""

    def apply(checkpoint: Checkpoint) -> None:
        name = next(n for n, t in checkpoint.tensors.items() if n.startswith(prefix) and t.ndim == 4)
        changed = change(checkpoint.tensors.pop(name))
        if changed is not None:
            checkpoint.tensors[name] = changed

    return apply


CHANGES: dict[str, tuple[Callable[[Checkpoint], object], str]] = {
    "a weight is missing": (tensor("model.", lambda t: None), "model has other tensors"),
    "a weight has another shape": (tensor("model.", lambda t: t[:1].clone()), "has the shape"),
    "a weight is not finite": (tensor("model.", lambda t: t * torch.nan), "not finite"),
    "a selected weight is missing": (tensor("best.", lambda t: None), "best has other tensors"),
    "a selected weight has another shape": (tensor("best.", lambda t: t[:1].clone()), "has the shape"),
    "a moment has another shape": (tensor("optimizer.", lambda t: t[:1].clone()), "has the shape"),
    "a moment of nothing": (
        lambda checkpoint: checkpoint.tensors.update({"optimizer.999.exp_avg": torch.zeros(3)}),
        "index out of range",
    ),
    "a moment without a number": (
        lambda checkpoint: checkpoint.tensors.update({"optimizer.x.exp_avg": torch.zeros(3)}),
        "invalid literal",
    ),
    "rows of text": (progress(rows=["a"]), "rows"),
    "a row with text": (lambda checkpoint: checkpoint.progress["rows"][0].update(loss="much"), "loss"),
    "losses that are none": (progress(losses={"a": 1}), "losses"),
    "a step that is past the end": (lambda checkpoint: checkpoint.progress.update(step=99), "step 99 of 4"),
    "a step before the beginning": (progress(step=-1), "step -1 of 4"),
    "nothing was selected": (
        lambda checkpoint: [checkpoint.tensors.pop(n) for n in list(checkpoint.tensors) if n.startswith("best.")],
        "step 4 of 4",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_checkpoint_that_makes_no_sense_is_refused(ended: Path, tmp_path: Path, case: str) -> None:
    change, reason = CHANGES[case]
    shutil.copytree(ended, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    digest = run.read_manifest().digest
    checkpoint, _ = run.read_checkpoint(digest)
    assert checkpoint is not None
    for file in run.path.glob("checkpoint-*"):
        file.unlink()
    change(checkpoint)
    run.write_checkpoint(checkpoint, digest)
    with pytest.raises(RunError, match=r"the newest checkpoint in .* does not fit its config") as caught:
        train(TrainConfig(), run.path, resume=True)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (ended / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()

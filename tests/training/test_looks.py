"""On a device whose numbers are seldom looked at, nothing is validated, selected or saved before they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shortcaps.errors import RunFault
from shortcaps.runs.directory import read_tensors
from shortcaps.training import TrainConfig, loop, train
from shortcaps.training.loop import Trainer
from shortcaps.training.watch import Watch
from tests.training.support import pictures


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.setattr(Watch, "looks_at_every_step", False)  # as on a GPU
    data = pictures(tmp_path / "pictures", 16, size=28)
    return TrainConfig.of(data=str(data), model="cnn-23k", batch_size=12, epochs=2)  # four steps each


def poison(monkeypatch: pytest.MonkeyPatch, bad_step: int, value: float) -> None:
    """From this step on, a weight is not finite, as after an update that nobody looked at."""
    original = Trainer.take_step

    def take_step(self: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
        result = original(self)
        if self.state.step == bad_step:
            next(iter(self.state.model.parameters())).data.view(-1)[0] = value
        return result

    monkeypatch.setattr(Trainer, "take_step", take_step)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad_step", [2, 4, 6], ids=["within an epoch", "its last step", "within the second epoch"])
def test_a_state_that_is_not_finite_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainConfig, bad_step: int, value: float
) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(loop, "SECONDS_OF_SHORT_EPOCHS", -1.0)
    validated: list[int] = []
    validation_error = Trainer.validation_error
    monkeypatch.setattr(
        Trainer, "validation_error", lambda self: (validated.append(self.state.step), validation_error(self))[1]
    )
    poison(monkeypatch, bad_step, value)
    with pytest.raises(RunFault, match=r"is not a number at step"):
        train(config, tmp_path / "run")
    saved = sorted((tmp_path / "run").glob("checkpoint-*.safetensors"))
    assert [int(file.stem[-8:]) for file in saved] == list(range(max(1, bad_step - 2), bad_step))
    for file in saved:
        assert all(torch.isfinite(tensor).all() for tensor in read_tensors(file).values())
    assert validated == [4] * (bad_step > 4)


def test_a_run_stopped_by_a_fault_goes_on_from_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainConfig
) -> None:
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        poison(patch, 6, float("nan"))
        with pytest.raises(RunFault):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    whole, run = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(whole[name], run[name]) for name in whole)

"""Callbacks and loggers: what they are told, what they write, and what happens when they fail or their package is missing."""

from __future__ import annotations

import csv
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from shortcaps.errors import RunError, RunFault
from shortcaps.runs.config import TrainConfig
from shortcaps.training import Callback, EpochMetrics, RunInfo, StepMetrics, TrainingResult, train
from shortcaps.training.loggers import LOGGERS, _Service, make_loggers
from tests.training.support import finish, pictures, settings_file, shortcaps
from tests.training.test_resume import AT_STEP


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of two epochs of 21 steps, so that each has a look at its numbers (every 20)."""
    data = pictures(tmp_path_factory.mktemp("callbacks") / "pictures", per_class=14, size=20)
    small = {"capsule_channels": [2, 3, 2], "backbone_settings": {"width": 4}}
    return TrainConfig.of(data=str(data), image_size=20, batch_size=2, epochs=2, network=small)


class Listener(Callback):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, run: RunInfo) -> None:
        self.told.append(run)

    def step(self, metrics: StepMetrics) -> None:
        self.told.append(metrics)

    def epoch(self, metrics: EpochMetrics) -> None:
        self.told.append(metrics)

    def end(self, result: TrainingResult | None) -> None:
        self.told.append(result)


class Idle(Callback):
    """Overrides nothing."""


def test_a_callback_is_told_of_the_beginning_steps_epochs_and_the_end(config: TrainConfig, tmp_path: Path) -> None:
    listener = Listener()
    result = train(config, tmp_path / "run", callbacks=[listener, Idle()])
    kinds = [type(what).__name__ for what in listener.told]
    assert kinds == ["RunInfo", "StepMetrics", "EpochMetrics", "StepMetrics", "EpochMetrics", "TrainingResult"]
    info, step, first, _, second, ended = listener.told
    assert (info.path, info.steps, info.steps_per_epoch, info.first_step) == (tmp_path / "run", 42, 21, 0)
    assert info.flat_settings["recipe.batch_size"] == 2
    assert info.flat_settings["network.name"] == "baseline"
    assert (step.step, step.epoch, first.epoch, second.epoch) == (20, 1, 1, 2)
    assert ended is result
    plain = train(config, tmp_path / "plain")
    assert plain is not None
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("run", "plain")]
    assert weights[0] == weights[1], "listening changes nothing"


def test_a_callback_that_fails_ends_the_run_with_one_line_and_the_run_resumes(
    config: TrainConfig, tmp_path: Path
) -> None:
    class Broken(Listener):
        def epoch(self, metrics: EpochMetrics) -> None:
            raise KeyError("no such table")

    broken = Broken()
    with pytest.raises(RunFault, match=r"the callback Broken failed in epoch: KeyError: 'no such table'; .* --resume"):
        train(config, tmp_path / "run", callbacks=[broken])
    assert broken.told[-1] is None, "it is told that the run has ended without a result"
    assert not (tmp_path / "run" / "last-good.safetensors").exists(), "nothing is wrong with the weights"
    listener = Listener()
    train(config, tmp_path / "run", resume=True, callbacks=[listener])
    assert (listener.told[0].first_step, listener.told[0].first_epoch) == (21, 2)


@pytest.mark.slow
def test_csv_has_a_row_every_twenty_steps_and_a_resumed_run_goes_on_in_it(tmp_path: Path) -> None:
    data, settings = (
        pictures(tmp_path / "pictures", per_class=14),
        settings_file(tmp_path, **{"batch-size": 1, "epochs": 2}),
    )
    asked = ("train", "--data", data, "--config", settings, "--logger", "csv")
    finish(shortcaps(*asked, "--out", tmp_path / "whole"))
    patch = AT_STEP.format(step=70, signal="SIGTERM")
    finish(shortcaps(*asked, "--out", tmp_path / "stopped", patch=patch), expect=143)
    finish(shortcaps("train", "--resume", tmp_path / "stopped", "--logger", "csv"))
    rows = {}
    for run in ("whole", "stopped"):
        with (tmp_path / run / "steps.csv").open() as file:
            rows[run] = [(row["step"], row["epoch"], row["loss"], row["lr"]) for row in csv.DictReader(file)]
    assert [int(row[0]) for row in rows["whole"]] == [20, 40, 60, 80]
    assert rows["whole"] == rows["stopped"]


def test_csv_has_the_rows_before_a_checkpoint_within_an_epoch_even_if_the_process_was_killed(tmp_path: Path) -> None:
    def told(first_step: int, *steps: int) -> None:
        (logger,) = make_loggers(["csv"])
        logger.begin(RunInfo(tmp_path, {}, 200, 100, first_step))
        for step in steps:
            logger.step(StepMetrics(step, 1, 0.5, 0.5, 0.1, 9.0))

    told(0, 20, 40, 60)  # and no word of an end
    told(50, 60, 80)
    with (tmp_path / "steps.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [20, 40, 60, 80]


def test_csv_that_is_damaged_is_left_as_it_is(config: TrainConfig, tmp_path: Path) -> None:
    class Broken(Listener):
        def epoch(self, metrics: EpochMetrics) -> None:
            raise KeyError("stop here")

    run = tmp_path / "run"
    with pytest.raises(RunFault, match="stop here"):
        train(config, run, callbacks=[*make_loggers(["csv"]), Broken()])
    file = run / "steps.csv"
    damaged = file.read_text().replace("20,", "2?,")
    file.write_text(damaged)
    with pytest.raises(
        RunError, match=r"steps.csv is damaged \(ValueError: .*'2\?'\): mend it or remove it, then resume"
    ):
        train(config, run, resume=True, callbacks=make_loggers(["csv"]))
    assert file.read_text() == damaged
    file.write_text(damaged.replace("2?,", "20,"))
    train(config, run, resume=True, callbacks=make_loggers(["csv"]))
    with file.open() as lines:
        assert [int(row["step"]) for row in csv.DictReader(lines)] == [20, 40]


class FakeWandb(types.ModuleType):
    """What WandbLogger uses of wandb, with the documented signatures."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeWandb.Run] = []

    class Run:
        def __init__(self, run_id: str) -> None:
            self.id, self.logged, self.summary, self.exit_code = run_id, [], {}, None

        def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
            self.logged.append((step, data))

        def finish(self, exit_code: int | None = None) -> None:
            self.exit_code = exit_code

    def init(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        dir: str | None = None,  # noqa: A002
        config: dict[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
        resume: str | None = None,
    ) -> Run:
        assert resume == "allow"
        self.asked = {"project": project, "name": name, "dir": dir, "config": config, "id": id}
        self.runs.append(self.Run(id or f"made-{len(self.runs)}"))
        return self.runs[-1]


def test_wandb_gets_settings_metrics_and_the_result_and_a_resumed_run_goes_on_in_its_run(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    result = train(config, tmp_path / "run", callbacks=make_loggers(["wandb", "wandb"]))
    assert result is not None
    (run,) = wandb.runs
    assert (wandb.asked["project"], wandb.asked["name"], wandb.asked["dir"]) == ("mine", "run", str(tmp_path / "run"))
    assert wandb.asked["config"]["recipe.loss"] == "log-probability"
    assert [step for step, _ in run.logged] == [20, 21, 40, 42]
    assert run.logged[1][1].keys() == {"epoch", "loss", "accuracy", "validation_error", "lr", "images_per_second"}
    assert run.summary["test_accuracy"] == result.test.accuracy
    assert run.exit_code == 0
    train(config, tmp_path / "run", resume=True, callbacks=make_loggers(["wandb"]))
    assert (len(wandb.runs), wandb.asked["id"]) == (2, "made-0")
    monkeypatch.delenv("WANDB_PROJECT")
    (logger,) = make_loggers(["wandb"])
    logger.begin(RunInfo(tmp_path, {}, 1, 1, 0))
    logger.end(None)
    assert (wandb.asked["project"], wandb.runs[-1].exit_code) == ("shortcaps", 1)


class FakeMLflow(types.ModuleType):
    """What MLflowLogger uses of mlflow, with the documented signatures."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []

    def set_experiment(self, experiment_name: str | None = None) -> None:
        self.calls.append(("experiment", experiment_name))

    def start_run(self, run_id: str | None = None, *, run_name: str | None = None) -> Any:
        self.calls.append(("start", (run_id, run_name)))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "abc"))

    def log_params(self, params: dict[str, Any]) -> None:
        assert len(params) <= 100
        self.calls.append(("params", params))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert all(isinstance(value, int | float) for value in metrics.values())
        self.calls.append(("metrics", (step, metrics)))

    def end_run(self, status: str = "FINISHED") -> None:
        self.calls.append(("end", status))


def test_mlflow_gets_parameters_metrics_and_the_result_and_a_resumed_run_goes_on_in_its_run(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    result = train(config, tmp_path / "run", callbacks=make_loggers(["mlflow"]))
    assert result is not None
    assert mlflow.calls[:2] == [("experiment", "shortcaps"), ("start", (None, "run"))]
    assert mlflow.calls[2][0] == "params"
    metrics = [told for what, told in mlflow.calls if what == "metrics"]
    assert [step for step, _ in metrics] == [20, 21, 40, 42, None]
    assert metrics[-1][1]["test_accuracy"] == result.test.accuracy
    assert mlflow.calls[-1] == ("end", "FINISHED")
    assert json.loads((tmp_path / "run" / "loggers.json").read_text()) == {"mlflow": "abc"}
    mlflow.calls.clear()
    train(config, tmp_path / "run", resume=True, callbacks=make_loggers(["mlflow"]))
    assert [what for what, _ in mlflow.calls] == ["start", "metrics", "end"], "no parameter is logged twice"
    assert mlflow.calls[0] == ("start", ("abc", "run"))


def test_two_services_both_go_on_in_their_runs(tmp_path: Path) -> None:
    class Service(_Service):
        def __init__(self, name: str) -> None:
            self.name, self.earlier = name, "unasked"

        def _start(self, run: RunInfo, earlier: str | None) -> str:
            self.earlier = earlier or ""
            return f"{self.name} 1"

    def begin(first_step: int) -> list[str]:
        services = [Service("one"), Service("two")]
        for service in services:
            service.begin(RunInfo(tmp_path, {}, 10, 5, first_step))
        return [service.earlier for service in services]

    assert begin(0) == ["", ""]
    assert begin(5) == ["one 1", "two 1"]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_logger_whose_package_is_missing_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(
        RunError,
        match=f"the logger {name} needs {name}, which is not installed: pip install {name}, or leave out --logger",
    ):
        make_loggers([name])


def test_an_unknown_logger_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    output = finish(shortcaps("train", "--logger", "wand", "--out", tmp_path / "run"), expect=2)
    assert (
        "unknown logger 'wand': choose one of csv, mlflow, tensorboard, wandb (did you mean wandb?)"
        in output.replace("\n", " ")
    )
    assert not (tmp_path / "run").exists()
    assert list(LOGGERS) == ["csv", "mlflow", "tensorboard", "wandb"]

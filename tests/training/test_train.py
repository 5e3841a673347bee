"""Training from the command line and from Python: what it leaves, what it refuses, what it says when numbers run away."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import shortcaps as package
from shortcaps.cli import main
from shortcaps.data import load_dataset
from shortcaps.errors import RunError, RunFault
from shortcaps.recipes import FOLDER as RECIPE_FOLDER
from shortcaps.recipes import RECIPES
from shortcaps.runs.directory import RunDirectory, read_tensors
from shortcaps.training import TrainConfig, train
from shortcaps.training.display import Display
from shortcaps.training.loop import Trainer
from shortcaps.training.optimizer import make_optimizer, set_rate
from shortcaps.training.plots import curves
from shortcaps.training.seeds import derive
from shortcaps.training.setup import faster_precision, load_split, make_network, network_settings, smaller_network
from tests.training.support import EVERY_EPOCH_IS_SAVED, finish, pictures, settings_file, shortcaps

SMALL = {"capsule_channels": (2, 3, 2), "backbone_settings": {"width": 4}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("train")
    data, settings = pictures(place / "pictures"), settings_file(place, epochs=30)
    output = finish(shortcaps("train", "--data", data, "--config", settings, "--seed", 3, "--out", place / "run"))
    assert re.search(r"test accuracy on pictures: \d+\.\d\d% \(95 % interval", output)
    assert f"report: {place / 'run' / 'report.html'}" in output
    return place / "run"


def test_it_learns(run: Path) -> None:
    assert json.loads((run / "result.json").read_text())["test"]["accuracy"] > 0.6  # a third by chance


def test_the_run_directory_holds_what_is_promised(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["train"]["run"]["seed"] == 3  # a flag
    assert config["train"]["data"]["image_size"] == 20  # from the TOML file
    assert config["recipe"]["epochs"] == 30  # as it took effect
    assert config["recipe"]["schedule"] == RECIPES["fast"].recipe.schedule
    assert config["format"] == 2
    assert config["data"]["class_names"] == ["across", "disc", "down"]
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 31))
    errors = [float(row["validation_error"]) for row in rows]
    result = json.loads((run / "result.json").read_text())
    assert result["validation_error"] == min(errors)
    assert errors[result["best_epoch"] - 1] == min(errors)
    names = {file.name for file in run.iterdir() if not file.name.startswith(("checkpoint-", ".", "events"))}
    files = "answers.npz config.json metrics.csv model.safetensors report.html result.json sample.safetensors"
    assert names == set(files.split())


def test_the_report_stands_alone_and_shows_what_is_promised(run: Path) -> None:
    page = (run / "report.html").read_text()
    for outside in ('src="http', "src='http", "<script", "@import", "url("):
        assert outside not in page.replace("url(#", "")
    for title in ("Learning", "What is taken for what", "Worst mistakes", "Where the winning class looks", "Config"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("data:image/png") > 6


def test_a_run_is_loaded_without_pickle_and_gives_the_tested_answers(run: Path) -> None:
    model = package.load(run)
    assert model.class_names == ("across", "disc", "down")
    data = load_dataset(run.parent / "pictures", "test", image_size=20)
    answers = model(data.view(data.images)).argmax(1)
    tested = json.loads((run / "result.json").read_text())["test"]
    assert (answers == data.labels).float().mean().item() == pytest.approx(tested["accuracy"])


def test_evaluate_prints_a_table_and_json(run: Path) -> None:
    output = finish(shortcaps("evaluate", run))
    assert "expected calibration error" in output
    assert "across" in output
    found = json.loads(finish(shortcaps("evaluate", run, "--json")))
    tested = json.loads((run / "result.json").read_text())["test"]
    assert {name: found[name] for name in tested} == tested
    other = json.loads(finish(shortcaps("evaluate", run, "--json", "--split", "validation")))
    assert other["split"] == "validation"


def test_evaluate_shows_another_data_set_as_the_network_was_trained(run: Path, tmp_path: Path) -> None:
    other = pictures(tmp_path / "others", 6, size=30)
    found = json.loads(finish(shortcaps("evaluate", run, "--data", other, "--json")))
    assert (found["dataset"], found["images"]) == ("others", 9)
    output = finish(shortcaps("evaluate", run, "--data", other, "--image-size", 24), expect=2)
    assert "has images of 1x24x24, but" in output
    (other / "test" / "disc").rename(other / "test" / "dot")
    (other / "train" / "disc").rename(other / "train" / "dot")
    (other / "val" / "disc").rename(other / "val" / "dot")
    for command in (("evaluate", run), ("export", run, "--int8", "--out", tmp_path / "it.onnx")):
        output = finish(shortcaps(*command, "--data", other), expect=2)
        assert "has the classes across, dot, down, but" in output
    assert not (tmp_path / "it.onnx").exists()


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions_train_to_the_end(tmp_path: Path, precision: str) -> None:
    data = pictures(tmp_path / "pictures", 12)
    config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=2, precision=precision, network=SMALL)
    result = train(config, tmp_path / "run")
    assert result is not None
    assert result.test.count == 18


def test_a_trial_on_few_images_sees_all_classes(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", 40)
    few = load_split(TrainConfig.of(data=str(data), image_size=20, max_images=30), "train", Display())
    assert len(few) == 30
    assert set(few.labels.tolist()) == {0, 1, 2}


MISTAKES = {
    "unknown data set": (["--data", "mnits"], "unknown data set 'mnits'"),
    "zero epochs": (["--epochs", "0"], "epochs 0 should be greater than or equal to 1"),
    "unknown routing": (["--routing", "fuzzi"], "unknown routing 'fuzzi': choose one of attention"),
    "unknown network": (["--model", "big"], "unknown network 'big': choose one of baseline"),
    "unknown recipe": (
        ["--recipe", "slow"],
        "unknown recipe 'slow': choose one of compact, compact-adam, fast, paper, or give the path",
    ),
    "negative lr": (["--lr", "-1"], "lr -1.0 should be greater than 0"),
    "too many devices": (["--devices", "999"], "devices 999 is too large: this machine has"),
    "too small images": (["--model", "baseline", "--image-size", "9"], "image_size 9 is too small: capsule layer 2"),
    "unwritable": (["--out", "/proc/nothing/run"], "/proc/nothing/run cannot be written to"),
    "nothing to resume": (["--resume", "/nowhere"], "/nowhere is not a run directory: there is no such folder"),
    "no such config": (["--config", "/nowhere.toml"], "/nowhere.toml does not exist"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_code_two(
    tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = MISTAKES[mistake]
    if "--data" not in arguments and "--resume" not in arguments:
        arguments = [*arguments, "--data", str(pictures(tmp_path / "pictures", 4))]
    if "--out" not in arguments and "--resume" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["shortcaps", "train", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"shortcaps: {message}")
    assert len(printed.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists(), "nothing is left of a run that was never begun"


def test_an_existing_run_is_neither_overwritten_nor_resumed_as_another(run: Path) -> None:
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    data = run.parent / "pictures"
    output = finish(shortcaps("train", "--data", data, "--out", run), expect=2)
    assert "already holds a run: choose another --out, or continue it with --resume" in output
    output = finish(shortcaps("train", "--resume", run, "--seed", 4), expect=2)
    assert "--seed 4 is not what" in output
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim(resume=False)
    with pytest.raises(RunError, match="is in use by another process"):
        second.claim(resume=False)
    first.release()
    assert not first.path.exists(), "a folder that got nothing goes away"
    second.path.mkdir()
    second.claim(resume=False)
    second.release()
    assert second.path.is_dir(), "but not one that was there before"
    assert not list(second.path.iterdir())


DISK_FULL = """
import errno
from shortcaps.runs import directory as run
from contextlib import contextmanager
original, written = run.atomic_write, []
@contextmanager
def full(target):
    written.append(target)
    if target.name.startswith("checkpoint-00000010"):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))
    with original(target) as file:
        yield file
run.atomic_write = full
"""


def test_a_full_disk_gets_one_line_exit_code_one_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    data, settings = pictures(tmp_path / "pictures"), settings_file(tmp_path)
    run = tmp_path / "run"
    output = finish(
        shortcaps("train", "--data", data, "--config", settings, "--out", run, patch=EVERY_EPOCH_IS_SAVED + DISK_FULL),
        expect=1,
    )
    assert "checkpoint-00000010.safetensors: No space left on device" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert "resuming after step 5 of 20" in finish(shortcaps("train", "--resume", run))


@pytest.mark.filterwarnings("ignore:image values run from")
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_loss_that_is_no_number_stops_with_its_place_and_leaves_good_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    data = pictures(tmp_path / "pictures", 12)
    original = Trainer.batch

    def batch(self: Trainer, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = original(self, step)
        return (images / 0 if step == 4 else images), labels

    monkeypatch.setattr(Trainer, "batch", batch)
    config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=3, precision=precision, network=SMALL)
    with pytest.raises(
        RunFault, match=r"the loss is not a number at step 4 \(epoch 2, batch 1\), first seen in layer stem"
    ) as caught:
        train(config, tmp_path / "run")
    assert "fuzzy routing" in str(caught.value)
    assert str(tmp_path / "run" / "last-good.safetensors") in str(caught.value)
    weights = read_tensors(tmp_path / "run" / "last-good.safetensors")
    assert weights
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    with pytest.raises(RunError, match="has no weights yet"):
        package.load(tmp_path / "run")
    with pytest.raises(RunFault, match="at step 4"):
        train(config, tmp_path / "run", resume=True)
    later = read_tensors(tmp_path / "run" / "last-good.safetensors")
    assert not torch.equal(later["stem.convolution.weight"], weights["stem.convolution.weight"]), "those of the start"


def test_routing_settings_of_a_config_leave_the_recipes_others_as_they_are(tmp_path: Path) -> None:
    data = load_dataset(str(pictures(tmp_path / "pictures", 12)), "train")
    config = TrainConfig.of(data=data.name, routing="em", network={"passes": 1, "routing_settings": {"sharpness": 2.0}})
    settings = network_settings(config, config.make_recipe(), data)
    assert settings["routing_settings"] == {"temperature": 16.0, "sharpness": 2.0}
    assert settings["passes"] == 1
    assert config.model.settings["routing_settings"] == {"sharpness": 2.0}, "what was asked for stays as it was"


def test_weights_that_are_no_numbers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures(tmp_path / "pictures", 12)
    original = Trainer.take_step

    def take_step(self: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
        if self.state.step == 2:
            with torch.no_grad():
                self.state.model.shortcuts[1].transform[0, 0, 0, 0] = float("inf")
        return original(self)

    monkeypatch.setattr(Trainer, "take_step", take_step)
    config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=3, network=SMALL)
    with pytest.raises(RunFault, match=r"step 2 .* the weights shortcuts\.1\.transform"):
        train(config, tmp_path / "run")
    weights = read_tensors(tmp_path / "run" / "last-good.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", 12)

    def weights(seed: int, name: str) -> bytes:
        config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=2, seed=seed, network=SMALL)
        train(config, tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    first, again, other = weights(0, "a"), weights(0, "b"), weights(1, "c")
    assert first == again
    assert first != other


def test_a_run_that_made_no_mistake_has_a_plot_without_a_logarithm() -> None:
    row = {"epoch": 1.0, "loss": 0.1, "accuracy": 1.0, "validation_error": 0.0}
    assert "svg" in curves([row, {**row, "epoch": 2.0}])  # a warning of matplotlib's would be an error here


def test_tensorboard_events_are_written_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert purge_step == 1
            assert folder == str(tmp_path / "run" / "events")

        def add_scalar(self, name: str, value: float, epoch: int) -> None:
            written.append((name, value, epoch))

        def flush(self) -> None: ...

        def close(self) -> None: ...

    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    data = pictures(tmp_path / "pictures", 12)
    train(TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=2, network=SMALL), tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    assert [(n, v, e) for n, v, e in written if n == "loss"] == [
        ("loss", float(r["loss"]), int(r["epoch"])) for r in rows
    ]


def test_training_brings_neither_the_full_trainer_nor_torchvision() -> None:
    program = (
        "import sys, shortcaps.training.loop; "
        "print([m for m in ('torchvision', 'torchmetrics', 'lightning', 'pytorch_lightning') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_fewer_images_than_processes_are_refused(tmp_path: Path) -> None:
    config = TrainConfig.of(data=str(pictures(tmp_path / "pictures", 4)), image_size=20, network=SMALL)
    fabric: Any = types.SimpleNamespace(world_size=64, device=torch.device("cpu"), is_global_zero=True)
    with pytest.raises(RunError, match="has 12 training images, fewer than the 64 processes: use fewer --devices"):
        Trainer(config, config.make_recipe(), RunDirectory(tmp_path / "run"), fabric, Display())


def test_weight_decay_leaves_norms_and_biases_alone() -> None:
    recipe = TrainConfig().make_recipe()
    model = make_network({"name": "cnn-23k"}, 0)
    assert type(make_optimizer(model, recipe, torch.device("cpu"))) is torch.optim.Adam
    decayed, others = make_optimizer(model, recipe.changed({"weight_decay": 0.1}), torch.device("cpu")).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in others["params"]} == {1}
    assert all(p.ndim > 1 for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_weights_learn_at_the_rate_that_their_layer_asks_for(weight_decay: float) -> None:
    recipe = TrainConfig().make_recipe().changed({"weight_decay": weight_decay})
    model = make_network({"name": "baseline", "shortcut": False}, 0)
    optimizer = make_optimizer(model, recipe, torch.device("cpu"))
    set_rate(optimizer, 0.01)
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    names = dict(model.named_parameters())
    assert rates.keys() == set(names.values())
    for number, gain in enumerate((1.0, math.sqrt(72), 12.0)):
        assert rates[names[f"capsule_layers.{number}.transform"]] == pytest.approx(0.01 * gain)
    assert {rate for parameter, rate in rates.items() if parameter.ndim < 6} == {0.01}
    shrinks = [group["lr"] * group["weight_decay"] for group in optimizer.param_groups if group["params"][0].ndim > 1]
    assert shrinks == pytest.approx([0.01 * weight_decay] * len(shrinks))


def test_rates_do_not_change_the_order_in_which_a_checkpoint_numbers_weights() -> None:
    model = make_network({"name": "baseline", "shortcut": False}, 0)
    optimizer = make_optimizer(model, TrainConfig().make_recipe(), torch.device("cpu"))
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in ordered] == [id(parameter) for parameter in model.parameters()]


def test_a_run_without_weight_decay_on_vectors_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """The optimiser then has two groups, whose states come back to the right parameters."""
    recipe = tmp_path / "decay.toml"
    text = (RECIPE_FOLDER / "fast.toml").read_text()
    recipe.write_text(text.replace("averaging = 0.99", "averaging = 0.99\nweight_decay = 0.05"))
    data = pictures(tmp_path / "pictures", 12)
    config = TrainConfig.of(data=str(data), image_size=20, batch_size=12, epochs=3, recipe=str(recipe), network=SMALL)
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for file in (tmp_path / "resumed").glob("checkpoint-00000009.*"):
        file.unlink()
    (tmp_path / "resumed" / "model.safetensors").unlink()
    recipe.unlink()  # a run goes on by the recipe it was begun with
    train(config, tmp_path / "resumed", resume=True)
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "resumed"))
    assert first.read_bytes() == second.read_bytes()


def test_seeds_differ_by_purpose_and_moment() -> None:
    seeds = {derive(seed, what, n) for seed in range(3) for what in ("order", "augment") for n in range(50)}
    assert len(seeds) == 300


def test_the_mnist_example_runs_on_a_tiny_setting() -> None:
    from shortcaps.errors import DataError

    try:
        load_dataset("mnist", "test")
    except DataError as error:
        pytest.skip(f"MNIST cannot be fetched here: {str(error).splitlines()[0]}")
    script = Path(__file__).parents[2] / "examples" / "train_mnist.py"
    result = subprocess.run([sys.executable, script, "--tiny"], check=True, capture_output=True, text=True, timeout=120)
    assert "the first test image is a 7" in result.stdout


def test_a_folder_of_ones_own_is_trained_with_a_recommended_network_unless_one_is_named(tmp_path: Path) -> None:
    data = pictures(tmp_path / "pictures", 8)
    few = ("--data", data, "--image-size", 20, "--epochs", 1, "--batch-size", 12)
    output = finish(shortcaps("train", *few, "--out", tmp_path / "run"))
    assert "network: compact-23k, as no --model was given" in output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["network"]["name"] == "compact-23k"
    output = finish(shortcaps("train", *few, "--model", "baseline", "--out", tmp_path / "other"))
    assert "network:" not in output
    assert json.loads((tmp_path / "other" / "config.json").read_text())["network"]["name"] == "baseline"
    assert TrainConfig.of(data="mnist").model.name == "baseline"


@pytest.mark.parametrize(
    ("name", "side", "said"),
    [("baseline", 28, None), ("compact-23k", 96, None), ("cnn-23k", 96, None), ("baseline", 96, "compact-23k has 23,")],
)
def test_a_network_that_grows_with_its_images_is_advised_against_for_large_ones(
    name: str, side: int, said: str | None
) -> None:
    model = package.create_model(name, image_size=side, channels=3)
    advice = smaller_network(model, 300)
    assert (advice is None) if said is None else (said in str(advice) and "--model compact-23k" in str(advice))


@pytest.mark.parametrize(
    ("precision", "device", "processor", "is_advised"),
    [
        ("bf16-mixed", "cpu", "AVX2", True),
        ("bf16-mixed", "cpu", "AVX512", False),
        ("bf16-mixed", "cuda", "AVX2", False),
        ("32-true", "cpu", "AVX2", False),
    ],
)
def test_bfloat16_is_advised_against_where_the_processor_emulates_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, device: str, processor: str, is_advised: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
    advice = faster_precision(precision, torch.device(device))
    assert (advice is not None and "--precision 32-true" in advice) == is_advised

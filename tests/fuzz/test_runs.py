"""Whatever a run's files hold, loading gives a network that answers, or one line that says why not, and soon."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shortcaps
from shortcaps.errors import RunError
from shortcaps.pretrained import FOLDER
from shortcaps.reporting.answers import StoredAnswers
from shortcaps.runs.directory import RunDirectory, read_manifest
from shortcaps.runs.weights import write_weights
from tests.fuzz.support import damaged, fuzz, mutated, refused_in_one_line

RUNS = Path(__file__).parents[1] / "fixtures" / "runs-0.1"
CONFIGS = {
    name: json.loads((RUNS / name / "config.json").read_text()) for name in ("shortcut-fuzzy", "sequential-em", "plain")
}
NEW = read_manifest(RUNS / "shortcut-fuzzy").to_json()


def load_and_ask(run: Path) -> None:
    begun = time.process_time()
    with refused_in_one_line(RunError):
        model = shortcaps.load(run)
        assert time.process_time() - begun < 1
        assert len(model.class_names) == model.classes
        if max(model.image_size) > 64:
            return
        with torch.inference_mode():
            answer = model(torch.zeros(1, model.channels, *model.image_size))
        assert answer.shape == (1, model.classes)
    assert time.process_time() - begun < 2


def load_with_config(name: str, config: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        os.symlink(RUNS / name / "model.safetensors", Path(folder) / "model.safetensors")
        load_and_ask(Path(folder))


@fuzz(mutated(CONFIGS["shortcut-fuzzy"], NEW), few=60)
def test_a_changed_config_of_a_capsule_network(config: dict[str, Any]) -> None:
    load_with_config("shortcut-fuzzy", config)


@fuzz(mutated(CONFIGS["sequential-em"]))
def test_a_changed_config_of_a_sequential_network(config: dict[str, Any]) -> None:
    load_with_config("sequential-em", config)


@fuzz(mutated(CONFIGS["plain"]))
def test_a_changed_config_of_a_plain_network(config: dict[str, Any]) -> None:
    load_with_config("plain", config)


@fuzz(mutated(NEW["network"]).map(lambda network: {**NEW, "network": network}), few=60)
def test_changed_settings_of_a_network(config: dict[str, Any]) -> None:
    load_with_config("shortcut-fuzzy", config)


@fuzz(damaged(json.dumps(NEW).encode()))
def test_a_damaged_config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(RunError):
        (Path(folder) / "config.json").write_bytes(data)
        read_manifest(Path(folder))


@fuzz(damaged((RUNS / "shortcut-fuzzy" / "model.safetensors").read_bytes()))
def test_damaged_weights(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(RUNS / "shortcut-fuzzy" / "config.json", Path(folder) / "config.json")
        (Path(folder) / "model.safetensors").write_bytes(data)
        load_and_ask(Path(folder))


def _checkpoint() -> tuple[bytes, bytes]:
    return tuple(
        (RUNS / "interrupted" / f"checkpoint-00000007.{kind}").read_bytes() for kind in ("json", "safetensors")
    )  # type: ignore[return-value]


@fuzz(damaged(_checkpoint()[0]))
def test_a_damaged_checkpoint(note: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(RunError):
        for kind, data in zip(("json", "safetensors"), (note, _checkpoint()[1]), strict=True):
            (Path(folder) / f"checkpoint-00000007.{kind}").write_bytes(data)
        digest = read_manifest(RUNS / "interrupted").digest
        RunDirectory(Path(folder)).read_checkpoint(digest)


def _stored_answers() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.npz"
        numbers = torch.from_numpy(np.arange(300) % 10)
        StoredAnswers(numbers, numbers.flip(0), numbers).write(file)
        return file.read_bytes()


@fuzz(damaged(_stored_answers()))
def test_damaged_answers(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(RunError):
        file = Path(folder) / "answers.npz"
        file.write_bytes(data)
        assert StoredAnswers.read(file).right.dtype == torch.bool


def _bundled() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        write_weights(shortcaps.load("mnist-baseline-fuzzy").state_dict(), file)
        return file.read_bytes()


BUNDLED = _bundled()


@fuzz(damaged(BUNDLED).filter(lambda data: data != BUNDLED))
def test_no_damaged_file_with_a_checksum_is_loaded(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(FOLDER / "mnist-baseline-fuzzy" / "config.json", Path(folder) / "config.json")
        (Path(folder) / "model.safetensors").write_bytes(data)
        with refused_in_one_line(RunError):
            shortcaps.load(folder)
            raise AssertionError("it was loaded")

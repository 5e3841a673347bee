"""Networks that know the answer, or nothing, and images whose answer can be read off them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from shortcaps.data import affnist, multimnist
from shortcaps.data.fetch import Mirror
from shortcaps.layers import ClassCapsules
from shortcaps.models import CapsuleNetwork, Network
from shortcaps.reproduce.grid import Job, Processes
from shortcaps.routing import make_routing
from shortcaps.studies.digits import Digits
from shortcaps.studies.measured import Measured, Measurement, Scores
from shortcaps.studies.trained import Trained
from shortcaps.training.run import train
from tests.data.fakes import fake_mnist

NOWHERE = cast("Trained", None)
"""For measures that do not ask where a network comes from."""


def coded_digits(count: int = 60) -> Digits:
    """Squares on black whose brightness is that of their class: 5, 15, 25 …"""
    labels = torch.arange(count) % 10
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 8:20, 8:20] = (5 + 10 * labels).to(torch.uint8)[:, None, None, None]
    return Digits(images, labels)


class Plain(Network):
    """Answers by a function of the images; has a linear layer like every plain network, whose logits are the answers."""

    sums_to_one = True

    def __init__(self, answer: Callable[[Tensor], Tensor], side: int = 40) -> None:
        super().__init__((side, side), 1, 10)
        self.answer = answer
        self.classify = nn.Linear(10, 10)
        with torch.no_grad():
            self.classify.weight.copy_(torch.eye(10))
            self.classify.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        scores = self.answer(images).to(self.classify.weight.dtype) + 0 * images.flatten(1)[:, :1]
        return self.classify(scores).softmax(-1)


def reads_the_code(images: Tensor) -> Tensor:
    """Logits (batch, 10): 20 for the class that the brightness of the image stands for."""
    which = ((images.amax((1, 2, 3)) * 255).round() / 10).floor().long().clamp(0, 9)
    return 20.0 * torch.nn.functional.one_hot(which, 10)


def says_nothing(images: Tensor) -> Tensor:
    """Logits (batch, 10) that are the same for every image, with class 0 a little ahead."""
    return torch.eye(10)[0].expand(len(images), 10)


class Capsules(CapsuleNetwork):
    """Class capsules by a function of the images that gives poses (batch, 10, 4, 4) and activations (batch, 10)."""

    shortcut = True

    def __init__(self, answer: Callable[[Tensor], tuple[Tensor, Tensor]], side: int = 40) -> None:
        super().__init__((side, side), 1, 10, make_routing("fuzzy"), "auto")
        self.answer = answer

    def _capsules(self, images: Tensor, keep_coefficients: bool) -> ClassCapsules:
        return ClassCapsules(*self.answer(images))


def in_process(job: Job, device: int, devices: int, processes: Processes) -> str | None:
    """Trains a job here instead of in a process of its own."""
    train(job.config, job.run, resume=(job.run / "config.json").is_file())
    return None


def measurement(
    network: str, seed: int, scores: dict[str, Any], *, part: str = "", images: str = "same"
) -> Measurement:
    """A measurement out of nothing but scores."""
    found = {name: value if isinstance(value, Scores) else Scores(value) for name, value in scores.items()}
    record = {
        "study": "made up",
        "network": network,
        "seed": seed,
        "part": part,
        "quick": False,
        "values": {},
        "units": {},
        "images": images,
        "run": {"conditions": {"epochs": 12}},
    }
    return Measurement(record, found)


def fake_digits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a small set in the place of MNIST and of all that is made from it; nothing is fetched."""
    monkeypatch.setattr(multimnist, "MNIST", fake_mnist(folder, monkeypatch))
    monkeypatch.setattr(affnist, "MIRROR", Mirror("http://127.0.0.1:9"))  # nobody listens there


def mean_of(measured: Measured, name: str) -> float:
    return measured.scores[name].mean


def no_training(job: Job, device: int, devices: int, processes: Processes) -> str | None:
    raise AssertionError(f"{job} should not be trained")


def folders(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}

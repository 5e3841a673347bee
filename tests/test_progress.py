"""Lines about long work: not too often, and with an estimate that is right for steady work."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
import torch
from rich.console import Console

from shortcaps import progress
from shortcaps.cli import app
from shortcaps.data import Dataset
from shortcaps.inference.evaluate import class_activations
from shortcaps.models import create_model
from shortcaps.progress import Pace, duration
from shortcaps.training.display import ConsoleDisplay


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_a_line_is_due_every_half_minute_and_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace()
    said = {}
    for done in range(1, 101):  # a second for each of a hundred pieces of work
        clock.now += 1
        if (left := pace.left(done, 100)) is not None:
            said[done] = left
    assert said == {30: "about 70 s left", 60: "about 40 s left", 90: "about 10 s left"}


def test_what_was_done_before_does_not_count_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(done=900)
    clock.now += 60
    assert pace.left(900, 1000) is None, "nothing is known yet"
    assert pace.left(930, 1000) == "about 140 s left".replace("140 s", "2 min")
    clock.now += 60
    assert pace.left(1000, 1000) is None, "it is done"


def test_times_are_for_people() -> None:
    assert [duration(s) for s in (0.4, 89, 91, 3000, 9000)] == ["0 s", "89 s", "2 min", "50 min", "2.5 h"]


def test_training_that_is_redirected_prints_a_line_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    output = StringIO()
    display = ConsoleDisplay(Console(file=output, force_terminal=False))
    display.begin(4680, 680)
    for done in range(700, 1081, 20):
        clock.now += 2
        display.step(done, "2/12", 0.25, 0.975, 1234.5)
    assert output.getvalue() == (
        "epoch 2/12, step 980 of 4680: loss 0.250  accuracy 97.50%  1,234 images/s, about 6 min left\n"
    )


def test_a_long_evaluation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    images, labels = torch.zeros(8, 1, 28, 28, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    data = Dataset("x", "Things", "test", "default", images, labels, ("a", "b"))
    model = create_model("cnn-23k", image_size=28, channels=1, classes=2)
    with caplog.at_level(logging.INFO, "shortcaps"):
        class_activations(model, data, batch_size=2)
    assert caplog.messages[0].startswith("Things: 2 of 8 images seen, about ")
    assert len(caplog.messages) == 3


def test_a_status_that_is_redirected_is_noted_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), []
    module = __import__("shortcaps.cli.app", fromlist=["note"])
    monkeypatch.setattr(module, "errors", Console(file=StringIO(), force_terminal=False))
    monkeypatch.setattr(module, "note", said.append)
    with module.status() as show:
        for number in range(5):
            show(f"case {number}")
            clock.now += 20
    assert said == ["case 2", "case 4"]
    assert app is module.app

"""Small runs for the tests of training: a folder of pictures that can be told apart, and the command line in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shortcaps.training.loop import Trainer

SMALL_NETWORK = """
[network]
capsule_channels = [2, 3, 2]
backbone_settings = { width = 4 }
"""


def pictures(root: Path, per_class: int = 40, size: int = 20) -> Path:
    """Three classes: a bar across, a bar down, a disc, at random places on noise."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    for split, count in (("train", per_class), ("val", per_class // 2), ("test", per_class // 2)):
        for name in ("across", "disc", "down"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                cy, cx = random.integers(7, size - 7, 2)
                shape = {
                    "across": (abs(y - cy) < 2) & (abs(x - cx) < 6),
                    "down": (abs(x - cx) < 2) & (abs(y - cy) < 6),
                    "disc": (y - cy) ** 2 + (x - cx) ** 2 < 16,
                }[name]
                picture = (shape * 200 + random.integers(0, 40, (size, size))).clip(0, 255).astype(np.uint8)
                Image.fromarray(picture).save(folder / f"{n}.png")
    return root


class PowerFailure(Exception):
    """Stands for a process that ends in the middle of something."""


@contextmanager
def failing_at(step: int) -> Iterator[None]:
    """Within, training ends before this step without saving anything, as if the process were killed."""
    original = Trainer.take_step

    def take_step(self: Trainer) -> Any:
        if self.state.step == step:
            raise PowerFailure
        return original(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(PowerFailure):
        patch.setattr(Trainer, "take_step", take_step)
        yield


def settings_file(place: Path, **settings: object) -> Path:
    """A TOML file for a small, quick run."""
    chosen = {"image-size": 20, "batch-size": 24, "epochs": 4, **settings}
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in chosen.items()
    ]
    file = place / "settings.toml"
    file.write_text("\n".join(lines) + SMALL_NETWORK)
    return file


EVERY_EPOCH_IS_SAVED = "import shortcaps.training.loop as loop\nloop.SECONDS_OF_SHORT_EPOCHS = -1.0\n"
"""A patch for `shortcaps` below."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def shortcaps(*arguments: object, patch: str = "", **more: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, with a patch of the package run first."""
    program = f"import sys; sys.argv[0] = 'shortcaps'\n{patch}\nfrom shortcaps.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
    )


def finish(process: subprocess.Popen[str], expect: int = 0, timeout: float = 60) -> str:
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == expect, output
    return output

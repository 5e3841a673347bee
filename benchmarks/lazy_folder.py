"""The memory that training on 100,000 photos at 128 px takes, when they are decoded as needed (goal: below 2 GB).

    python benchmarks/lazy_folder.py --json results/performance/lazy_folder.json

The folder is made first: some thousand different JPEGs of 160x120 pixels, cheaply drawn, and hard links to them up to the number asked for,
so that it takes little time and disk. To the loader each is a file of its own, which is hashed, decoded and cached by itself.

Then a process of its own opens the folder as `shortcaps train` does, which decodes every picture once; takes some training steps; goes
through further batches of the epoch (order, decoding, augmentation) without the network, whose memory depends on the batch alone;
validates; and says what its memory was at most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from shortcaps.environment import describe_environment
from shortcaps.runs.directory import RunDirectory
from shortcaps.training import TrainConfig
from shortcaps.training.display import Display
from shortcaps.training.loop import Trainer
from shortcaps.training.setup import make_fabric

CLASSES, WIDTH, HEIGHT, SIZE = 10, 160, 120, 128


def draw(number: int, label: int) -> Image.Image:
    """A disc of the class's hue at some place, on a gradient with some noise."""
    random = np.random.default_rng(number)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    colours = random.integers(0, 256, (2, 3))
    ramp = (x / WIDTH * random.random() + y / HEIGHT * random.random())[..., None] / 2
    pixels = colours[0] * (1 - ramp) + colours[1] * ramp + random.normal(0, 12, (HEIGHT, WIDTH, 1))
    hue = 2 * np.pi * label / CLASSES
    disc = (y - random.integers(30, 90)) ** 2 + (x - random.integers(30, 130)) ** 2 < random.integers(12, 28) ** 2
    pixels[disc] = 128 + 110 * np.cos(hue + np.array([0, 2, 4]) * np.pi / 3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make_folder(root: Path, pictures: int, different: int) -> None:
    """`train/` with so many pictures, `val/` and `test/` with a fiftieth each."""
    drawn = root / "drawn"
    drawn.mkdir(parents=True)
    for n in range(different):
        draw(n, n % CLASSES).save(drawn / f"{n}.jpg", quality=80)
    for split, count in (("train", pictures), ("val", pictures // 50), ("test", pictures // 50)):
        for label in range(CLASSES):
            (root / "photos" / split / f"class {label}").mkdir(parents=True)
        for n in range(count):
            label = n % different % CLASSES
            os.link(drawn / f"{n % different}.jpg", root / "photos" / split / f"class {label}" / f"{n}.jpg")


def megabytes() -> float:
    """What the memory of this process was at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def train_some(folder: Path, model: str, batch_size: int, steps: int, batches: int | None) -> dict[str, Any]:
    """Some training steps, further batches of the epoch, a validation; run in a process of its own."""
    figures: dict[str, Any] = {"imports": megabytes()}
    config = TrainConfig.of(
        data=str(folder / "photos"), image_size=SIZE, colour=True, model=model, batch_size=batch_size
    )
    fabric = make_fabric(config)
    fabric.launch()
    trainer = Trainer(config, config.make_recipe(), RunDirectory(folder / "run"), fabric, Display())
    figures["opened"] = megabytes()
    assert not isinstance(trainer.images, torch.Tensor), "the images are decoded as needed"
    for _ in range(steps):
        trainer.take_step()
    figures["steps"] = megabytes()
    last = trainer.steps_per_epoch if batches is None else min(steps + batches, trainer.steps_per_epoch)
    for step in range(steps, last):
        trainer.batch(step)
    figures["batches"] = megabytes()
    trainer.validation_error()
    figures["validated"] = megabytes()
    taken = {"training_steps": steps, "further_batches": last - steps, "batches_of_an_epoch": trainer.steps_per_epoch}
    return figures | {"peak_megabytes": megabytes(), **taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--different", type=int, default=4_000, help="how many of them are drawn; the others are links")
    parser.add_argument("--model", default="compact-23k")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batches", type=int, help="how many batches to go through besides; by default all")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(train_some(asked.child, asked.model, asked.batch_size, asked.steps, asked.batches)))
        return
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make_folder(root, asked.pictures, asked.different)
        command = [sys.executable, __file__, "--child", str(root), "--model", asked.model]
        command += ["--batch-size", str(asked.batch_size), "--steps", str(asked.steps)]
        command += [] if asked.batches is None else ["--batches", str(asked.batches)]
        # A cache folder of its own, so that nothing is known of the pictures beforehand.
        environment = {**os.environ, "SHORTCAPS_CACHE": str(root / "cache")}
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    record = {
        "pictures": asked.pictures,
        "different_pictures": asked.different,
        "image_size": SIZE,
        "model": asked.model,
        "batch_size": asked.batch_size,
        "megabytes_decoded": asked.pictures * 1.04 * 3 * SIZE * SIZE / 1e6,
        "figures": json.loads(output),
        "environment": describe_environment(),
    }
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()

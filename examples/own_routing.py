"""Write a routing of your own, check its laws, and train, load and serve a network with it, by name like any other.

python examples/own_routing.py        all of it on pictures that are drawn here, in about a minute

This file is a plug-in as well, so the command line takes it:

    shortcaps train --plugin examples/own_routing.py --routing nearest
    shortcaps serve --plugin examples/own_routing.py runs/mnist-baseline-nearest
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import shortcaps
from shortcaps import Capsules, Routing, Votes
from shortcaps.testing import check_routing


@shortcaps.register_routing
@dataclass(frozen=True)
class Nearest(Routing):
    """Weighs votes by a softmax over negative distances: fuzzy routing's idea with attention's normalisation."""

    name = "nearest"

    temperature: float = field(default=1.0, metadata={"help": "the smaller, the harder the choice"})

    def sweeps(self, *, from_start: bool, activates: bool) -> int:
        return 2 * self.iterations - (0 if from_start else 1) + (1 if activates else 0)

    def route(
        self,
        votes: Votes,
        start: Tensor | None,
        activations: Tensor | None,
        thresholds: Mapping[str, Tensor],
        activate: bool,
        keep_coefficients: bool,
    ) -> Capsules:
        pose = start
        for _ in range(self.iterations):
            if pose is None:
                shape = (votes.batch, votes.inputs, votes.outputs)
                memberships = torch.full(shape, 1 / votes.outputs, dtype=votes.dtype, device=votes.device)
            else:
                memberships = (-votes.distance(pose) / self.temperature).softmax(-1)
            weights = memberships if activations is None else memberships * activations.unsqueeze(-1)
            coefficients = weights / (weights.sum(1, keepdim=True) + 1e-12)
            pose = votes.weighted_sum(coefficients)
        assert pose is not None
        variance = (coefficients * votes.distance(pose)).sum(1)
        return Capsules(pose, torch.exp(-variance), coefficients, memberships)


def draw_pictures(root: Path, size: int = 20) -> None:
    """Bars across, bars down and discs, anywhere on noise: a folder for each class."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    for split, count in (("train", 60), ("val", 20), ("test", 20)):
        for name in ("across", "disc", "down"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                cy, cx = random.integers(7, size - 7, 2)
                shape = {
                    "across": (abs(y - cy) < 2) & (abs(x - cx) < 6),
                    "down": (abs(x - cx) < 2) & (abs(y - cy) < 6),
                    "disc": (y - cy) ** 2 + (x - cx) ** 2 < 16,
                }[name]
                picture = (shape * 200 + random.integers(0, 40, (size, size))).clip(0, 255)
                Image.fromarray(picture.astype(np.uint8)).save(folder / f"{number}.png")


def ask_the_server(run: Path, picture: Path) -> str:
    """Start `shortcaps serve` with this file as its plug-in, and ask it what a picture shows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "shortcaps", "serve", "--plugin", __file__, str(run), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/predict"
    question = urllib.request.Request(address, picture.read_bytes(), {"Content-Type": "image/png"})
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(question) as answer:
                    return str(json.load(answer)["answer"])
            except urllib.error.URLError:
                time.sleep(0.2)
        raise TimeoutError("the server did not answer")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    from shortcaps.training import TrainConfig, train

    for law, holds in check_routing(Nearest()).items():
        print(f"{'holds' if holds else 'does not hold':14} {law}")

    with tempfile.TemporaryDirectory() as place:
        pictures, run = Path(place) / "pictures", Path(place) / "run"
        draw_pictures(pictures)
        config = TrainConfig.of(data=str(pictures), image_size=20, routing="nearest", epochs=40, batch_size=20, lr=5e-3)
        result = train(config, run)
        assert result is not None
        print(f"test accuracy {result.test.accuracy:.1%} after {result.seconds:.0f} s; a third would be chance")

        model = shortcaps.load(run)
        print(f"loaded: {model.title}")
        picture = pictures / "test" / "disc" / "0.png"
        print(f"the server takes a picture of a disc for: {ask_the_server(run, picture)}")

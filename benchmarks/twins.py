"""What capsules cost: a training step and one image of each compact network beside its plain twin, interleaved.

    python benchmarks/twins.py --json results/performance/twins.json

The goals: a step takes at most 1.2 times the twin's, one image at most 1.5 times. Only ratios of one measurement mean anything.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import torch

from shortcaps.allocator import keep_freed_memory
from shortcaps.bench.timing import milliseconds, time_interleaved
from shortcaps.environment import describe_environment
from shortcaps.files import write_json
from shortcaps.losses import log_probability_loss
from shortcaps.models import Network, create_model
from shortcaps.recipes import RECIPES
from shortcaps.training.optimizer import make_optimizer

CASES = (
    ("compact-23k", 1, 28),
    ("compact-23k", 1, 40),
    ("compact-68k", 1, 28),
    ("compact-68k", 1, 40),
    ("compact-160k", 3, 32),
)
BATCH, CLASSES = 128, 10
RECIPE = RECIPES["compact"].recipe.changed({"lr": 1e-4})
"""Whose optimiser a step takes."""


def train_step(model: Network, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    log_probability_loss(model(images), labels).backward()
    optimizer.step()


@torch.inference_mode()
def answer(model: Network, image: torch.Tensor) -> None:
    model(image)


def measure(name: str, channels: int, side: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of the network and of its twin, and their ratios."""
    steps, answers = {}, {}
    for network in (name, f"{name}-plain"):
        torch.manual_seed(0)
        model = create_model(network, image_size=side, channels=channels, classes=CLASSES).train()
        optimizer = make_optimizer(model, RECIPE, torch.device("cpu"))
        batch = torch.rand(BATCH, channels, side, side), torch.randint(CLASSES, (BATCH,))
        steps[network] = functools.partial(train_step, model, optimizer, *batch)
        asked = create_model(network, image_size=side, channels=channels, classes=CLASSES).eval()
        answers[network] = functools.partial(answer, asked, torch.rand(1, channels, side, side))
    found: dict[str, Any] = {"network": name, "image_size": side, "channels": channels, "batch": BATCH}
    for what, cases in (("step", steps), ("one_image", answers)):
        times = time_interleaved(cases, rounds, "cpu")
        own, twins = milliseconds(times[name]), milliseconds(times[f"{name}-plain"])
        found |= {f"{what}_ms": own, f"{what}_ms_of_twin": twins, f"{what}_ratio": own / twins}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    keep_freed_memory()  # as training and the server do
    results = []
    for name, channels, side in CASES:
        results.append(measure(name, channels, side, arguments.rounds))
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in results[-1].items()}), flush=True)
    if arguments.json:
        write_json(
            arguments.json,
            {
                "machine": describe_environment(),
                "rounds": arguments.rounds,
                "optimizer": RECIPE.optimizer,
                "results": results,
            },
        )


if __name__ == "__main__":
    main()

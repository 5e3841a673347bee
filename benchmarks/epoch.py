"""Where the time of an epoch goes: training steps, and everything around them (validation, checkpoint, display).

python benchmarks/epoch.py --json results/performance/epoch.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from shortcaps.allocator import keep_freed_memory
from shortcaps.environment import describe_environment
from shortcaps.runs.directory import RunDirectory
from shortcaps.training import TrainConfig
from shortcaps.training.display import Display
from shortcaps.training.loop import Trainer
from shortcaps.training.setup import make_fabric


class Timed(Trainer):
    """The trainer as it is, with a watch beside every step. On a GPU steps return early: this is for the CPU."""

    in_steps = 0.0

    def take_step(self) -> tuple[Tensor, Tensor]:
        started = time.perf_counter()
        result = super().take_step()
        self.in_steps += time.perf_counter() - started
        return result


def measure(data: str, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig.of(data=data, epochs=epochs)
        run = RunDirectory(Path(folder))
        trainer = Timed(config, config.make_recipe(), run, make_fabric(config), Display())
        started = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - started
    return {
        "data": data,
        "epochs": epochs,
        "seconds": whole,
        "seconds_in_steps": trainer.in_steps,
        "share_in_steps": trainer.in_steps / whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_freed_memory()
    lines = [measure(data, 1) for data in ("mnist", "affnist")]
    for line in lines:
        print(f"{line['data']}: {line['share_in_steps']:.1%} of {line['seconds']:.0f} s in training steps")
    if arguments.json:
        record = {"environment": describe_environment(), "epochs": lines}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

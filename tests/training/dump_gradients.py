"""Run by test_parallel.py, plainly and under torchrun: the gradients of the first batch, as one process or several see them."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from shortcaps.runs.config import TrainConfig, read_settings
from shortcaps.runs.directory import RunDirectory
from shortcaps.training.display import Display
from shortcaps.training.loop import Trainer
from shortcaps.training.setup import make_fabric


def main(data: str, settings: str, target: str) -> None:
    config = TrainConfig.of(**read_settings(Path(settings)), data=data)
    fabric = make_fabric(config)
    fabric.launch()
    trainer = Trainer(config, config.make_recipe(), RunDirectory(Path(target).parent), fabric, Display())
    images, labels = trainer.batch(0)
    loss = trainer.loss(trainer.network(images), labels, epoch=0)
    trainer.backward(loss)
    if fabric.is_global_zero:
        gradients = {
            name: p.grad.contiguous() for name, p in trainer.state.model.named_parameters() if p.grad is not None
        }
        gradients["running mean"] = trainer.state.model.stem.norm.running_mean
        gradients["world size"] = torch.tensor(fabric.world_size)
        save_file(gradients, target)


if __name__ == "__main__":
    main(*sys.argv[1:])

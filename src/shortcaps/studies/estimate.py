"""How long a training will take here and now, from a few steps of it."""

from __future__ import annotations

import time
from typing import Any

import torch

from shortcaps.data import Dataset
from shortcaps.losses import LOSSES
from shortcaps.runs.config import TrainConfig
from shortcaps.studies.trained import Wanted
from shortcaps.training.display import Display
from shortcaps.training.setup import augmentation, load_split, make_network, network_settings

_STEPS = 3


class Stopwatch:
    """Estimates the training time of runs; of runs that differ in their seed only, the first is timed.

    Evaluation after each epoch and at the end is not part of it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._sizes: dict[str, Dataset] = {}

    def __call__(self, wanted: Wanted) -> float:
        """Seconds that the training of a run takes."""
        config = wanted.job.config.changed(seed=0, draw=0)
        key = repr(config)
        if key not in self._seconds:
            self._seconds[key] = self._estimate(config)
        return self._seconds[key]

    def _training_images(self, config: TrainConfig) -> Dataset:
        key = repr(config.data)
        if key not in self._sizes:
            self._sizes[key] = load_split(config, "train", Display())
        return self._sizes[key]

    def _estimate(self, config: TrainConfig) -> float:
        recipe, data = config.make_recipe(), self._training_images(config)
        batch = min(recipe.batch_size, len(data))
        model: Any = make_network(network_settings(config, recipe, data), 0)
        images = augmentation(recipe, data)(data.images[:batch], torch.Generator().manual_seed(0))
        loss = LOSSES[recipe.loss]
        times = []
        for _ in range(_STEPS):
            began = time.perf_counter()
            loss(model(images), data.labels[:batch], epoch=0.0, **recipe.loss_settings).backward()
            times.append(time.perf_counter() - began)
        return min(times) * recipe.epochs * max(1, len(data) // batch)

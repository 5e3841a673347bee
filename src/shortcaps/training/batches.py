"""Which images each step is shown: a function of the seed and the number of the step."""

from __future__ import annotations

from math import ceil

import torch
from torch import Generator, Tensor

from shortcaps.recipes import Recipe
from shortcaps.training.seeds import derive


class Batches:
    """The training images of every step, as indices.

    All batches are of one size. If the last images of an epoch do not fill one, they are left out (`drop_last`), or all batches are made a
    little smaller, so that one more of them holds every image; what is then still missing is filled with a few images shown twice.

    Args:
        labels: (count,), class numbers of the training images.
        classes: Number of classes.
        recipe: Says how large batches are, what becomes of the rest, and whether classes are drawn equally often.
        seed: The seed of the run.
        processes: Number of processes that share a batch; its size is a multiple of it.

    Attributes:
        size: Images in a batch.
        per_epoch: Batches in an epoch.
    """

    def __init__(self, labels: Tensor, classes: int, recipe: Recipe, seed: int, processes: int = 1) -> None:
        self.labels, self.classes, self.seed = labels.cpu(), classes, seed
        self.balanced = recipe.balance == "sampling"
        count = len(labels)
        self.size = min(recipe.batch_size, count // processes * processes)
        if recipe.drop_last:
            self.per_epoch = max(1, count // self.size)
        else:
            self.per_epoch = ceil(count / self.size)
            self.size = ceil(ceil(count / self.per_epoch) / processes) * processes
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """Which images a step is shown, (size,)."""
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch)
        return self._order[number * self.size : (number + 1) * self.size]

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch in their order, at least (per_epoch · size,)."""
        generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
        order = self._balanced(generator) if self.balanced else torch.randperm(len(self.labels), generator=generator)
        missing = self.per_epoch * self.size - len(order)
        return torch.cat([order, order[:missing]]) if missing > 0 else order

    def _balanced(self, generator: Generator) -> Tensor:
        """As many images as there are, equally many of each class: rare ones several times, frequent ones not all."""
        present = [own for own in (torch.nonzero(self.labels == k).squeeze(1) for k in range(self.classes)) if len(own)]
        each, rest = divmod(len(self.labels), len(present))
        lucky = set(torch.randperm(len(present), generator=generator)[:rest].tolist())
        drawn = []
        for number, own in enumerate(present):
            wanted = each + (number in lucky)
            turns = [torch.randperm(len(own), generator=generator) for _ in range(ceil(wanted / len(own)))]
            drawn.append(own[torch.cat(turns)[:wanted]] if turns else own[:0])
        together = torch.cat(drawn)
        return together[torch.randperm(len(together), generator=generator)]

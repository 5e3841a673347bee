"""MultiMNIST: two overlapping digits of different classes in one image, both to be named (Sabour et al. 2017)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.data.augment import Shift, View
from shortcaps.data.dataset import Dataset
from shortcaps.data.idx import read_split
from shortcaps.data.mnist import MNIST
from shortcaps.data.registry import register_dataset

SIDE = 36
SHIFT = 4
"""Each digit is moved by up to this many pixels in each direction."""
SEEDS = {"train": 36_001, "validation": 36_002, "test": 36_003}
PAIRS = tuple(combinations(range(10), 2))
CLASS_NAMES = tuple(f"{a} {b}" for a, b in PAIRS)
_AUGMENT = 2
"""Pixels that a pair is shifted by in training, which a digit's margin leaves room for."""


@register_dataset(
    "multimnist",
    label="MultiMNIST",
    description="two overlapping digits, both to be named; a class is a pair of digits",
    image_size=SIDE,
    bright_on_dark=True,
    notes=(
        "MultiMNIST's pairs are drawn here from MNIST by its published description; the published set was never a file.",
    ),
)
def load_multimnist(split: str, protocol: str, *, folder: Path | None = None) -> Dataset:
    """Pairs of digits of the same split of MNIST: one for each digit, in the test one for every two, so that no digit is in two pairs."""
    digits, labels = read_split(MNIST, split, folder)
    generator = torch.Generator().manual_seed(SEEDS[split])
    pairs = disjoint_pairs(labels, generator) if split == "test" else pairs_for_each(labels, generator)
    return Dataset(
        "multimnist",
        "MultiMNIST",
        split,
        protocol,
        overlaid(digits, pairs, generator),
        pair_numbers(labels[pairs]),
        CLASS_NAMES,
        augment=View((Shift(_AUGMENT),)),
    )


def pairs_for_each(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Each image with another of a different class, (count, 2) indices; partners are drawn with replacement."""
    first = torch.arange(len(labels))
    second = torch.randint(len(labels), first.shape, generator=generator)
    while (alike := labels[first] == labels[second]).any():
        second[alike] = torch.randint(len(labels), (int(alike.sum()),), generator=generator)
    return torch.stack([first, second], 1)


def disjoint_pairs(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Images in pairs of different classes, no image in two of them, (count // 2, 2) indices.

    Raises:
        ValueError: More than half of the images are of one class.
    """
    count = len(labels) // 2
    order = torch.randperm(len(labels), generator=generator)[: 2 * count]
    if count and int(labels[order].bincount().max()) > count:
        raise ValueError("more than half of the images are of one class: they cannot be paired with others")
    pairs = order.reshape(count, 2)
    for place in range(count):
        a, b = pairs[place].tolist()
        if labels[a] != labels[b]:
            continue
        # Exchange the second with that of a pair in which neither is of this class.
        fits = (labels[pairs] != labels[a]).all(1).nonzero().squeeze(1)
        other = int(fits[torch.randint(len(fits), (1,), generator=generator)])
        pairs[place, 1], pairs[other, 1] = pairs[other, 1].clone(), b
    return pairs


def pair_numbers(classes: Tensor) -> Tensor:
    """The place of each pair of classes (count, 2), in either order, among `CLASS_NAMES`."""
    numbers = torch.full((10, 10), -1)
    for number, (a, b) in enumerate(PAIRS):
        numbers[a, b] = numbers[b, a] = number
    return numbers[classes[:, 0], classes[:, 1]]


def overlaid(digits: Tensor, pairs: Tensor, generator: torch.Generator) -> Tensor:
    """Both digits of each pair, each moved by up to `SHIFT` pixels, in one image; where both have ink, the brighter shows.

    Args:
        digits: (digits, 1, 28, 28), uint8.
        pairs: (count, 2), which digits.
        generator: Decides the shifts.

    Returns:
        (count, 1, 36, 36), uint8.
    """
    margin = (SIDE - digits.shape[-1]) // 2
    moved = []
    for which in pairs.T:
        wide = F.pad(digits[which], (margin,) * 4)
        moved.append(Shift(SHIFT)(wide, generator))
    return torch.maximum(*moved)

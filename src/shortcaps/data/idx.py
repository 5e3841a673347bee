"""IDX files, and data sets in MNIST's format: four such files; the last 10,000 training images are for validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shortcaps.data.augment import Shift, Step, View
from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import Dataset
from shortcaps.data.fetch import Folder, Source, WantedFile, fetch
from shortcaps.errors import DataError

VALIDATION_IMAGES = 10_000
"""The number of training images, the last ones, that are held out for validation."""


@dataclass(frozen=True)
class IdxSet:
    """A data set in MNIST's format.

    Attributes:
        name: Name of the data set, and of its folder in the cache.
        label: Its name in reports.
        class_names: Names of the classes, in the order of the labels.
        files: The four files by what they hold: `train images`, `train labels`, `test images` and `test labels`.
        sources: Where to look for them, in this order.
    """

    name: str
    label: str
    class_names: tuple[str, ...]
    files: dict[str, WantedFile]
    sources: tuple[Source, ...]


def idx_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> dict[str, WantedFile]:
    """The four files under their usual names, from their SHA-256."""
    return {
        "train images": WantedFile("train-images-idx3-ubyte", train_images, max_bytes=16 + 60_000 * 28 * 28),
        "train labels": WantedFile("train-labels-idx1-ubyte", train_labels, max_bytes=8 + 60_000),
        "test images": WantedFile("t10k-images-idx3-ubyte", test_images, max_bytes=16 + 10_000 * 28 * 28),
        "test labels": WantedFile("t10k-labels-idx1-ubyte", test_labels, max_bytes=8 + 10_000),
    }


def parse_idx(data: bytes, name: str, dimensions: int) -> Tensor:
    """The array in an IDX file of bytes.

    Args:
        data: The contents of the file.
        name: What it is called in messages.
        dimensions: 3 for images (count, rows, cols), 1 for labels (count,).

    Raises:
        DataError: The file is truncated, or holds something else.
    """
    header = 4 + 4 * dimensions
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{name} is not an IDX file of bytes")
    if data[3] != dimensions:
        kinds = {1: "labels", 3: "images"}
        raise DataError(
            f"{name} holds {kinds.get(data[3], f'{data[3]}-dimensional data')}, not {kinds[dimensions]}: were files swapped?"
        )
    if len(data) < header:
        raise DataError(f"{name} ends within its header: it is truncated")
    shape = [int.from_bytes(data[4 + 4 * n : 8 + 4 * n], "big") for n in range(dimensions)]
    if len(data) - header != math.prod(shape):  # which cannot overflow
        raise DataError(
            f"{name} should hold {'x'.join(map(str, shape))} bytes but has {len(data) - header}: it is truncated"
        )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def _read_idx_pair(idx: IdxSet, part: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """Images (count, 1, rows, cols) and labels (count,) of the published `train` or `test` part."""
    images, labels = idx.files[f"{part} images"], idx.files[f"{part} labels"]
    sources = (*((Folder(folder),) if folder else ()), *idx.sources)
    paths = fetch((images, labels), sources, cache_folder() / idx.name)
    pictures = parse_idx(paths[images.name].read_bytes(), images.name, 3).unsqueeze(1)
    numbers = parse_idx(paths[labels.name].read_bytes(), labels.name, 1).long()
    if len(pictures) != len(numbers):
        raise DataError(f"{images.name} has {len(pictures)} images, but {labels.name} has {len(numbers)} labels")
    return pictures, numbers


def read_split(idx: IdxSet, split: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """Images (count, 1, rows, cols) and labels (count,) of a split, divided as in the paper."""
    if split == "test":
        return _read_idx_pair(idx, "test", folder)
    images, labels = _read_idx_pair(idx, "train", folder)
    kept = slice(None, -VALIDATION_IMAGES) if split == "train" else slice(-VALIDATION_IMAGES, None)
    return images[kept], labels[kept]


def load_idx(idx: IdxSet, split: str, protocol: str, folder: Path | None, *more: Step) -> Dataset:
    """A split; training images are shifted by up to two pixels. Both protocols are the same.

    Args:
        idx: The data set.
        split: `train`, `validation` or `test`.
        protocol: `default` or `paper`.
        folder: Where to look for its files first, or None.
        *more: Further steps of the augmentation.
    """
    images, labels = read_split(idx, split, folder)
    augment = View((Shift(2), *more))
    return Dataset(idx.name, idx.label, split, protocol, images, labels, idx.class_names, augment=augment)

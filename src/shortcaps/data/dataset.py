"""What a data set looks like to the rest of the package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shortcaps.data.augment import View
from shortcaps.errors import DataError

SPLITS = ("train", "validation", "test")
PROTOCOLS = {
    "default": "training and selection see no rotation, scaling, shear or object of the test",
    "paper": "as the authors did; for affNIST and smallNORB, selection sees what the test is like",
}


@dataclass(frozen=True)
class Dataset:
    """A whole split in memory.

    Attributes:
        name: The name it is registered by, or the path of a folder. It may differ from the requested one if the loader had to fall back.
        label: What the split is called in reports.
        split: `train`, `validation` or `test`.
        protocol: What training and selection may see, one of `PROTOCOLS`.
        images: (count, channels, height, width), uint8.
        labels: (count,), int64, indices of `class_names`.
        class_names: Names of the classes.
        view: How images reach a network in evaluation.
        augment: How they reach it in training, as published.
        augment_anywhere: How they reach it in training if the recipe places digits anywhere on their background; None if the set
            has no such variant.
        originals: (count,), which digit or object each image shows, if several show the same one and so are not independent.
        bright_on_dark: From the data set's spec; `load_dataset` sets it, and a run keeps it.
        centred_digits: Likewise.
        caveats: What a reader must know before quoting a result on these images, also from the spec.
    """

    name: str
    label: str
    split: str
    protocol: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    view: View = field(default_factory=View)
    augment: View = field(default_factory=View)
    augment_anywhere: View | None = None
    originals: Tensor | None = None
    bright_on_dark: bool = False
    centred_digits: bool = False
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images are {self.images.dtype} {tuple(self.images.shape)}: expected uint8 and 4 dimensions"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels are {self.labels.dtype} {tuple(self.labels.shape)}: expected one int64 for each image"
            )
        if self.originals is not None and self.originals.shape != self.labels.shape:
            raise ValueError(f"originals are {tuple(self.originals.shape)}: expected one for each image")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise ValueError(
                f"labels run from {self.labels.min()} to {self.labels.max()}: expected 0 to {len(self.class_names) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as a network sees it."""
        channels, height, width = self.view(self.images[:1]).shape[1:]
        return channels, height, width

    def fingerprint(self) -> str:
        """A SHA-256 that identifies the images and labels, in their order."""
        digest = hashlib.sha256(repr((self.class_names, tuple(self.images.shape))).encode())
        for part in (self.images, self.labels):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Tensor | slice) -> Dataset:
        """The same split with only these images.

        Args:
            indices: Which ones, (n,), or a slice.
        """
        originals = None if self.originals is None else self.originals[indices]
        return replace(self, images=self.images[indices], labels=self.labels[indices], originals=originals)


def sample_images(data: Dataset, count: int) -> Tensor:
    """A fixed random sample of images, as a network sees them.

    It is drawn from the whole set, as neighbours may be of one class, and shows every original at most once if there are enough of them.

    Args:
        data: The data set.
        count: Number of images; all of them if there are fewer.

    Returns:
        (count, channels, height, width), floats in 0–1.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    if data.originals is not None:
        one_of_each: dict[int, int] = {}
        for place, original in zip(order.tolist(), data.originals[order].tolist(), strict=True):
            one_of_each.setdefault(original, place)
        if len(one_of_each) >= count:
            order = torch.tensor(list(one_of_each.values()))
    return data.view(data.images[order[:count]])


def check_split_and_protocol(split: str, protocol: str) -> None:
    """Raise DataError for an unknown split or protocol."""
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    if protocol not in PROTOCOLS:
        raise DataError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")

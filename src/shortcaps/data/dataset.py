"""What every data set is to the rest of the package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shortcaps.data.augment import View
from shortcaps.errors import DataError

SPLITS = ("train", "validation", "test")
PROTOCOLS = {
    "default": "no rotation, scaling, shear or object of the test is seen in training or selection",
    "paper": "as the authors did, which for affNIST and smallNORB lets selection see what the test is like",
}


@dataclass(frozen=True)
class Dataset:
    """A whole split in memory.

    Attributes:
        name: The name it is registered by, or the path of a folder. What was asked for may have had to give way to another set.
        label: What the split is called in a report.
        split: `train`, `validation` or `test`.
        protocol: What training and selection may see, one of `PROTOCOLS`.
        images: (count, channels, height, width), uint8.
        labels: (count,), int64, indices of `class_names`.
        class_names: What the classes are called.
        view: How images reach a network in evaluation.
        augment: How they reach it in training, as published.
        augment_anywhere: In training where a recipe has digits placed anywhere on their background; None: no such choice.
        originals: (count,), which digit or object each image shows, where several show the same and so are no independent evidence.
        bright_on_dark: As the data set's spec says; `load_dataset` sets it, and a run keeps it.
        centred_digits: The same.
        caveats: What a reader must know before quoting a figure on these images, from the spec as well.
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
                f"labels run from {self.labels.min()} to {self.labels.max()}, with {len(self.class_names)} classes"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image as a network sees it."""
        channels, height, width = self.view(self.images[:1]).shape[1:]
        return channels, height, width

    def fingerprint(self) -> str:
        """The same for the same images and labels in the same order, and for no others."""
        digest = hashlib.sha256(repr((self.class_names, tuple(self.images.shape))).encode())
        for part in (self.images, self.labels):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Tensor | slice) -> Dataset:
        """The same set with these images only."""
        originals = None if self.originals is None else self.originals[indices]
        return replace(self, images=self.images[indices], labels=self.labels[indices], originals=originals)


def sample_images(data: Dataset, count: int) -> Tensor:
    """So many images as a network sees them, from all over the set: neighbours may be of one class, or show one digit."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    if data.originals is not None:
        one_of_each: dict[int, int] = {}
        for place, original in zip(order.tolist(), data.originals[order].tolist(), strict=True):
            one_of_each.setdefault(original, place)
        if len(one_of_each) >= count:
            order = torch.tensor(list(one_of_each.values()))
    return data.view(data.images[order[:count]])


def check_split_and_protocol(split: str, protocol: str) -> None:
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    if protocol not in PROTOCOLS:
        raise DataError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")

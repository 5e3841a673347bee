"""What a data set looks like to the rest of the package, and to PyTorch's data loaders."""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shortcaps.data.augment import AUGMENTATIONS, View
from shortcaps.data.decode import DEFAULT_FIT
from shortcaps.data.lazy import LazyImages
from shortcaps.errors import DataError

SPLITS = ("train", "validation", "test")
PROTOCOLS = {
    "default": "training and selection see no rotation, scaling, shear or object of the test",
    "paper": "as the authors did; for affNIST and smallNORB, selection sees what the test is like",
}

_OF_FILES = "files:"
"""Begins a fingerprint that was made of files, not of pixels."""
_HASHED_AT_ONCE = 1024


@dataclass(frozen=True)
class Dataset:
    """A split. It is a map-style data set for `torch.utils.data.DataLoader`, with or without workers.

    Attributes:
        name: The name it is registered by, or the path of a folder. It may differ from the requested one if the loader had to fall back.
        label: What the split is called in reports.
        split: `train`, `validation` or `test`.
        protocol: What training and selection may see, one of `PROTOCOLS`.
        images: (count, channels, height, width), uint8: a tensor, or images that are decoded when they are indexed.
        labels: (count,), int64, indices of `class_names`.
        class_names: Names of the classes.
        view: How images reach a network in evaluation.
        augment: How they reach it in training, as published.
        augment_anywhere: How they reach it in training if the recipe places digits anywhere on their background; None if the set
            has no such variant.
        unshifted: (count, …) like `images`, what they were before validation moved them, if it did: what they would be trained on as.
        originals: (count,), which digit or object each image shows, if several show the same one and so are not independent.
        hashes: (count, 32), uint8, the SHA-256 of the file of each image, if each has one.
        fit: How pictures that are not square were made to fit, one of `decode.FITS`.
        bright_on_dark: From the data set's spec; `load_dataset` sets it, and a run keeps it.
        centred_digits: Likewise.
        affine_is_unseen: Likewise.
        caveats: What a reader must know before quoting a result on these images, also from the spec.
    """

    name: str
    label: str
    split: str
    protocol: str
    images: Tensor | LazyImages
    labels: Tensor
    class_names: tuple[str, ...]
    view: View = field(default_factory=View)
    augment: View = field(default_factory=View)
    augment_anywhere: View | None = None
    unshifted: Tensor | None = None
    originals: Tensor | None = None
    hashes: Tensor | None = None
    fit: str = DEFAULT_FIT
    bright_on_dark: bool = False
    centred_digits: bool = False
    affine_is_unseen: bool = False
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
        if self.unshifted is not None and self.unshifted.shape != self.images.shape:
            raise ValueError(
                f"unshifted is {tuple(self.unshifted.shape)}: expected {tuple(self.images.shape)}, as images"
            )
        if self.hashes is not None and self.hashes.shape != (len(self.labels), 32):
            raise ValueError(f"hashes are {tuple(self.hashes.shape)}: expected 32 bytes for each image")
        if self.originals is not None and self.originals.shape != self.labels.shape:
            raise ValueError(f"originals are {tuple(self.originals.shape)}: expected one for each image")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise ValueError(
                f"labels run from {self.labels.min()} to {self.labels.max()}: expected 0 to {len(self.class_names) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image as a network sees it in evaluation, (channels, height, width), floats in 0–1, and its label."""
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"image {place} does not exist: {self.label} ({self.split}) has {len(self)}")
        chosen = torch.tensor([place % len(self)])
        return self.view(self.images[chosen])[0], int(self.labels[place])

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as a network sees it."""
        channels, height, width = self.view(self.images[:1]).shape[1:]
        return channels, height, width

    def augmented_by(self, name: str) -> View:
        """The view of a registered augmentation for training on these images.

        Args:
            name: One of `list_augmentations()`.

        Raises:
            DataError: There is no such augmentation, or it shows what the test of this set asks for.
        """
        if name not in AUGMENTATIONS:
            raise DataError(AUGMENTATIONS.unknown(name))
        view = View((*self.view.steps, *AUGMENTATIONS[name].steps(min(self.image_shape[1:]))))
        self.check_augmentation(view, name)
        return view

    def check_augmentation(self, view: View, name: str) -> None:
        """Raise DataError if training by this view would show what the test of this set asks for."""
        if self.affine_is_unseen and view.affine:
            raise DataError(
                f"augmentation {name} rotates, scales or shears images, which {self.name} tests without having shown it: "
                "use digits or none, or another data set"
            )

    def fingerprint(self) -> str:
        """A SHA-256 that identifies images and labels, in their order: by their files if each image has one, or else by pixels."""
        if self.hashes is None:
            return self._fingerprint_of_pixels()
        digest = hashlib.sha256(repr((self.class_names, tuple(self.images.shape), self.fit)).encode())
        for part in (self.hashes, self.labels):
            digest.update(part.contiguous().numpy().data)
        return _OF_FILES + digest.hexdigest()

    def has_fingerprint(self, before: str) -> bool:
        """Whether these are the images and labels of a fingerprint, of this version or of an earlier one, which took pixels only."""
        return before == (self.fingerprint() if before.startswith(_OF_FILES) else self._fingerprint_of_pixels())

    def _fingerprint_of_pixels(self) -> str:
        digest = hashlib.sha256(repr((self.class_names, tuple(self.images.shape))).encode())
        for part in self.images.split(_HASHED_AT_ONCE):
            digest.update(part[:].contiguous().numpy().data)
        digest.update(self.labels.contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Tensor | slice) -> Dataset:
        """The same split with only these images.

        Args:
            indices: Which ones, (n,), or a slice.
        """
        return replace(
            self,
            images=self.images[indices] if isinstance(self.images, Tensor) else self.images.select(indices),
            labels=self.labels[indices],
            unshifted=None if self.unshifted is None else self.unshifted[indices],
            originals=None if self.originals is None else self.originals[indices],
            hashes=None if self.hashes is None else self.hashes[indices],
        )


def join(first: Dataset, second: Dataset) -> Dataset:
    """The images of two splits of one data set as one split, which is called and shown as the first.

    Args:
        first: A split.
        second: Another, with other originals. Images that it has moved for validation are taken as they were before.

    Raises:
        DataError: The two are not of one data set, or differ in shape, classes or in how their images are shown.
    """
    for what in ("name", "protocol", "class_names", "view", "augment", "augment_anywhere", "fit"):
        if str(getattr(first, what)) != str(getattr(second, what)):
            raise DataError(
                f"{first.split} of {first.name} and {second.split} of {second.name} differ in {what}: they cannot be joined"
            )
    if first.images.shape[1:] != second.images.shape[1:]:
        raise DataError(
            f"{first.split} of {first.name} has images {tuple(first.images.shape[1:])}, {second.split} has "
            f"{tuple(second.images.shape[1:])}: they cannot be joined"
        )
    one, other = first.images, second.images if second.unshifted is None else second.unshifted
    if isinstance(one, LazyImages) and isinstance(other, LazyImages):
        images: Tensor | LazyImages = one.joined(other)
    else:
        images = torch.cat([one[:], other[:]])
    originals = hashes = None
    if first.originals is not None and second.originals is not None:
        originals = torch.cat([first.originals, second.originals + first.originals.max() + 1])
    if first.hashes is not None and second.hashes is not None:
        hashes = torch.cat([first.hashes, second.hashes])
    return replace(
        first, images=images, labels=torch.cat([first.labels, second.labels]), originals=originals, hashes=hashes
    )


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


def draw_per_class(data: Dataset, count: int, seed: int, *, at_most: bool = False) -> Tensor:
    """A random draw with the same number of images of each class, or at most that; a smaller one is part of a larger one of the same seed.

    Args:
        data: The data set.
        count: Number of images of each class.
        seed: Decides the draw.
        at_most: Whether a class that has fewer images gives all of them.

    Returns:
        Their indices, (classes · count,), or fewer.

    Raises:
        DataError: A class has fewer images, or none.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    chosen = []
    for number, name in enumerate(data.class_names):
        of_class = order[data.labels[order] == number]
        if len(of_class) < (1 if at_most else count):
            raise DataError(
                f"{data.name} ({data.split}) has {len(of_class)} images of {name!r}, fewer than the {count} asked for of each class"
            )
        chosen.append(of_class[:count])
    return torch.cat(chosen)


def check_split_and_protocol(split: str, protocol: str) -> None:
    """Raise DataError for an unknown split or protocol."""
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    if protocol not in PROTOCOLS:
        raise DataError(f"unknown protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}")

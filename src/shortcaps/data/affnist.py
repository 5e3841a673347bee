"""affNIST: MNIST digits under affine transformations, on 40x40 pixels.

A network is trained on digits that were shifted and nothing else, and tested on digits that were also rotated, sheared and
scaled. The published files are used if they can be fetched; otherwise the set is regenerated from MNIST by its published
description, with a fixed seed, and is called `affnist-regenerated` wherever it appears.
"""

from __future__ import annotations

import io
import logging
import math
import zipfile
import zlib
from collections.abc import Container
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shortcaps.data.augment import PlaceAnywhere, Shift, View
from shortcaps.data.cache import cache_folder, fits_checksum, only_one_process, write_checksum
from shortcaps.data.dataset import Dataset
from shortcaps.data.download import SourceFailed
from shortcaps.data.fetch import Mirror, WantedFile
from shortcaps.data.idx import read_split
from shortcaps.data.matlab import read_struct
from shortcaps.data.mnist import MNIST
from shortcaps.data.registry import DATASETS, register_dataset
from shortcaps.errors import DataError
from shortcaps.files import atomic_write
from shortcaps.progress import Pace

log = logging.getLogger(__name__)

SIDE = 40
_PADDING = (SIDE - 28) // 2
_TRAINING_SHIFT = 5
_TRANSFORMS_PER_DIGIT = 32
_ROTATION, _SHEAR, _SCALE = math.radians(20), 0.2, (0.8, 1.2)
SEEDS = {"validation": 40_001, "test": 40_002}
_MAX_BYTES = 2**30
"""Of a published file, unpacked: 320,000 images of 1,600 bytes, and what is said of each."""
# NotImplementedError: an unknown compression; RuntimeError: a password.
_DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)
_BATCHES = tuple(f"{number}.mat" for number in range(1, 33))
MIRROR = Mirror("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed", suffix=".zip")
PROTOCOL_LEAKS = {
    "paper": "Under the paper's protocol the choice of weights sees digits transformed as those of the test are."
}


@register_dataset(
    "affnist",
    label="affNIST",
    description="trained on shifted digits, tested on affinely transformed ones",
    image_size=SIDE,
    bright_on_dark=True,
    centred_digits=True,
    affine_is_unseen=True,
    leaks=PROTOCOL_LEAKS,
)
def load_affnist(split: str, protocol: str, *, folder: Path | None = None) -> Dataset:
    """The published set if its files can be fetched; otherwise its test digits come from `affnist-regenerated`."""
    if not _is_affine(split, protocol):
        return _shifted_digits("affnist", split, protocol)
    published = read_published(split, folder)
    if published is None:
        return load_regenerated(split, protocol)
    return _affine_digits("affnist", split, protocol, *published)


@register_dataset(
    "affnist-regenerated",
    description="affnist with a test set regenerated from MNIST by its published description",
    image_size=SIDE,
    bright_on_dark=True,
    centred_digits=True,
    affine_is_unseen=True,
    notes=("Tested on affNIST regenerated from MNIST by its published description, not on the published set.",),
    replica_of="affnist",
    original_is_here=lambda: _published_is_here("test"),
    leaks=PROTOCOL_LEAKS,
)
def load_regenerated(split: str, protocol: str) -> Dataset:
    """The regenerated set, whether or not the published files are available."""
    if not _is_affine(split, protocol):
        return _shifted_digits("affnist-regenerated", split, protocol)
    return _affine_digits("affnist-regenerated", split, protocol, *_read_regenerated(split))


def _is_affine(split: str, protocol: str) -> bool:
    """Whether a split holds transformed digits; the others hold MNIST's, shifted and nothing else."""
    return split == "test" or (split == "validation" and protocol == "paper")


def _shifted_digits(name: str, split: str, protocol: str) -> Dataset:
    """MNIST's digits on 40x40 pixels, for training and for a validation that sees nothing affine."""
    images, labels = read_split(MNIST, split, None)
    images = F.pad(images, (_PADDING,) * 4)
    unshifted = None
    if split == "validation":
        # Shifted as in training, with a fixed seed: nothing affine is seen before the test.
        generator = torch.Generator().manual_seed(SEEDS["validation"])
        images, unshifted = Shift(_TRAINING_SHIFT)(images, generator), images
    return Dataset(
        name,
        "MNIST on 40x40, shifted",
        split,
        protocol,
        images,
        labels,
        MNIST.class_names,
        augment=View((Shift(_TRAINING_SHIFT),)),
        augment_anywhere=View((PlaceAnywhere(),)),
        unshifted=unshifted,
    )


def _affine_digits(name: str, split: str, protocol: str, images: Tensor, labels: Tensor) -> Dataset:
    """Transformed digits, published or regenerated."""
    return Dataset(
        name,
        DATASETS[name].label,
        split,
        protocol,
        images,
        labels,
        MNIST.class_names,
        augment=View((Shift(_TRAINING_SHIFT),)),
        originals=which_digit(labels),
    )


def which_digit(labels: Tensor) -> Tensor:
    """The digit that each image was made from, (count,).

    The transforms of a digit are adjacent, or a batch apart as in the published files; for labels (count,) that fit neither, only the class
    is known.
    """
    count = len(labels)
    digits, rest = divmod(count, _TRANSFORMS_PER_DIGIT)
    if not rest and bool((labels.reshape(digits, -1) == labels.reshape(digits, -1)[:, :1]).all()):
        return torch.arange(count) // _TRANSFORMS_PER_DIGIT
    if not rest and bool((labels.reshape(-1, digits) == labels[:digits]).all()):
        return torch.arange(count) % digits
    return labels


def _published_is_here(split: str) -> bool:
    """Whether the published files are in the cache, so that nothing has to be regenerated."""
    return any(place.exists() for place in _published_places(cache_folder() / "affnist", split))


def _published_places(folder: Path, split: str) -> tuple[Path, Path, Path, Path]:
    """Where a split may be: one file, packed or not; a folder of 32 batches, packed or not."""
    single, batches = folder / f"{split}.mat", folder / f"{split}_batches"
    return single, single.with_suffix(".mat.zip"), batches, batches.with_suffix(".zip")


def read_published(split: str, folder: Path | None) -> tuple[Tensor, Tensor] | None:
    """The published images and labels, from the user's folder, the cache or the mirror; None if none has them.

    Args:
        split: `validation` or `test`.
        folder: The user's folder, or None.

    Returns:
        Images (count, 1, 40, 40) and labels (count,), or None.

    Raises:
        DataError: The folder has no such files, or they are damaged.
    """
    cached = cache_folder() / "affnist" / f"{split}.mat.zip"
    damage: DataError | None = None
    try:
        files = _published_files(folder or cached.parent, split)
        if files:
            parts = [_parse_matlab(data, label) for label, data in files]
            return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    except DataError as error:
        if folder or not cached.is_file():
            raise
        log.warning("%s is damaged: fetching it again", cached)
        damage = error
    if folder:
        raise DataError(
            f"{folder} has no affNIST files: expected {split}.mat, {split}.mat.zip, {split}_batches.zip "
            f"or a folder {split}_batches with 1.mat … 32.mat"
        )
    try:
        data = MIRROR.read(WantedFile(f"{split}.mat"))
        images, labels = _parse_matlab(_only_matlab_file(data, MIRROR.address), MIRROR.address)
    except (SourceFailed, DataError) as failure:
        if damage is not None:
            # Other images under the same name would be a surprise: the user decides.
            raise DataError(
                f"{damage}; it could not be fetched again ({failure}): delete {cached} to use affnist-regenerated instead"
            ) from failure
        log.warning("the published affNIST could not be fetched (%s): regenerating it from MNIST", failure)
        return None
    with atomic_write(cached) as file:
        file.write(data)
    return images, labels


def _published_files(folder: Path, split: str) -> list[tuple[str, bytes]]:
    """Every MATLAB file of a split in a folder: one file or 32 batches, zipped or not."""
    *singles, batches, packed = _published_places(folder, split)
    for single in singles:
        if single.is_file():
            data = single.read_bytes()
            return [(single.name, _only_matlab_file(data, single.name) if single.suffix == ".zip" else data)]
    if batches.is_dir():
        found = {file.name: file for file in batches.glob("*.mat")}
        _check_batches(found, str(batches))
        return [(f"{batches.name}/{name}", found[name].read_bytes()) for name in _BATCHES]
    if packed.is_file():
        try:
            with zipfile.ZipFile(packed) as archive:
                members = {Path(name).name: name for name in archive.namelist() if name.endswith(".mat")}
                _check_batches(members, packed.name)
                return [
                    (f"{packed.name}/{name}", _read_member(archive, members[name], _MAX_BYTES // len(_BATCHES)))
                    for name in _BATCHES
                ]
        except _DAMAGED_ZIP as error:
            raise DataError(f"{packed} is not a zip file, or is damaged: {error}") from error
    return []


def _check_batches(found: Container[str], origin: str) -> None:
    missing = [name for name in _BATCHES if name not in found]
    if missing:
        raise DataError(f"{origin} is incomplete: {', '.join(missing)} of {len(_BATCHES)} batches are missing")


def _only_matlab_file(data: bytes, origin: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".mat")]
            if len(names) != 1:
                raise DataError(f"{origin} holds {len(names)} .mat files instead of one")
            return _read_member(archive, names[0], _MAX_BYTES)
    except _DAMAGED_ZIP as error:
        raise DataError(f"{origin} is not a zip file, or is damaged: {error}") from error


def _read_member(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """A file out of a zip archive, which gives no more than it promises."""
    size = archive.getinfo(name).file_size
    if size > max_bytes:
        raise DataError(f"{name} unpacks to {size:,} bytes, more than the {max_bytes:,} expected: it is another file")
    return archive.read(name)


def _parse_matlab(data: bytes, origin: str) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 40, 40) and labels (count,) from a MAT v5 file with a struct `affNISTdata`."""
    try:
        record = read_struct(data, "affNISTdata", ("image", "label_int"), _MAX_BYTES)
        images, labels = record["image"], record["label_int"].reshape(-1)
    except KeyError as field:
        raise DataError(f"{origin} is not an affNIST file: it has no field {field}") from field
    except (ValueError, zlib.error) as error:
        raise DataError(f"{origin} is not an affNIST file, or is damaged: {error}") from error
    if not np.isin(labels, np.arange(10)).all():
        raise DataError(f"{origin} has labels from {labels.min()} to {labels.max()}: expected 0 to 9")
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[0] != SIDE * SIDE or len(labels) != images.shape[1]:
        raise DataError(
            f"{origin}: `image` is {images.dtype} {images.shape} and `label_int` has {len(labels)} labels; "
            f"expected uint8 ({SIDE * SIDE}, count) and one label for each image"
        )
    pictures = torch.from_numpy(np.ascontiguousarray(images.T)).reshape(-1, 1, SIDE, SIDE)
    # MATLAB stores images column by column.
    return pictures.transpose(2, 3).contiguous(), torch.from_numpy(labels.astype(np.int64))


def _read_regenerated(split: str) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 40, 40) and labels (count,) of the regenerated set, from the cache or generated now."""
    folder = cache_folder() / "affnist-regenerated"
    file = folder / f"{split}-seed{SEEDS[split]}.npy"
    digits, labels = read_split(MNIST, split, None)
    repeated = labels.repeat_interleave(_TRANSFORMS_PER_DIGIT)
    shape = (len(repeated), 1, SIDE, SIDE)
    with only_one_process(folder):
        if file.is_file():
            if fits_checksum(file):
                images = np.load(file, allow_pickle=False)
                if images.dtype == np.uint8 and images.shape == shape:
                    return torch.from_numpy(images), repeated
            log.warning("%s is damaged: regenerating it", file)
        log.info("generating affnist-regenerated (%s): %s images", split, f"{len(repeated):,}")
        images = regenerate(digits, seed=SEEDS[split])
        with atomic_write(file) as stream:
            np.save(stream, images.numpy(), allow_pickle=False)
        write_checksum(file)
    return images, repeated


def regenerate(digits: Tensor, *, seed: int, per_digit: int = _TRANSFORMS_PER_DIGIT) -> Tensor:
    """Random affine transforms of digits.

    Args:
        digits: (count, 1, 28, 28), uint8.
        seed: Decides the transforms.
        per_digit: Transforms of each digit.

    Returns:
        (count · per_digit, 1, 40, 40), uint8; the transforms of a digit are adjacent.
    """
    generator = torch.Generator().manual_seed(seed)
    parts: list[Tensor] = []
    pace, done = Pace(), 0
    for chunk in digits.split(max(1, 8192 // per_digit)):
        if (left := pace.left(done, len(digits))) is not None:
            log.info("generating: %s of %s digits, %s", f"{done:,}", f"{len(digits):,}", left)
        done += len(chunk)
        count = len(chunk) * per_digit
        matrices = random_matrices(count, generator)
        position = torch.rand((count, 2), generator=generator)
        parts.append(transform(chunk.repeat_interleave(per_digit, 0), matrices, position))
    return torch.cat(parts)


def random_matrices(count: int, generator: torch.Generator) -> Tensor:
    """(count, 2, 2): rotation after shear after scaling, from source to target, on (x, y)."""
    draws = torch.rand((4, count), generator=generator)
    angle = (2 * draws[0] - 1) * _ROTATION
    shear = (2 * draws[1] - 1) * _SHEAR
    across, down = _SCALE[0] + draws[2:] * (_SCALE[1] - _SCALE[0])
    return affine_matrices(angle, shear, across, down)


def affine_matrices(angle: Tensor, shear: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """(count, 2, 2): rotation after shear after scaling, from source to target, on (x, y).

    Args:
        angle: (count,), in radians.
        shear: (count,).
        across: (count,), horizontal scale.
        down: (count,), vertical scale.
    """
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    rotate = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).reshape(-1, 2, 2)
    slant = torch.stack([one, shear, zero, one], -1).reshape(-1, 2, 2)
    stretch = torch.stack([across, zero, zero, down], -1).reshape(-1, 2, 2)
    return rotate @ slant @ stretch


def centres(digits: Tensor, matrices: Tensor, position: Tensor) -> Tensor:
    """Where the centres of the transformed 28x28 squares lie, so that all ink stays inside 40x40.

    Args:
        digits: (count, 1, 28, 28).
        matrices: (count, 2, 2), from source to target, on (x, y).
        position: (count, 2) in 0–1, which picks one of the possible places.

    Returns:
        (count, 2): x and y in pixels, from the middle of the image.
    """
    count, _, height, width = digits.shape
    y, x = torch.meshgrid(torch.arange(height) + 0.5 - height / 2, torch.arange(width) + 0.5 - width / 2, indexing="ij")
    moved = matrices @ torch.stack([x.reshape(-1), y.reshape(-1)])  # (count, 2, pixels)
    ink = (digits.reshape(count, 1, -1) > 0).expand_as(moved)
    # A pixel extends half a pixel around its centre, before and after the transformation.
    reach = matrices.abs().sum(2) / 2
    low = torch.where(ink, moved, torch.inf).amin(2) - reach
    high = torch.where(ink, moved, -torch.inf).amax(2) + reach
    empty = ~torch.isfinite(low)
    first, last = torch.where(empty, 0.0, -SIDE / 2 - low), torch.where(empty, 0.0, SIDE / 2 - high)
    return torch.where(first <= last, first + position * (last - first), (first + last) / 2)


def transform(digits: Tensor, matrices: Tensor, position: Tensor) -> Tensor:
    """Transform digits and place them so that all ink stays inside 40x40.

    Args:
        digits: (count, 1, 28, 28).
        matrices: (count, 2, 2), from source to target, on (x, y).
        position: (count, 2) in 0–1, which picks one of the possible places.

    Returns:
        (count, 1, 40, 40), uint8.
    """
    count, _, _, width = digits.shape
    centre = centres(digits, matrices, position)
    # grid_sample wants the source of each target pixel, in units of half the source's side.
    inverse = torch.linalg.inv(matrices)
    offset = -(inverse @ centre.unsqueeze(2))
    theta = torch.cat([inverse * (SIDE / width), offset * (2 / width)], 2)
    grid = F.affine_grid(theta, [count, 1, SIDE, SIDE], align_corners=False)
    warped = F.grid_sample(digits.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return warped.round().clamp(0, 255).to(torch.uint8)

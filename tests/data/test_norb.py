"""smallNORB's format byte for byte, and its splits."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from shortcaps.data import cache_folder, load_dataset, smallnorb
from shortcaps.data.norb import TEST_INSTANCES, TRAINING_INSTANCES, halve, matrix_header, parse_matrix
from shortcaps.errors import DataError
from tests.data.fakes import content_hashes

MAGIC = {"<f4": 0x1E3D4C51, "<f8": 0x1E3D4C53, "<i4": 0x1E3D4C54, "u1": 0x1E3D4C55, "<i2": 0x1E3D4C56}


def matrix_bytes(array: np.ndarray, kind: str) -> bytes:
    """A binary matrix file from its published description: magic, dimensions, at least three sizes, data; little-endian."""
    sizes = [*array.shape, *[1] * (3 - array.ndim)]
    return struct.pack(f"<{2 + len(sizes)}i", MAGIC[kind], array.ndim, *sizes) + array.astype(kind).tobytes()


@pytest.mark.parametrize("kind", MAGIC)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4), (2, 2, 3, 3)])
def test_matrices_of_every_type_and_rank_are_read(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    data = matrix_bytes(array, kind)
    assert np.array_equal(parse_matrix(data, "file"), array)
    assert data.startswith(matrix_header(shape, np.dtype(kind)))


def test_damaged_matrices_are_named() -> None:
    data = matrix_bytes(np.arange(6), "<i4")
    for damaged, message in (
        (data[:-1], "file should hold 6 int32 but has 23 bytes"),
        (b"\x1f\x8b\x08\0" + data[4:], "file begins with 0x88b1f, unlike any binary matrix file"),
        (data[:6], "file is too short"),
        (data[:4] + struct.pack("<i", 99) + data[8:], "file has a damaged header (99 dimensions)"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            parse_matrix(damaged, "file")


def small_matrices(
    elevations: Sequence[int] = (0, 2, 8), azimuths: Sequence[int] = (0, 10, 20, 34)
) -> Iterator[tuple[str, str, bytes]]:
    """Part, kind and file of a set with every instance of every category from a few viewpoints, under one lighting."""
    for part, instances in (("training", TRAINING_INSTANCES), ("testing", TEST_INSTANCES)):
        rows = [(c, i, e, a, 0) for i in instances for e in elevations for a in azimuths for c in range(5)]
        table = np.array(rows)
        random = np.random.default_rng(len(part))
        arrays = {
            "dat": (random.integers(0, 256, (len(rows), 2, 96, 96)), "u1"),
            "cat": (table[:, 0], "<i4"),
            "info": (table[:, 1:], "<i4"),
        }
        for kind, (array, number) in arrays.items():
            yield part, kind, matrix_bytes(array, number)


def write_small_set(folder: Path, *, packed: bool) -> None:
    folder.mkdir()
    for part, kind, data in small_matrices():
        name = smallnorb.FILES[part][kind].name
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(data, 1) if packed else data)


@pytest.fixture
def small_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_small_set(tmp_path / "norb", packed=False)
    monkeypatch.setattr(smallnorb, "MIRRORS", ())
    return tmp_path / "norb"


def test_the_default_protocol_holds_out_instances_of_the_training_objects(small_set: Path) -> None:
    train, validation, test = (
        load_dataset("smallnorb", split, folder=small_set) for split in ("train", "validation", "test")
    )
    assert (len(train), len(validation), len(test)) == (4 * 60, 60, 300)
    hashes = [set(content_hashes(part.images)) for part in (train, validation, test)]
    assert not hashes[0] & hashes[1]
    assert not hashes[0] & hashes[2]
    assert not hashes[1] & hashes[2]
    assert train.label == "smallNORB, left camera"
    assert [part.originals.unique().numel() for part in (train, validation, test)] == [20, 5, 25]  # objects


def test_the_papers_protocol_validates_on_the_test_file_and_trains_on_all_instances(small_set: Path) -> None:
    train, validation, test = (
        load_dataset("smallnorb", split, "paper", folder=small_set) for split in ("train", "validation", "test")
    )
    assert len(train) == 300
    assert torch.equal(validation.images, test.images)


@pytest.mark.parametrize(("viewpoint", "familiar", "novel"), [("azimuth", 2 / 4, 2 / 4), ("elevation", 2 / 3, 1 / 3)])
def test_novel_viewpoints_are_never_trained_on(small_set: Path, viewpoint: str, familiar: float, novel: float) -> None:
    train, validation, test = (
        load_dataset(f"smallnorb-{viewpoint}", split, folder=small_set) for split in ("train", "validation", "test")
    )
    assert len(train) == 240 * familiar
    assert len(validation) == 60 * familiar
    assert len(test) == round(300 * novel)
    assert f"novel {viewpoint}" in test.label
    seen = load_dataset(f"smallnorb-{viewpoint}", "test", folder=small_set, viewpoints="familiar")
    assert len(seen) == 300 * familiar
    assert not set(content_hashes(seen.images)) & set(content_hashes(test.images))


def test_cameras_halving_and_crops(small_set: Path) -> None:
    left, right, stereo = (
        load_dataset("smallnorb", "test", folder=small_set, camera=c) for c in ("left", "right", "stereo")
    )
    assert left.images.shape[1:] == (1, 48, 48)
    assert torch.equal(stereo.images, torch.cat([left.images, right.images], 1))
    assert stereo.image_shape == (2, 32, 32)
    assert torch.equal(left.view(left.images), left.images[:, :, 8:40, 8:40].float() / 255)
    augmented = left.augment(left.images[:9], torch.Generator().manual_seed(0))
    assert augmented.shape == (9, 1, 32, 32)
    assert 0 <= augmented.min() <= augmented.max() <= 1
    square = torch.tensor([[[[1, 2], [4, 6]]]], dtype=torch.uint8)
    assert halve(square).tolist() == [[[[3]]]]
    with pytest.raises(DataError, match="unknown camera 'both': choose one of left, right, stereo"):
        load_dataset("smallnorb", "test", folder=small_set, camera="both")


def test_packed_files_must_be_the_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small_set(tmp_path / "norb", packed=True)
    monkeypatch.setattr(smallnorb, "MIRRORS", ())
    with pytest.raises(DataError, match="does not match the SHA-256 of the published smallnorb-5x46789"):
        load_dataset("smallnorb", "train", folder=tmp_path / "norb")


def test_a_missing_download_names_the_files_and_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallnorb, "MIRRORS", ())
    with pytest.raises(DataError) as caught:
        load_dataset("smallnorb", "test")
    for kind in ("dat", "cat", "info"):
        assert f"smallnorb-5x01235x9x18x6x2x96x96-testing-{kind}.mat" in str(caught.value)
    assert "or put them into" in str(caught.value)


def test_a_damaged_file_in_the_cache_is_taken_from_its_source_again(
    small_set: Path, said: pytest.LogCaptureFixture
) -> None:
    before = load_dataset("smallnorb", "test", folder=small_set).images
    file = cache_folder() / "smallnorb" / smallnorb.FILES["testing"]["dat"].name
    damaged = bytearray(file.read_bytes())
    damaged[-7] ^= 4
    file.write_bytes(damaged)
    said.clear()
    assert torch.equal(load_dataset("smallnorb", "test", folder=small_set).images, before)
    assert "is damaged: fetching it again" in said.messages[0]


def test_a_damaged_file_in_the_cache_is_refused_where_no_source_has_it(small_set: Path) -> None:
    load_dataset("smallnorb", "test", folder=small_set)
    file = cache_folder() / "smallnorb" / smallnorb.FILES["testing"]["dat"].name
    damaged = bytearray(file.read_bytes())
    damaged[-7] ^= 4
    file.write_bytes(damaged)
    with pytest.raises(DataError, match=r"testing-dat\.mat could not be fetched"):
        load_dataset("smallnorb", "test")


def test_files_put_into_the_cache_folder_by_hand_are_used(small_set: Path) -> None:
    place = cache_folder() / "smallnorb"
    place.mkdir(parents=True)
    for wanted in smallnorb.FILES["testing"].values():
        (place / wanted.name).write_bytes((small_set / wanted.name).read_bytes())
    assert len(load_dataset("smallnorb", "test")) == 300


def test_swapped_files_are_named(small_set: Path) -> None:
    cat, info = (small_set / smallnorb.FILES["testing"][kind].name for kind in ("cat", "info"))
    swapped = cat.read_bytes()
    cat.write_bytes(info.read_bytes())
    info.write_bytes(swapped)
    with pytest.raises(
        DataError, match=r"testing-cat.mat holds int32 .*, which is not a `cat` file: were files swapped"
    ):
        load_dataset("smallnorb", "test", folder=small_set)

"""Whatever a data file or a picture holds, reading gives images, or one line that says why not."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shortcaps.data import affnist, fetch
from shortcaps.data.cifar10 import RECORD, parse_records
from shortcaps.data.decode import FITS, decode_image, fitted, reading
from shortcaps.data.fetch import SourceFailed
from shortcaps.data.idx import parse_idx
from shortcaps.data.norb import parse_matrix, read_norb_files
from shortcaps.data.own.arrow import list_arrow
from shortcaps.data.own.table import list_table
from shortcaps.errors import DataError
from tests.data.fakes import idx_bytes
from tests.data.test_bounds import affnist_zip
from tests.data.test_norb import matrix_bytes
from tests.data.test_tables import DATASETS
from tests.fuzz.support import damaged, fuzz, refused_in_one_line


@fuzz(damaged(idx_bytes(np.ones((3, 4, 5), np.uint8)), idx_bytes(np.arange(9, dtype=np.uint8))))
def test_idx(data: bytes) -> None:
    for dimensions in (1, 3):
        with refused_in_one_line(DataError):
            assert parse_idx(data, "file", dimensions).ndim == dimensions


@fuzz(damaged(matrix_bytes(np.arange(24).reshape(2, 3, 4), "<i4"), matrix_bytes(np.arange(5), "u1")))
def test_norb_matrices(data: bytes) -> None:
    with refused_in_one_line(DataError):
        assert parse_matrix(data, "file").nbytes <= len(data)


@fuzz(damaged(matrix_bytes(np.arange(3), "<i4"), matrix_bytes(np.zeros((3, 2, 4, 4)), "u1")))
def test_norb_files(data: bytes) -> None:
    whole = {"dat": (np.zeros((3, 2, 4, 4)), "u1"), "cat": (np.arange(3), "<i4"), "info": (np.zeros((3, 4)), "<i4")}
    for damaged_one in whole:
        with tempfile.TemporaryDirectory() as folder, refused_in_one_line(DataError):
            paths = {kind: Path(folder) / kind for kind in whole}
            for kind, (array, number) in whole.items():
                paths[kind].write_bytes(data if kind == damaged_one else matrix_bytes(array, number))
            assert read_norb_files(paths).images.ndim == 4


def _matlab() -> tuple[bytes, bytes]:
    import scipy.io

    files = []
    for packed in (True, False):
        stream = io.BytesIO()
        record = {"image": np.zeros((1600, 3), np.uint8), "label_int": np.arange(3, dtype=np.uint8)[None]}
        scipy.io.savemat(stream, {"affNISTdata": record}, do_compression=packed)
        files.append(stream.getvalue())
    return files[0], files[1]


@fuzz(damaged(*_matlab()))
def test_matlab(data: bytes) -> None:
    with refused_in_one_line(DataError):
        images, labels = affnist._parse_matlab(data, "file")
        assert len(images) == len(labels)


@fuzz(damaged(affnist_zip()))
def test_zipped_matlab(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(DataError):
        (Path(folder) / "test.mat.zip").write_bytes(data)
        assert affnist.read_published("test", Path(folder)) is not None


@fuzz(damaged(bytes(3 * RECORD)))
def test_cifar_records(data: bytes) -> None:
    with refused_in_one_line(DataError):
        assert parse_records(data, "file")[0].shape[1:] == (3, 32, 32)


def _pictures() -> list[bytes]:
    files = []
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 4), np.uint8)
    for kind, mode, options in (
        ("PNG", "RGBA", {}),
        ("PNG", "P", {"transparency": 0}),
        ("PNG", "I;16", {}),
        ("JPEG", "RGB", {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"}),
        ("JPEG", "CMYK", {"progressive": True}),
        ("BMP", "RGB", {}),
        ("GIF", "P", {}),
        ("WEBP", "RGBA", {"lossless": True}),
    ):
        picture = Image.fromarray(noise).convert(mode if mode != "I;16" else "I").convert(mode)
        stream = io.BytesIO()
        picture.save(stream, kind, **options)
        files.append(stream.getvalue())
    return files


@fuzz(damaged(*_pictures()), few=80)
def test_pictures(data: bytes) -> None:
    for colour in (False, True):
        with refused_in_one_line(DataError):
            picture = decode_image(io.BytesIO(data), colour=colour, max_pixels=10**6)
            with reading():
                for fit in FITS:
                    assert fitted(picture, (5, 6), fit).shape == (3 if colour else 1, 5, 6)


def _archive() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in ("x/other", "x/file"):
            entry = tarfile.TarInfo(name)
            entry.size = 700
            archive.addfile(entry, io.BytesIO(bytes(range(100)) * 7))
    return stream.getvalue()


@fuzz(damaged(_archive(), gzip.decompress(_archive())))
def test_tar_archives(data: bytes) -> None:
    with contextlib.suppress(SourceFailed):
        assert len(fetch._member(data, "x/file", "archive", 1_000)) <= 1_000


@fuzz(damaged(b"path,label,split\na.png,cat,train\nb.png,dog,test\n", b"file;class\na;1\nb;2\n"))
def test_tables(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(DataError):
        (Path(folder) / "labels.csv").write_bytes(data)
        assert len(list_table(Path(folder) / "labels.csv", None).class_names) > 1


@fuzz(damaged((DATASETS / "single" / "data-00000-of-00001.arrow").read_bytes()))
def test_arrow_files(data: bytes) -> None:
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder, refused_in_one_line(DataError):
        (Path(folder) / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        (Path(folder) / "data.arrow").write_bytes(data)
        listing = list_arrow(Path(folder), None)
        for number in range(len(listing.pictures)):
            with contextlib.suppress(DataError, OSError):
                listing.pictures.sha256(number)

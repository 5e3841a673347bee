"""Images decoded as needed are the images decoded at once, in bounded memory; data sets work in PyTorch's data loaders."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from shortcaps import progress
from shortcaps.data import Dataset, join, load_dataset
from shortcaps.data.lazy import Cache, LazyImages
from shortcaps.data.own import index, load, reader
from shortcaps.data.own.index import FileIndex
from shortcaps.errors import DataError
from tests.data.test_folder import picture, tree


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split, count in (("train", 12), ("val", 4), ("test", 4)):
        tree(tmp_path / "photos" / split, count)
    return tmp_path / "photos"


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are decoded from now on."""
    files: list[str] = []
    original = reader.decode_image

    def decode_image(source: Path, **options: bool) -> object:
        files.append(source.name)
        return original(source, **options)

    monkeypatch.setattr(reader, "decode_image", decode_image)
    return files


def pair(photos: Path, split: str = "train", **options: object) -> tuple[Dataset, Dataset]:
    """The same images in memory and decoded as needed."""
    eager, lazy = (load_dataset(photos, split, image_memory=memory, **options) for memory in (100, 0))
    assert isinstance(eager.images, torch.Tensor)
    assert isinstance(lazy.images, LazyImages)
    return eager, lazy


@pytest.mark.parametrize("colour", [False, True])
def test_lazy_images_are_those_in_memory(photos: Path, colour: bool) -> None:
    eager, lazy = pair(photos, image_size=24, colour=colour)
    assert lazy.images.shape == eager.images.shape
    assert lazy.image_shape == eager.image_shape
    assert torch.equal(lazy.labels, eager.labels)
    order = torch.randperm(36)
    assert torch.equal(lazy.images[order], eager.images[order])
    assert torch.equal(lazy.images[order[:3]], eager.images[order[:3]])
    assert torch.equal(lazy.images[3:17:2], eager.images[3:17:2])
    parts = lazy.images.split(10)
    assert [len(part) for part in parts] == [10, 10, 10, 6]
    assert torch.equal(torch.cat([part.to("cpu") for part in parts]), eager.images)
    some, few = lazy.subset(order[:9]), eager.subset(order[:9])
    assert isinstance(some.images, LazyImages)
    assert torch.equal(some.images[:], few.images)
    assert some.fingerprint() == few.fingerprint() != lazy.fingerprint()


def test_threads_decode_what_one_does(photos: Path) -> None:
    eager, lazy = pair(photos)
    torch.set_num_threads(3)
    assert torch.equal(lazy.images[:], eager.images)


def test_images_beyond_the_limit_are_decoded_as_needed(photos: Path) -> None:
    size = 300  # 60 images of 90 kB are 5.4 MB
    assert isinstance(load_dataset(photos, "train", image_size=size, image_memory=6).images, torch.Tensor)
    lazy = load_dataset(photos, "train", image_size=size, image_memory=3)
    assert isinstance(lazy.images, LazyImages)
    assert lazy.images.cache.count == int(36 * 3 / 5.4), "each split has its share of the memory"


def test_the_cache_keeps_as_many_as_it_may_and_gives_them_back(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = load_dataset(photos, "train", image_size=300, image_memory=3)
    first = lazy.images[:]
    files = decoded(monkeypatch)
    assert torch.equal(lazy.images[:], first)
    assert len(files) == 16
    assert torch.equal(lazy.images[torch.tensor([0, 35, 1])], first[[0, 35, 1]])
    assert len(files) == 17


def test_a_cache_without_room_is_always_empty() -> None:
    cache = Cache(0, (1, 2, 2))
    cache.put(np.array([0, 1]), np.ones((2, 1, 2, 2), np.uint8))
    assert cache.get(np.array([0, 1]), np.zeros((2, 1, 2, 2), np.uint8)).tolist() == [0, 1]


def test_a_data_set_is_subscriptable_and_ends(photos: Path) -> None:
    for data in pair(photos):
        image, label = data[5]
        assert torch.equal(image, data.view(data.images[5:6])[0])
        assert label == int(data.labels[5])
        assert torch.equal(data[-1][0], data[35][0])
        assert torch.equal(data[torch.tensor(7)][0], data[np.int64(7)][0])
        assert len(list(data)) == 36
        with pytest.raises(IndexError, match=r"image 36 does not exist: photos \(train\) has 36"):
            data[36]
        with pytest.raises(TypeError):
            data["cats"]


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
def test_a_data_loader_gives_all_images_in_order(photos: Path, workers: int, context: str | None) -> None:
    eager, lazy = pair(photos)
    for data in (eager, lazy):
        loader = DataLoader(data, batch_size=8, num_workers=workers, multiprocessing_context=context)
        batches = list(loader)
        assert torch.equal(torch.cat([images for images, _ in batches]), eager.view(eager.images))
        assert torch.equal(torch.cat([labels for _, labels in batches]), eager.labels)


def test_forked_workers_fill_one_cache(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = load_dataset(photos, "train", image_size=300, image_memory=3)
    assert isinstance(lazy.images, LazyImages)
    lazy.images.cache = Cache(20, lazy.images.reader.shape)  # the first look at the images has filled the other
    list(DataLoader(lazy, batch_size=6, num_workers=2, multiprocessing_context="fork"))
    files = decoded(monkeypatch)
    lazy.images[:20]
    assert not files


def test_a_lazy_set_can_be_sent_to_another_process(photos: Path) -> None:
    eager, lazy = pair(photos)
    again = pickle.loads(pickle.dumps(lazy))
    assert torch.equal(again.images[:], eager.images)
    assert again.fingerprint() == eager.fingerprint()


def test_a_fingerprint_notices_other_contents_and_not_another_place(photos: Path, tmp_path: Path) -> None:
    before = {memory: load_dataset(photos, "train", image_memory=memory).fingerprint() for memory in (100, 0)}
    assert before[100] == before[0]
    shutil.copytree(photos, tmp_path / "elsewhere")  # with other times
    assert load_dataset(tmp_path / "elsewhere", "train", image_memory=0).has_fingerprint(before[0])
    changed = photos / "train/cats/0.png"
    times = changed.stat()
    picture(changed, 999)
    changed.write_bytes(changed.read_bytes().ljust(times.st_size, b"\0")[: max(times.st_size, 200)])
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    for memory in (100, 0):
        data = load_dataset(photos, "train", image_memory=memory, skip_broken=True)
        assert not data.has_fingerprint(before[0])


def test_fingerprints_of_earlier_versions_were_of_pixels_and_still_hold(photos: Path) -> None:
    eager, lazy = pair(photos)
    old = Dataset("n", "n", "train", "default", eager.images, eager.labels, eager.class_names).fingerprint()
    assert not old.startswith("files:")
    assert eager.has_fingerprint(old)
    assert lazy.has_fingerprint(old)
    assert not lazy.subset(slice(1, None)).has_fingerprint(old)


def test_digests_are_remembered_until_a_file_changes(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SECONDS_BEFORE_TRUST", -60)
    before = load_dataset(photos, "train", image_memory=0).fingerprint()
    hashed: list[Path] = []
    monkeypatch.setattr(index, "sha256_of", lambda file: hashed.append(file) or original(file))
    original = index_sha256
    files = decoded(monkeypatch)
    assert load_dataset(photos, "train", image_memory=0).fingerprint() == before
    assert (hashed, files) == ([], []), "neither read nor decoded again"
    picture(photos / "train/cats/0.png", 999)
    assert load_dataset(photos, "train", image_memory=0).fingerprint() != before
    assert (hashed, files) == ([photos / "train/cats/0.png"], ["0.png"])


index_sha256 = index.sha256_of


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "new.png").write_bytes(b"contents")
    known = FileIndex(tmp_path)
    known.sha256("new.png")
    known.save()
    assert FileIndex(tmp_path)._known == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]\n", b'["a", 1, 2, 3, "ff"]\n', b"\xff\xfe"])
def test_a_damaged_index_is_made_anew(photos: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SECONDS_BEFORE_TRUST", -60)
    before = load_dataset(photos, "train").fingerprint()
    FileIndex(photos).file.write_bytes(content)
    assert load_dataset(photos, "train").fingerprint() == before


@pytest.mark.parametrize("memory", [100, 0])
def test_broken_pictures_are_found_before_training(photos: Path, memory: int, said: pytest.LogCaptureFixture) -> None:
    whole = (photos / "train/dogs/0.png").read_bytes()
    (photos / "train/dogs/half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1 of 61 images cannot be used(.|\n)*half.png: broken"):
        load_dataset(photos, "train", image_memory=memory)
    assert len(load_dataset(photos, "train", image_memory=memory, skip_broken=True)) == 36
    assert said.messages[-1].startswith("1 image of ")


def test_a_picture_that_is_lost_later_is_named(photos: Path) -> None:
    lazy = load_dataset(photos, "train", image_memory=0)
    (photos / "train/cats/3.png").unlink()
    with pytest.raises(DataError, match=r"train/cats/3.png: .*; it could be read before: restore it"):
        lazy.images[:]


def test_reading_many_pictures_says_how_long_it_will_take(
    photos: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    monkeypatch.setattr(load, "_READ_AT_ONCE", 12)
    load_dataset(photos, "train")
    assert [line.partition(", about")[0] for line in said.messages] == ["12 of 36 images read", "24 of 36 images read"]


def test_splits_joined_are_decoded_as_needed_from_the_files_of_both(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = [pair(photos, split, image_size=24) for split in ("train", "validation")]
    eager, lazy = (join(*both) for both in zip(*splits, strict=True))
    files = decoded(monkeypatch)
    assert isinstance(lazy.images, LazyImages)
    assert files == []
    order = torch.randperm(len(eager))
    assert torch.equal(lazy.images[order], eager.images[order])
    assert len(files) == len(eager)
    assert torch.equal(lazy.images.select(order[:5])[:], eager.images[order[:5]])
    assert lazy.fingerprint() == eager.fingerprint()


def test_an_image_that_is_gone_is_named_whichever_split_it_was_of(photos: Path) -> None:
    both = join(*(pair(photos, split, image_size=24)[1] for split in ("train", "validation")))
    gone = sorted((photos / "val").rglob("*.png"))[0]
    gone.unlink()
    with pytest.raises(DataError, match=f"{gone.parent.name}/{gone.name}.*it could be read before"):
        both.images[:]

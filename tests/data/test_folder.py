"""A folder of one's own images: splits, sizes, and a clear refusal of what cannot be used."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shortcaps.data import load_dataset
from shortcaps.data.sheet import contact_sheet
from shortcaps.errors import DataError
from tests.data.fakes import content_hashes
from tests.pictures import short_exif


def picture(file: Path, seed: int, size: tuple[int, int] = (20, 16), mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(file)


def tree(root: Path, per_class: int = 10, formats: tuple[str, ...] = ("png", "bmp", "webp")) -> Path:
    for number, name in enumerate(("cats", "dogs", "owls")):
        for n in range(per_class):
            picture(root / name / f"{n}.{formats[n % len(formats)]}", 100 * number + n)
    return root


def test_a_single_tree_is_split_by_content_without_overlap(tmp_path: Path) -> None:
    parts = [load_dataset(tree(tmp_path), split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [24, 3, 3]
    assert parts[0].class_names == ("cats", "dogs", "owls")
    assert parts[0].image_shape == (1, 28, 28)
    hashes = [set(content_hashes(part.images)) for part in parts]
    assert not (hashes[0] & hashes[1] or hashes[0] & hashes[2] or hashes[1] & hashes[2])
    assert torch.equal(parts[0].images, load_dataset(tmp_path, "train").images)
    for part in parts:
        assert set(part.labels.tolist()) == {0, 1, 2}


def test_pictures_that_come_or_go_turn_no_training_picture_into_a_test_picture(tmp_path: Path) -> None:
    before = load_dataset(tree(tmp_path, 40), "train")
    for name in ("cats", "dogs", "owls"):
        (tmp_path / name / "0.png").unlink()
        for n in range(12):
            picture(tmp_path / name / f"new-{n}.png", 10_000 + n)
    trained = set(content_hashes(before.images))
    assert not trained & set(content_hashes(load_dataset(tmp_path, "test").images))
    still = set(content_hashes(load_dataset(tmp_path, "train").images))
    assert len(trained & still) > 0.9 * len(trained)


def test_train_val_test_folders_are_used_as_they_are(tmp_path: Path) -> None:
    for split, count in (("train", 5), ("val", 2), ("test", 3)):
        tree(tmp_path / split, count)
    assert [len(load_dataset(tmp_path, split)) for split in ("train", "validation", "test")] == [15, 6, 9]


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "gif", "tif", "tiff"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_grey_and_colour_images_of_any_size(tmp_path: Path, suffix: str, mode: str) -> None:
    for name in ("a", "b"):
        for n in range(3):
            picture(tmp_path / name / f"{n}.{suffix}", n, (30 + n, 50), mode)
    assert load_dataset(tmp_path, "train", image_size=40).image_shape == (1, 40, 40)
    assert load_dataset(tmp_path, "train", image_size=17, colour=True).image_shape == (3, 17, 17)


def test_broken_files_are_listed_together_and_can_be_skipped(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 4)
    (tmp_path / "train/cats/text.png").write_text("this is no picture")
    whole = (tmp_path / "train/dogs/0.png").read_bytes()
    (tmp_path / "train/dogs/half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="2 of 38 images cannot be used; remove them or use --skip-broken") as caught:
        load_dataset(tmp_path, "train")
    assert "text.png: not an image" in str(caught.value)
    assert "half.png: broken" in str(caught.value)
    assert len(load_dataset(tmp_path, "train", skip_broken=True)) == 12
    assert "2 images" in said.messages[0]
    assert "text.png" in said.messages[0]


def test_what_raises_anything_at_all_can_be_skipped(tmp_path: Path) -> None:
    """A decoder's struct.error, and a file that the disk does not give."""
    tree(tmp_path, 6)
    (tmp_path / "cats/exif.png").write_bytes(short_exif())
    (tmp_path / "dogs/unreadable.png").symlink_to("/proc/self/mem")
    whole = sum(len(load_dataset(tmp_path, split, skip_broken=True)) for split in ("train", "validation", "test"))
    assert whole == 3 * 6
    with pytest.raises(
        DataError, match=r"cannot be used; remove them or use --skip-broken:\n(.|\n)*unreadable.png: broken"
    ):
        load_dataset(tmp_path, "train")


def huge_png(width: int, height: int) -> bytes:
    """A few hundred bytes that claim to be a picture of any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_pictures_that_would_fill_the_memory_are_refused(tmp_path: Path, side: int) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 2)
    (tmp_path / "train/cats/bomb.png").write_bytes(huge_png(side, side))
    with pytest.raises(DataError, match=r"bomb.png: .*make it smaller"):
        load_dataset(tmp_path, "train")


def test_folders_that_cannot_be_learned_from_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="has no class folders: put the images of each class"):
        load_dataset(tmp_path / "none", "train")
    picture(tmp_path / "one/only/0.png", 0)
    with pytest.raises(DataError, match=r"has one class only \(only\): a classifier needs at least two"):
        load_dataset(tmp_path / "one", "train")
    tree(tmp_path / "empty")
    (tmp_path / "empty/unicorns").mkdir()
    with pytest.raises(DataError, match="no images for unicorns: add some"):
        load_dataset(tmp_path / "empty", "train")
    tree(tmp_path / "few", 2)
    with pytest.raises(DataError, match="class cats has 2 different images: dividing them needs at least 3"):
        load_dataset(tmp_path / "few", "train")
    tree(tmp_path / "partial/train", 2)
    with pytest.raises(DataError, match="has a train folder but none for test"):
        load_dataset(tmp_path / "partial", "test")
    tree(tmp_path / "partial/test", 2)
    picture(tmp_path / "partial/test/mice/0.png", 0)
    with pytest.raises(DataError, match=r"has the classes cats, dogs, mice, owls, but .* has cats, dogs, owls"):
        load_dataset(tmp_path / "partial", "test")


def test_a_contact_sheet_shows_training_augmented_and_test_images(tmp_path: Path) -> None:
    parts = [load_dataset(tree(tmp_path / "images"), split, colour=True) for split in ("train", "test")]
    contact_sheet(parts, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 600
        assert sheet.height > 300
        assert len(sheet.getcolors(1 << 24)) > 1000


def test_copies_of_a_picture_stay_on_one_side_of_a_split(tmp_path: Path) -> None:
    root = tree(tmp_path / "pets", 6)
    for name in ("cats", "dogs", "owls"):
        for n in range(6):
            for copy in range(3):
                suffix = ("png", "bmp", "webp")[n % 3]
                (root / name / f"copy{copy}-{n}.{suffix}").write_bytes((root / name / f"{n}.{suffix}").read_bytes())
    hashes = [set(content_hashes(load_dataset(root, split).images)) for split in ("train", "validation", "test")]
    assert not (hashes[0] & hashes[1] or hashes[0] & hashes[2] or hashes[1] & hashes[2])


def test_a_picture_in_two_classes_is_in_one_split(tmp_path: Path) -> None:
    root = tree(tmp_path / "pets", 30)
    for file in sorted((root / "cats").iterdir()):
        (root / "dogs" / f"also-{file.name}").write_bytes(file.read_bytes())
    hashes = [set(content_hashes(load_dataset(root, split).images)) for split in ("train", "validation", "test")]
    assert not (hashes[0] & hashes[1] or hashes[0] & hashes[2] or hashes[1] & hashes[2])
    assert sum(len(load_dataset(root, split)) for split in ("train", "validation", "test")) == 120


@pytest.mark.parametrize("memory", [1000, 0])
def test_a_split_of_broken_files_alone_is_named_in_full(tmp_path: Path, memory: int) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 4)
    for file in (tmp_path / "test").rglob("*.*"):
        file.write_text("this is no picture")
    with pytest.raises(DataError, match="12 of 36 images cannot be used"):
        load_dataset(tmp_path, "test", image_memory=memory)


def test_links_that_lead_nowhere_are_pictures_that_cannot_be_read(tmp_path: Path) -> None:
    root = tree(tmp_path / "pets", 10)
    (root / "cats" / "annexed.png").symlink_to(tmp_path / "nowhere" / "1.png")
    with pytest.raises(DataError, match=r"1 of 31 images cannot be used(?s:.)*annexed.png"):
        load_dataset(root, "train")
    assert len(load_dataset(root, "train", skip_broken=True)) == 24


def test_a_class_may_be_called_train_and_a_split_training(tmp_path: Path) -> None:
    for name in ("car", "train"):
        for n in range(5):
            picture(tmp_path / "vehicles" / name / f"{n}.png", n + 50 * (name == "car"))
    assert load_dataset(tmp_path / "vehicles", "train").class_names == ("car", "train")
    for split in ("Training", "Validation", "Testing"):
        tree(tmp_path / "pets" / split, 3)
    assert load_dataset(tmp_path / "pets", "test").class_names == ("cats", "dogs", "owls")


def test_sixteen_bits_of_grey_and_rotated_photos_are_read_as_they_look(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 20 * 20).reshape(20, 20).astype(np.uint16)
    photo = Image.fromarray((ramp // 257).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    for name in ("a", "b"):
        for n in range(3):
            for split in ("train", "val", "test"):
                (tmp_path / split / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(ramp + n).save(tmp_path / split / name / f"{n}.png")
                photo.save(tmp_path / split / name / f"{n}.jpg", exif=exif, quality=95)
    images = load_dataset(tmp_path, "train", image_size=20).images.float()
    upright = torch.from_numpy(np.asarray(photo).astype(np.float32))
    deep = [image[0] for image in images if (image[0] - upright).abs().mean() < 3]
    turned = [image[0] for image in images if (image[0] - upright.rot90(-1)).abs().mean() < 3]
    assert len(deep) == len(turned) == 6


def test_broken_files_of_all_splits_are_named_at_once(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 4)
        (tmp_path / split / "owls/text.gif").write_text("this is no picture")
    (tmp_path / "test/dogs/photo.HEIC").write_bytes(b"something of a telephone")
    with pytest.raises(DataError, match="4 of 40 images cannot be used") as caught:
        load_dataset(tmp_path, "validation")
    for name in ("train/owls/text.gif", "val/owls/text.gif", "test/owls/text.gif"):
        assert f"{tmp_path / name}: not an image" in str(caught.value)
    assert "photo.HEIC: .HEIC is not read here: convert it to JPEG or PNG" in str(caught.value)


def test_skipping_says_how_many_of_each_split(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    for split, count in (("train", 3), ("val", 0), ("test", 25)):
        tree(tmp_path / split, 4)
        for n in range(count):
            (tmp_path / split / f"owls/broken-{n}.jpg").write_text("this is no picture")
    for split in ("train", "validation", "test"):
        assert len(load_dataset(tmp_path, split, skip_broken=True)) == 12
    first, last = said.messages
    assert first.startswith(f"3 images of {tmp_path} (train) were left out: ")
    assert last.startswith(f"25 images of {tmp_path} (test) were left out: ")
    assert last.endswith("; …")


def test_what_is_no_picture_is_said_and_not_ignored_silently(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 4)
    (tmp_path / "train/cats/notes.txt").write_text("written by hand")
    (tmp_path / "train/cats/labels.json").write_text("{}")
    (tmp_path / "test/stray.png").write_bytes((tmp_path / "test/cats/0.png").read_bytes())
    (tmp_path / "more").mkdir()
    for unnoticed in ("train/cats/.DS_Store", "train/dogs/Thumbs.db", ".hidden"):
        (tmp_path / unnoticed).write_text("made by the system")
    load_dataset(tmp_path, "train")
    assert said.messages == [
        f"not used, as these are no pictures that can be read here: {line}"
        for line in (
            f"{tmp_path}: 1 folder",
            f"{tmp_path / 'train/cats'}: 1 .json, 1 .txt",
            f"{tmp_path / 'test'}: 1 .png",
        )
    ]


def test_hidden_folders_are_not_looked_into_and_links_to_folders_are_said(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    tree(tmp_path / "photos", 12)
    whole = sum(len(load_dataset(tmp_path / "photos", split)) for split in ("train", "validation", "test"))
    tree(tmp_path / "elsewhere", 3)
    (tmp_path / "photos/cats/more").symlink_to(tmp_path / "elsewhere/cats")
    picture(tmp_path / "photos/cats/.thumbnails/0.png", 77)
    assert sum(len(load_dataset(tmp_path / "photos", split)) for split in ("train", "validation", "test")) == whole
    assert said.messages[-1].endswith(f"{tmp_path / 'photos/cats'}: 1 link to a folder")


def test_the_first_frame_or_page_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (20, 20), grey) for grey in (40, 200)]
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for suffix in ("gif", "tiff", "webp"):
                frames[0].save(
                    tmp_path / split / name / f"moving.{suffix}", save_all=True, append_images=frames[1:], lossless=True
                )
    images = load_dataset(tmp_path, "train", image_size=20).images.float()
    assert len(images) == 6
    torch.testing.assert_close(images, torch.full((6, 1, 20, 20), 40.0), atol=2, rtol=0)


def test_floats_of_an_unknown_range_are_refused(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        tree(tmp_path / split, 2)
    Image.fromarray(np.random.default_rng(0).random((20, 20), np.float32)).save(tmp_path / "train/cats/map.tiff")
    with pytest.raises(DataError, match=r"map.tiff: its pixels are floats of an unknown range: save it with 8 or 16"):
        load_dataset(tmp_path, "train")

"""MNIST and affNIST: splits that never overlap, transformations that never leak, readers that notice damage."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch.nn import functional as F

from shortcaps.data import affnist, load_dataset
from shortcaps.data.fetch import Mirror
from shortcaps.data.idx import parse_idx
from shortcaps.errors import DataError
from tests.data.fakes import TEST, TRAIN, VALIDATION, content_hashes, fake_files, fake_mnist, idx_bytes


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_mnist(tmp_path / "source", monkeypatch)
    monkeypatch.setattr(affnist, "MIRROR", Mirror("http://127.0.0.1:9"))  # nobody listens there
    return tmp_path


def test_mnist_has_the_splits_of_the_paper(fake: Path) -> None:
    train, validation, test = (load_dataset("mnist", split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (TRAIN - VALIDATION, VALIDATION, TEST)
    assert train.images.dtype == torch.uint8
    assert train.image_shape == (1, 28, 28)
    assert train.class_names == tuple("0123456789")
    assert train.label == "MNIST"
    assert str(train.augment) == "shift within 2 px"


def test_affnist_splits_are_made_of_the_digits_of_the_same_mnist_split(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = affnist.read_split
    monkeypatch.setattr(
        affnist, "read_split", lambda idx, split, *rest: asked.append(split) or original(idx, split, *rest)
    )
    for split in ("train", "validation", "test"):
        for protocol in ("default", "paper"):
            asked.clear()
            load_dataset("affnist", split, protocol)
            assert set(asked) == {split}


@pytest.mark.parametrize("protocol", ["default", "paper"])
@pytest.mark.parametrize("name", ["mnist", "affnist"])
def test_splits_never_overlap_by_content(fake: Path, name: str, protocol: str) -> None:
    hashes = [
        set(content_hashes(load_dataset(name, split, protocol).images)) for split in ("train", "validation", "test")
    ]
    for first in range(3):
        for second in range(first + 1, 3):
            assert not hashes[first] & hashes[second]


def is_shift_of(image: torch.Tensor, original: torch.Tensor, pixels: int) -> bool:
    padded = F.pad(original, (pixels,) * 4)
    height, width = original.shape[-2:]
    return any(
        torch.equal(image, padded[..., y : y + height, x : x + width])
        for y in range(2 * pixels + 1)
        for x in range(2 * pixels + 1)
    )


def test_affnist_training_batches_are_shifted_digits_and_nothing_else(fake: Path) -> None:
    train = load_dataset("affnist", "train")
    batch = train.augment(train.images[:40], torch.Generator().manual_seed(3))
    original = F.pad(load_dataset("mnist", "train").images[:40], (6,) * 4)
    for image, digit in zip((batch * 255).round().to(torch.uint8), original, strict=True):
        assert is_shift_of(image, digit, 5)
    moved = sum(not torch.equal(a, b) for a, b in zip((batch * 255).round().to(torch.uint8), original, strict=True))
    assert moved > 30


def test_affnist_validation_is_shifted_digits_by_default_and_affine_under_the_papers_protocol(fake: Path) -> None:
    digits = F.pad(load_dataset("mnist", "validation").images, (6,) * 4)
    default = load_dataset("affnist", "validation")
    assert all(is_shift_of(image, digit, 5) for image, digit in zip(default.images, digits, strict=True))
    assert "regenerated" not in default.label
    paper = load_dataset("affnist", "validation", "paper")
    assert paper.label == "affnist-regenerated"
    assert len(paper) == 32 * VALIDATION
    repeated = digits.repeat_interleave(32, 0)
    assert not any(is_shift_of(image, digit, 6) for image, digit in zip(paper.images[:40], repeated[:40], strict=True))


def test_regenerated_affnist_says_so_and_is_the_same_every_time(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = load_dataset("affnist", "test")
    assert test.label == "affnist-regenerated"
    assert test.images.shape == (32 * TEST, 1, 40, 40)
    assert torch.equal(test.labels, load_dataset("mnist", "test").labels.repeat_interleave(32))
    made_again = affnist.regenerate(load_dataset("mnist", "test").images, seed=affnist.SEEDS["test"])
    assert torch.equal(test.images, made_again)
    file = next((Path(affnist.cache_folder()) / "affnist-regenerated").glob("*.npy"))
    assert "regenerated" in str(file)
    damaged = bytearray(file.read_bytes())
    damaged[-100] ^= 1
    for data in (file.read_bytes()[:-100], bytes(damaged)):
        file.write_bytes(data)
        assert torch.equal(load_dataset("affnist", "test").images, made_again)
    assert test.name == "affnist-regenerated"
    assert test.originals is not None
    assert torch.equal(test.originals, torch.arange(TEST).repeat_interleave(32))
    assert load_dataset("affnist", "train").originals is None, "every digit is there once"


def test_transforms_of_a_digit_are_found_side_by_side_and_batch_by_batch() -> None:
    digits = torch.randint(10, (50,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(affnist.which_digit(digits.repeat_interleave(32)), torch.arange(50).repeat_interleave(32))
    assert torch.equal(affnist.which_digit(digits.repeat(32)), torch.arange(50).repeat(32))
    mixed = digits.repeat(32)[torch.randperm(1600, generator=torch.Generator().manual_seed(1))]
    assert torch.equal(affnist.which_digit(mixed), mixed), "only the class is known"


def test_the_random_matrices_are_rotation_shear_and_scaling_within_the_published_ranges() -> None:
    matrices = affnist.random_matrices(20_000, torch.Generator().manual_seed(0)).double()
    # rotation · shear · diag(a, d) has columns a R e1 and d R (s, 1)
    across = matrices[:, :, 0].norm(dim=1)
    angle = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0])
    back = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], -1).reshape(-1, 2, 2) @ matrices
    down, shear = back[:, 1, 1], back[:, 0, 1] / back[:, 1, 1]
    for values, low, high in (
        (across, 0.8, 1.2),
        (down, 0.8, 1.2),
        (angle, -math.radians(20), math.radians(20)),
        (shear, -0.2, 0.2),
    ):
        assert values.min() >= low - 1e-5
        assert values.max() <= high + 1e-5
        spread = high - low
        assert values.min() < low + 0.01 * spread
        assert values.max() > high - 0.01 * spread
        assert abs(float(values.mean()) - (low + high) / 2) < 0.01 * spread


def test_transformed_digits_match_exact_oracles() -> None:
    digits = torch.randint(1, 256, (3, 1, 28, 28), dtype=torch.uint8)
    same, quarter = torch.eye(2).expand(3, 2, 2), torch.tensor([[0.0, -1.0], [1.0, 0.0]]).expand(3, 2, 2)
    middle, corner = torch.full((3, 2), 0.5), torch.zeros(3, 2)
    assert torch.equal(affnist.transform(digits, same, middle), F.pad(digits, (6,) * 4))
    assert torch.equal(affnist.transform(digits, same, corner), F.pad(digits, (0, 12, 0, 12)))
    turned = affnist.transform(digits, quarter, middle)
    assert torch.equal(turned, F.pad(digits.rot90(-1, (2, 3)), (6,) * 4))
    half = affnist.transform(digits, same * 0.5, middle)
    expected = F.avg_pool2d(digits.float(), 2)
    assert (half[:, :, 13:27, 13:27] - expected).abs().max() <= 0.5


def test_the_whole_digit_stays_inside(fake: Path) -> None:
    digits = load_dataset("mnist", "test").images
    matrices = affnist.random_matrices(len(digits), torch.Generator().manual_seed(1))
    for position in (torch.zeros(len(digits), 2), torch.ones(len(digits), 2), torch.rand(len(digits), 2)):
        ink = affnist.transform(digits, matrices, position).float().sum((1, 2, 3))
        expected = digits.float().sum((1, 2, 3)) * torch.linalg.det(matrices).abs()
        assert ((ink - expected).abs() / expected).max() < 0.05  # nothing was cut off; bilinear sampling keeps the mass


def matlab_file(images: np.ndarray, labels: np.ndarray) -> bytes:
    """As published: a struct whose image is 1600 x count, MATLAB's column-major pixels."""
    stream = io.BytesIO()
    columns = images.transpose(0, 2, 1).reshape(len(images), -1).T
    savemat(stream, {"affNISTdata": {"image": columns, "label_int": labels[None].astype(np.uint8)}})
    return stream.getvalue()


@pytest.mark.parametrize("form", ["mat", "zip", "batches", "zipped batches"])
def test_published_affnist_files_are_read_in_every_form(fake: Path, tmp_path: Path, form: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, 40, 40)).astype(np.uint8)
    labels = np.arange(64) % 10
    folder = tmp_path / "published"
    folder.mkdir()
    batches = {f"{n + 1}.mat": matlab_file(images[2 * n : 2 * n + 2], labels[2 * n : 2 * n + 2]) for n in range(32)}
    if form == "mat":
        (folder / "test.mat").write_bytes(matlab_file(images, labels))
    elif form == "zip":
        with zipfile.ZipFile(folder / "test.mat.zip", "w") as archive:
            archive.writestr("test.mat", matlab_file(images, labels))
    elif form == "batches":
        (folder / "test_batches").mkdir()
        for name, data in batches.items():
            (folder / "test_batches" / name).write_bytes(data)
    else:
        with zipfile.ZipFile(folder / "test_batches.zip", "w") as archive:
            for name, data in batches.items():
                archive.writestr(f"test_batches/{name}", data)
    data = load_dataset("affnist", "test", folder=folder)
    assert data.label == "affNIST"
    assert np.array_equal(data.images[:, 0].numpy(), images)
    assert np.array_equal(data.labels.numpy(), labels)


def test_a_damaged_or_missing_affnist_file_is_named(fake: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected test\.mat, test\.mat\.zip"):
        load_dataset("affnist", "test", folder=tmp_path)
    (tmp_path / "test_batches").mkdir()
    (tmp_path / "test_batches/1.mat").write_bytes(matlab_file(np.zeros((2, 40, 40), np.uint8), np.zeros(2)))
    with pytest.raises(DataError, match=r"is incomplete: 2\.mat, 3\.mat"):
        load_dataset("affnist", "test", folder=tmp_path)
    (tmp_path / "test_batches/1.mat").unlink()
    (tmp_path / "test_batches").rmdir()
    (tmp_path / "test_batches.zip").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(DataError, match="is not a zip file, or is damaged"):
        load_dataset("affnist", "test", folder=tmp_path)
    (tmp_path / "test.mat").write_bytes(matlab_file(np.zeros((2, 40, 40), np.uint8), np.zeros(2))[:-50])
    with pytest.raises(DataError, match=r"test\.mat is not an affNIST file, or is damaged"):
        load_dataset("affnist", "test", folder=tmp_path)


def test_swapped_and_truncated_idx_files_are_named(fake: Path, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    images, labels = idx_bytes(np.zeros((3, 4, 4), np.uint8)), idx_bytes(np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="the-file holds labels, not images: were files swapped"):
        parse_idx(labels, "the-file", 3)
    with pytest.raises(DataError, match="the-file holds images, not labels: were files swapped"):
        parse_idx(images, "the-file", 1)
    with pytest.raises(DataError, match="the-file should hold 3x4x4 bytes but has 47: it is truncated"):
        parse_idx(images[:-1], "the-file", 3)
    with pytest.raises(DataError, match="the-file is not an IDX file"):
        parse_idx(b"<html>", "the-file", 3)
    folder = tmp_path / "swapped"
    folder.mkdir()
    files = fake_files()
    (folder / "t10k-images-idx3-ubyte").write_bytes(files["t10k-labels-idx1-ubyte"])
    (folder / "t10k-labels-idx1-ubyte").write_bytes(files["t10k-images-idx3-ubyte"])
    load_dataset("mnist", "test", folder=folder)
    assert "t10k-images-idx3-ubyte" in said.messages[0]
    assert "does not match the SHA-256" in said.messages[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mnits",), "unknown data set 'mnits': choose one of affnist, .*did you mean mnist"),
        (("mnist", "training"), "unknown split 'training': choose one of train, validation, test"),
        (("mnist", "train", "strict"), "unknown protocol 'strict': choose one of default, paper"),
    ],
)
def test_bad_names_are_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(*arguments)


def test_unknown_options_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the data set mnist has no option 'camera': it takes folder$"):
        load_dataset("mnist", camera="left")
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_dataset("mnist", folder=tmp_path / "nowhere")

"""MultiMNIST: pairs of digits of different classes, none of the test in two pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shortcaps.data import load_dataset, multimnist
from shortcaps.data.multimnist import CLASS_NAMES, PAIRS, disjoint_pairs, overlaid, pair_numbers, pairs_for_each
from tests.data.fakes import TEST, TRAIN, VALIDATION, fake_mnist


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(10, (400,), generator=torch.Generator().manual_seed(1))


def test_a_pair_is_of_two_classes_and_its_number_is_that_of_their_names(labels: torch.Tensor) -> None:
    for pairs in (pairs_for_each(labels, torch.Generator()), disjoint_pairs(labels, torch.Generator())):
        classes = labels[pairs]
        assert (classes[:, 0] != classes[:, 1]).all()
        for number, both in zip(pair_numbers(classes).tolist(), classes.tolist(), strict=True):
            assert CLASS_NAMES[number] == f"{min(both)} {max(both)}"
    assert len(PAIRS) == 45


def test_every_digit_is_in_one_pair_of_the_test_only(labels: torch.Tensor) -> None:
    pairs = disjoint_pairs(labels, torch.Generator().manual_seed(2))
    assert pairs.flatten().sort().values.tolist() == list(range(400))


def test_one_class_that_fills_more_than_half_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="more than half of the images are of one class"):
        disjoint_pairs(torch.tensor([1, 1, 1, 2]), torch.Generator())


def test_both_digits_are_in_the_image_whole() -> None:
    digits = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    digits[0, 0, 10, 4:24] = 100
    digits[1, 0, 4:24, 14] = 200
    image = overlaid(digits, torch.tensor([[0, 1]] * 30), torch.Generator().manual_seed(3))
    assert image.shape == (30, 1, 36, 36)
    assert ((image == 200).sum((1, 2, 3)) == 20).all(), "the brighter shows"
    assert ((image == 100).sum((1, 2, 3)) >= 19).all()
    assert len({tuple(picture.flatten().tolist()) for picture in image}) > 20, "each is moved by itself"


def test_about_three_quarters_of_the_boxes_overlap() -> None:
    boxes = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    boxes[:, :, 4:24, 4:24] = 1
    generator = torch.Generator().manual_seed(4)
    union = overlaid(boxes, torch.tensor([[0, 1]] * 4000), generator).float().sum((1, 2, 3))
    assert float(((800 - union) / 400).mean()) == pytest.approx(0.73, abs=0.01)


def test_the_set_is_the_same_each_time_and_each_split_has_digits_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multimnist, "MNIST", fake_mnist(tmp_path, monkeypatch))
    used: list[set[bytes]] = []
    monkeypatch.setattr(
        multimnist,
        "overlaid",
        lambda digits, *others: (used.append({d.numpy().tobytes() for d in digits}), overlaid(digits, *others))[1],
    )
    splits = [load_dataset("multimnist", split) for split in ("train", "validation", "test")]
    assert len(used) == 3
    assert len(set.union(*used)) == sum(map(len, used)), "no digit is in two splits"
    assert [len(data) for data in splits] == [TRAIN - VALIDATION, VALIDATION, TEST // 2]
    assert splits[0].fingerprint() == load_dataset("multimnist", "train").fingerprint()
    assert splits[0].image_shape == (1, 36, 36)
    assert splits[0].class_names == CLASS_NAMES

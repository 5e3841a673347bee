"""Which pictures are held out: by contents or by group, whatever else there is."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from shortcaps.data import load_dataset
from shortcaps.data.own.divide import divide
from shortcaps.data.own.pictures import Files, Listing
from shortcaps.errors import DataError
from tests.data.test_folder import picture, tree

Parts = dict[str, set[str]]


def parts_of(
    pictures: dict[str, int], groups: dict[str, str] | None = None, splits: dict[str, str] | None = None
) -> Parts:
    """The names in each split, of pictures by name with their classes; a picture's contents are its name."""
    names = sorted(pictures)
    listing = Listing(
        Path("."),
        Files(Path("."), names),
        [pictures[name] for name in names],
        ("a", "b"),
        [splits[name] for name in names] if splits else (),
        [groups[name] for name in names] if groups else (),
    )
    numbers = divide(listing, lambda number: hashlib.sha256(names[number].encode()).digest())
    return {split: {names[n] for n in chosen} for split, chosen in numbers.items()}


def drawn(count: int, seed: int) -> dict[str, int]:
    numbers = random.Random(seed)
    return {f"{numbers.random()}": n % 2 for n in range(count)}


@pytest.mark.parametrize("few", [6, 8, 12, 20, 60])
def test_adding_pictures_takes_none_out_of_training(few: int) -> None:
    divided = 0
    for seed in range(60):
        pictures = drawn(few, seed)
        try:
            parts = parts_of(pictures)
        except DataError:  # chance may hold out all of a handful
            continue
        divided += 1
        for more in (1, 2, 5, 50):
            grown = parts_of(pictures | drawn(more, 1000 + seed))
            assert parts["train"] <= grown["train"]
    assert divided > 50


def test_in_a_large_class_adding_pictures_moves_none_at_all() -> None:
    pictures = drawn(400, 0)
    parts, grown = parts_of(pictures), parts_of(pictures | drawn(300, 1))
    for split in ("train", "validation", "test"):
        assert parts[split] <= grown[split]
    assert 20 < len(parts["test"]) < 60
    assert 20 < len(parts["validation"]) < 60


@pytest.mark.parametrize("count", [8, 30, 200])
def test_every_class_is_in_every_split(count: int) -> None:
    for seed in range(30):
        pictures = drawn(count, seed)
        try:
            parts = parts_of(pictures)
        except DataError:
            continue
        assert set.union(*parts.values()) == set(pictures)
        for names in parts.values():
            assert {pictures[name] for name in names} == {0, 1}


def test_a_group_stays_together_even_across_classes() -> None:
    pictures = drawn(300, 3)
    groups = {name: f"object {n % 40}" for n, name in enumerate(sorted(pictures))}
    parts = parts_of(pictures, groups)
    seen = [{groups[name] for name in names} for names in parts.values()]
    assert sum(map(len, seen)) == 40
    assert all(seen)


def test_validation_is_split_off_and_the_test_is_left_alone() -> None:
    pictures = drawn(200, 4)
    splits = {name: "test" if n < 50 else "train" for n, name in enumerate(sorted(pictures))}
    parts = parts_of(pictures, splits=splits)
    assert parts["test"] == {name for name, split in splits.items() if split == "test"}
    assert 5 < len(parts["validation"]) < 30
    assert not parts["validation"] & parts["train"]


def test_a_group_in_two_of_the_owners_splits_is_refused() -> None:
    pictures = drawn(40, 4)
    names = sorted(pictures)
    splits = {name: "test" if n < 10 else "train" for n, name in enumerate(names)}
    apart = {name: f"{splits[name]} {n % 7}" for n, name in enumerate(names)}
    assert parts_of(pictures, apart, splits)["test"] == set(names[:10])
    shared = {**apart, names[2]: "tom", names[20]: "tom", names[3]: "tim", names[21]: "tim"}
    with pytest.raises(DataError, match=r"'tom' has pictures in test and in train, and so have 1 other groups"):
        parts_of(pictures, shared, splits)


def test_a_further_group_takes_none_out_of_training_where_groups_have_several_classes() -> None:
    divided = 0
    for seed in range(300):
        numbers = random.Random(seed)
        pictures = {f"{seed} {n}": n % 2 for n in range(16)}
        groups = {name: f"{seed} {numbers.randrange(12)}" for name in pictures}
        try:
            parts = parts_of(pictures, groups)
            grown = parts_of({**pictures, "new": 1}, {**groups, "new": f"{seed} new"})
        except DataError:  # chance may leave no division
            continue
        divided += 1
        assert parts["train"] <= grown["train"]
    assert divided > 250


def test_too_few_groups_are_refused() -> None:
    pictures = {f"{n}": n % 2 for n in range(40)}
    with pytest.raises(DataError, match="class a has 2 groups: dividing them needs at least 3"):
        parts_of(pictures, {name: f"{int(name) // 20}-{pictures[name]}" for name in pictures})


def test_a_train_and_a_test_folder_are_enough(tmp_path: Path) -> None:
    tree(tmp_path / "train", 30)
    tree(tmp_path / "test", 3)
    parts = {split: load_dataset(tmp_path, split) for split in ("train", "validation", "test")}
    assert len(parts["train"]) + len(parts["validation"]) == 90
    assert len(parts["test"]) == 9
    assert 3 <= len(parts["validation"]) < 25
    kept = {bytes(row) for row in parts["train"].hashes.numpy()}
    assert not kept & {bytes(row) for row in parts["validation"].hashes.numpy()}


def test_group_by_finds_in_paths_what_pictures_show(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        for thing in range(12):
            for view in range(3):
                picture(
                    tmp_path / name / f"{name}{thing}_view{view}.png", 100 * thing + view + 10_000 * (name == "dogs")
                )
    seen: list[int] = []
    for split in ("train", "validation", "test"):
        data = load_dataset(tmp_path, split, group_by=r"^(.*)_view")
        assert data.originals is not None
        assert (data.originals.bincount() == 3).all()
        seen.append(len(data.originals.unique()))
    assert sum(seen) == 24
    with pytest.raises(DataError, match=r"group-by 'x\(' is not a regular expression"):
        load_dataset(tmp_path, "train", group_by="x(")
    with pytest.raises(DataError, match=r"is found in 36 of 72 paths, but not in dogs0_view0.png: choose a pattern"):
        load_dataset(tmp_path, "train", group_by="cats")

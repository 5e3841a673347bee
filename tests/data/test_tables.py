"""A CSV file of paths and labels, and a folder that Hugging Face's `datasets` has written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch

from shortcaps.data import load_dataset
from shortcaps.data.own.arrow import list_arrow
from shortcaps.data.own.load import count_pictures
from shortcaps.errors import DataError
from tests.data.test_folder import picture

DATASETS = Path(__file__).parents[1] / "fixtures" / "datasets-5.2"
"""Written by `datasets` 5.2.0 with `save_to_disk`: 30 noisy pictures of 8x6 pixels in three classes, two pictures of each animal."""
SPLITS = ("train", "validation", "test")


def table(root: Path, header: str, *rows: str) -> Path:
    file = root / "labels.csv"
    file.write_text("\n".join((header, *rows)) + "\n")
    return file


def pictures(root: Path, count: int = 30) -> list[str]:
    for n in range(count):
        picture(root / f"images/{n}.png", n)
    return [f"images/{n}.png" for n in range(count)]


def test_a_csv_file_of_paths_and_labels_is_divided_like_a_folder(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label", *(f"{path},{n % 3 + 9}" for n, path in enumerate(pictures(tmp_path))))
    parts = [load_dataset(file, split, image_size=20, colour=True) for split in SPLITS]
    assert sum(map(len, parts)) == 30
    assert parts[0].class_names == ("9", "10", "11"), "numbers are in the order of their values"
    assert parts[0].image_shape == (3, 20, 20)
    assert parts[0].name == str(file)


def test_a_csv_file_may_say_the_split_and_what_a_picture_shows(tmp_path: Path) -> None:
    rows = [
        f"{path};{'ab'[n % 2]};{('train', 'Test')[n // 3 % 5 == 0]};{n // 3}"
        for n, path in enumerate(pictures(tmp_path))
    ]
    file = table(tmp_path, "File;Class;Split;Thing", *rows)
    parts = {split: load_dataset(file, split, group_by="thing") for split in SPLITS}
    assert len(parts["test"]) == 6
    assert len(parts["train"]) + len(parts["validation"]) == 24
    things = {split: set(part.originals.tolist()) for split, part in parts.items() if part.originals is not None}
    assert len(things) == 3
    assert sum(map(len, things.values())) == 10, "none is in two splits"


@pytest.mark.parametrize(
    ("header", "rows", "complaint"),
    [
        ("path,label", ["images/0.png,a", "images/\0.png,b"], r"line 3: 'images/\\x00.png' is no path"),
        ("name,label", ["images/0.png,a"], r"has no column of paths \(path, file, .*\): it has name, label"),
        ("path,what", ["images/0.png,a"], r"has no column of labels \(label, .*\): it has path, what"),
        ("path,label", [], "has no rows: expected a header such as path,label"),
        ("path,label", ["images/0.png,a", "images/1.png"], "line 3 has 1 columns: the header has 2"),
        ("path,label", ["images/0.png,"], "line 2: the label is missing"),
        ("path,label", ["", "images/0.png,a", "", "images/1.png,"], "line 5: the label is missing"),
        ("path,label", ["images/0.png,a", "images/0.png,b"], "line 2: images/0.png has the labels a and b"),
        ("path,label", ["images/0.png,a", "images/1.png,a"], "has 1 classes: a classifier needs at least two"),
        ("path,label,split", ["images/0.png,a,hold-out"], "line 2: unknown split 'hold-out': use train, val or test"),
        ("path,label,split", ["images/0.png,a,train", "images/1.png,b,train"], "and none is for test: add some"),
    ],
)
def test_a_csv_file_that_cannot_be_used_is_refused_with_a_line(
    tmp_path: Path, header: str, rows: list[str], complaint: str
) -> None:
    pictures(tmp_path, 2)
    with pytest.raises(DataError, match=complaint):
        load_dataset(table(tmp_path, header, *rows), "train")


def test_a_missing_file_and_an_unknown_column_are_named(tmp_path: Path) -> None:
    rows = [f"{path},{'ab'[n % 2]}" for n, path in enumerate(pictures(tmp_path))]
    os.mkfifo(tmp_path / "images/pipe.png")
    file = table(tmp_path, "path,label", *rows, "images/gone.png,a", "images/pipe.png,a")
    with pytest.raises(DataError, match="2 of 32 images cannot be used") as caught:
        load_dataset(file, "train")
    assert "images/gone.png: there is no such file" in str(caught.value)
    assert "images/pipe.png: it is not a file" in str(caught.value)
    assert sum(len(load_dataset(file, split, skip_broken=True)) for split in SPLITS) == 30
    with pytest.raises(DataError, match="has no column 'thing' to group by: it has path, label"):
        load_dataset(file, "train", group_by="thing")
    with pytest.raises(DataError, match=r"unknown data set .* or give the path of a folder or a CSV file"):
        load_dataset(tmp_path / "images/0.png", "train")


def test_a_folder_of_datasets_is_read_with_its_splits_and_classes() -> None:
    parts = {split: load_dataset(DATASETS / "divided", split, image_size=8, colour=True) for split in SPLITS}
    assert parts["train"].class_names == ("cat", "dog", "owl")
    assert len(parts["test"]) == 6
    assert parts["test"].labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(parts["train"]) + len(parts["validation"]) == 24
    single = [load_dataset(DATASETS / "single", split, group_by="animal") for split in SPLITS]
    assert sum(map(len, single)) == 30


def test_pictures_are_counted_in_every_layout(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label", *(f"{path},{n % 3}" for n, path in enumerate(pictures(tmp_path, 12))))
    assert count_pictures(file) == 12
    assert count_pictures(DATASETS / "divided") == 30
    assert count_pictures(tmp_path / "nothing") is None


def test_a_folder_of_datasets_is_read_lazily_and_in_another_process() -> None:
    eager = load_dataset(DATASETS / "divided", "train", image_size=8)
    lazy = load_dataset(DATASETS / "divided", "train", image_size=8, image_memory=0)
    assert isinstance(eager.images, torch.Tensor)
    assert not isinstance(lazy.images, torch.Tensor)
    assert torch.equal(pickle.loads(pickle.dumps(lazy)).images[:], eager.images)
    assert lazy.fingerprint() == eager.fingerprint()


def test_without_pyarrow_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow, which is not installed: pip install 'shortcaps\[arrow\]'"):
        load_dataset(DATASETS / "single", "train")


def test_damaged_and_other_folders_of_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'owner' to group by: it has image, label, animal"):
        load_dataset(DATASETS / "single", "train", group_by="owner")
    shutil.copytree(DATASETS / "divided", tmp_path / "cut")
    arrow = tmp_path / "cut/test/data-00000-of-00001.arrow"
    arrow.write_bytes(arrow.read_bytes()[:300])
    with pytest.raises(DataError, match="cut/test cannot be read"):
        load_dataset(tmp_path / "cut", "train")
    (tmp_path / "cut/dataset_dict.json").write_text(json.dumps({"splits": ["train", "holdout"]}))
    with pytest.raises(DataError, match="has a split holdout: rename it, expected train, val, test"):
        load_dataset(tmp_path / "cut", "train")
    (tmp_path / "hub/data").mkdir(parents=True)
    (tmp_path / "hub/data/train-00000-of-00001.parquet").touch()
    with pytest.raises(DataError, match=r"holds Parquet files: rewrite it with .*save_to_disk"):
        load_dataset(tmp_path / "hub", "train")


def test_a_row_of_a_divided_folder_is_named_in_its_split() -> None:
    pictures = list_arrow(DATASETS / "divided", None).pictures
    assert pictures.name(0) == f"{DATASETS / 'divided' / 'train'}, picture 0"
    assert pictures.name(29) == f"{DATASETS / 'divided' / 'test'}, picture 5"

"""A folder of `datasets` from a stranger: what it says of itself is checked before it is believed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shortcaps.data import load_dataset
from shortcaps.data.own.table import _in_order
from shortcaps.errors import DataError
from tests.data.test_tables import DATASETS

pyarrow = pytest.importorskip("pyarrow")
ARROW = "data-00000-of-00001.arrow"


def rewritten(folder: Path, change: Callable[[Any, dict[str, Any]], Any]) -> Path:
    """A copy of a folder with another table and another description of its columns."""
    shutil.copytree(DATASETS / "single", folder)
    table = pyarrow.ipc.open_stream((folder / ARROW).read_bytes()).read_all()
    described = json.loads(table.schema.metadata[b"huggingface"])
    table = change(table, described["info"]["features"])
    table = table.replace_schema_metadata({b"huggingface": json.dumps(described).encode()})
    with pyarrow.OSFile(str(folder / ARROW), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_dataset(folder, "train")
    return str(caught.value)


def features(**values: Any) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda table, described: (described.update(values), table)[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (features(label=7), "a column's description is no object"),
        (features(label={"_type": "ClassLabel", "names": 7}), "the names of the classes are 7, not a list of words"),
        (features(label={"_type": "ClassLabel", "names": [1, 2, 3]}), "not a list of words"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    tmp_path: Path, change: Callable[[Any, dict[str, Any]], Any], message: str
) -> None:
    assert message in refusal(rewritten(tmp_path / "x", change))


def test_splits_that_number_their_classes_otherwise_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATASETS / "divided", tmp_path / "x")
    file = tmp_path / "x" / "test" / ARROW
    whole = file.read_bytes()
    assert whole.count(b'"cat", "dog", "owl"') == 1
    file.write_bytes(whole.replace(b'"cat", "dog", "owl"', b'"owl", "dog", "cat"'))
    assert "the split test has the classes ['owl', 'dog', 'cat'], the others ['cat', 'dog', 'owl']" in refusal(
        tmp_path / "x"
    )


def test_pictures_without_label_or_group_are_refused(tmp_path: Path) -> None:
    def without(table: Any, described: dict[str, Any]) -> Any:
        described["label"] = {"_type": "Value", "dtype": "string"}
        labels = pyarrow.array([None, None, *("ab"[n % 2] for n in range(len(table) - 2))])
        return table.set_column(table.column_names.index("label"), "label", labels)

    assert "2 pictures have no label" in refusal(rewritten(tmp_path / "x", without))

    def ungrouped(table: Any, described: dict[str, Any]) -> Any:
        animals = pyarrow.array([None, *("ab"[n % 2] for n in range(len(table) - 1))])
        return table.set_column(table.column_names.index("animal"), "animal", animals)

    with pytest.raises(DataError, match="1 pictures have no animal, by which they are to be grouped"):
        load_dataset(rewritten(tmp_path / "y", ungrouped), "train", group_by="animal")


@pytest.mark.parametrize("text", ["[" * 5000, "{}", "[]", '{"_data_files": [7]}', '{"_data_files": []}'])
def test_a_damaged_state_is_refused(tmp_path: Path, text: str) -> None:
    shutil.copytree(DATASETS / "single", tmp_path / "x")
    (tmp_path / "x" / "state.json").write_text(text)
    assert "\n" not in refusal(tmp_path / "x")


@pytest.mark.parametrize("name", [b"animal", b"path"], ids=["of a column", "inside a column"])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, name: bytes) -> None:
    shutil.copytree(DATASETS / "single", tmp_path / "x")
    file = tmp_path / "x" / ARROW
    length = len(name).to_bytes(4, "little")
    whole = file.read_bytes()
    assert whole.count(length + name) == 1
    file.write_bytes(whole.replace(length + name, length + b"\xa0" + name[1:]))
    assert "cannot be read" in refusal(tmp_path / "x")


def test_a_value_that_lies_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    """Where the picture of a row ends is written in the file: a terabyte further on there is somebody else's memory."""
    shutil.copytree(DATASETS / "single", tmp_path / "x")
    file = tmp_path / "x" / ARROW
    whole = file.read_bytes()
    table = pyarrow.ipc.open_stream(whole).read_all()
    offsets = bytes(table.column("animal").chunk(0).buffers()[1])[: 4 * 31]
    assert whole.count(offsets) >= 1
    file.write_bytes(whole.replace(offsets, offsets[:-4] + (2**31 - 1).to_bytes(4, "little")))
    assert "cannot be read" in refusal(tmp_path / "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no pipes with names")
@pytest.mark.timeout(30)
def test_a_row_that_refers_to_a_pipe_or_a_device_is_a_broken_picture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def refer(table: Any, described: dict[str, Any]) -> Any:
        paths = [str(tmp_path / "pipe"), "/dev/zero", None] * 10
        rows = pyarrow.array([{"bytes": None, "path": path} for path in paths], table.schema.field("image").type)
        return table.set_column(table.schema.get_field_index("image"), "image", rows)

    assert "different" in (message := refusal(rewritten(tmp_path / "x", refer))) or "not a file" in message


def test_labels_of_thousands_of_digits_are_words() -> None:
    assert _in_order({"9" * 5000, "1"}) == ("1", "9" * 5000)

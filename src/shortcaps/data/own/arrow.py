"""A folder that the `datasets` library of Hugging Face has written with `save_to_disk`: Arrow files, which are mapped, not loaded."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from shortcaps.data.own.folder import SPLIT_FOLDERS
from shortcaps.data.own.pictures import Listing, Pictures
from shortcaps.data.own.table import check_splits
from shortcaps.errors import DataError
from shortcaps.files import read_json, sha256_of

_SPLIT_OF = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}
_MARKS = ("dataset_dict.json", "state.json")
"""Files by which such a folder is recognised: one of several splits, and one of a single split."""


def is_arrow_folder(root: Path) -> bool:
    """Whether a folder was written by `datasets`."""
    return any((root / mark).is_file() for mark in _MARKS)


def has_parquet(root: Path) -> bool:
    """Whether a folder holds Parquet files, as data sets are published on the Hugging Face hub."""
    return any(root.glob("*.parquet")) or any(root.glob("data/*.parquet"))


def refuse_parquet(root: Path, group_by: str | None) -> Listing:
    """Raise DataError: pictures in Parquet files can only be read a whole file at a time."""
    raise DataError(
        f'{root} holds Parquet files: rewrite it with `datasets.load_dataset("{root}").save_to_disk(…)` and give that folder'
    )


class ArrowPictures(Pictures):
    """Pictures in rows of Arrow tables.

    Args:
        files: The Arrow files, in the order of the rows.
        column: The column of pictures.
    """

    def __init__(self, files: list[Path], column: str) -> None:
        self.files, self.column = files, column
        self._rows = _open(files).column(column)

    def __getstate__(self) -> dict[str, Any]:
        # A worker maps the files itself.
        return {"files": self.files, "column": self.column}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["files"], state["column"])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, number: int) -> Path | BinaryIO:
        """The contents of a picture's file, or the file that a row refers to."""
        value = self._rows[number].as_py()
        if not isinstance(value, dict):
            raise DataError("the row has no picture")
        if isinstance(content := value.get("bytes"), bytes):
            return io.BytesIO(content)
        file = Path(str(value.get("path")))
        if not file.is_file():  # a pipe or a device might never end
            raise DataError(f"the row refers to {file}, which is not a file")
        return file

    @cached_property
    def _rows_by_folder(self) -> dict[Path, int]:
        """How many rows each split's folder has, in their order; needed only where a picture cannot be read."""
        rows = Counter[Path]()
        for file in self.files:
            rows[file.parent] += len(_open([file]))
        return dict(rows)

    def name(self, number: int) -> str:
        """The folder of its split, and the row in it, counted from 0."""
        for folder, rows in self._rows_by_folder.items():
            if number < rows:
                return f"{folder}, picture {number}"
            number -= rows
        raise IndexError(number)

    def sha256(self, number: int) -> bytes:
        """The digest of what is in a picture's file."""
        try:
            source = self.open(number)
        except DataError as error:
            raise OSError(str(error)) from error
        if isinstance(source, Path):
            return bytes.fromhex(sha256_of(source))
        return hashlib.sha256(source.read()).digest()


def list_arrow(root: Path, group_by: str | None) -> Listing:
    """The pictures in a folder that `datasets` has written.

    Args:
        root: The folder: of one split, or of several.
        group_by: The column that says what a picture shows.

    Raises:
        DataError: pyarrow is not installed, the files are damaged, or a column is missing.
    """
    parts = _parts(root)
    tables = {split: _open(files) for split, files in parts.items()}
    schema = next(iter(tables.values())).schema
    for split, table in tables.items():
        if table.schema.names != schema.names:
            raise DataError(
                f"{root}: the split {split} has other columns than the others: {', '.join(table.schema.names)}"
            )
    features = _features(schema)
    image = _column(root, features, "Image", "of pictures")
    label = _column(root, features, "ClassLabel", "of class labels", or_named="label")
    for split, table in tables.items():
        # A label is a number, which means what its own split says.
        ours, theirs = (described[label].get("names") for described in (features, _features(table.schema)))
        if ours != theirs:
            raise DataError(
                f"{root}: the split {split} has the classes {theirs!r:.80}, the others {ours!r:.80}: cast them to the same ClassLabel"
            )
    if group_by is not None and group_by not in schema.names:
        raise DataError(f"{root} has no column {group_by!r} to group by: it has {', '.join(schema.names)}")

    def values(column: str) -> list[Any]:
        return [value for table in tables.values() for value in table.column(column).to_pylist()]

    labels = values(label)
    if None in labels:
        raise DataError(f"{root}: {labels.count(None)} pictures have no label: give them one, or leave them out")
    named = features[label].get("names")
    if named and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise DataError(f"{root}: the names of the classes are {named!r:.60}, not a list of words")
    names = tuple(named or sorted({str(value) for value in labels}))
    if not named:
        number_of = {name: number for number, name in enumerate(names)}
        labels = [number_of[str(value)] for value in labels]
    strange = next((value for value in labels if not isinstance(value, int) or not 0 <= value < len(names)), None)
    if strange is not None:
        raise DataError(f"{root}: a picture has the label {strange}: expected 0 to {len(names) - 1}")
    groups = [] if group_by is None else values(group_by)
    if None in groups:
        raise DataError(f"{root}: {groups.count(None)} pictures have no {group_by}, by which they are to be grouped")
    splits = (
        [_SPLIT_OF[split] for split, table in tables.items() for _ in range(len(table))] if "" not in tables else []
    )
    if splits:
        check_splits(root, splits)
    return Listing(
        root,
        ArrowPictures([file for files in parts.values() for file in files], image),
        labels,
        names,
        splits,
        [str(value) for value in groups],
    )


def _parts(root: Path) -> dict[str, list[Path]]:
    """The Arrow files of each split; the split of a folder without several is called ''."""
    try:
        if (root / _MARKS[0]).is_file():
            names = [str(name) for name in read_json(root / _MARKS[0])["splits"]]
            unknown = [name for name in names if name not in _SPLIT_OF]
            if unknown:
                raise DataError(
                    f"{root} has a split {unknown[0]}: rename it, expected {', '.join(words[0] for words in SPLIT_FOLDERS.values())}"
                )
            return {name: _files(root / name) for name in names}
        return {"": _files(root)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{root} is damaged, or was not written by `save_to_disk`: {error}") from error


def _files(folder: Path) -> list[Path]:
    state = read_json(folder / _MARKS[1])
    # A name with folders in it would lead elsewhere.
    return [folder / Path(str(entry["filename"])).name for entry in state["_data_files"]]


def _open(files: list[Path]) -> Any:
    """All rows of some Arrow files, mapped into memory."""
    try:
        import pyarrow
    except ModuleNotFoundError as missing:
        raise DataError(
            "a folder of Hugging Face `datasets` needs pyarrow, which is not installed: pip install 'shortcaps[arrow]'"
        ) from missing
    try:
        table = pyarrow.concat_tables(
            [pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all() for file in files]
        )
        # Where a value begins and ends is taken from the file as it is: unchecked, it may lie outside of it.
        table.validate(full=True)
        for field in table.schema:
            _check_names(field)
        return table
    # ValueError: a name is not UTF-8.
    except (OSError, IndexError, ValueError, pyarrow.ArrowException) as error:
        place = files[0].parent if files else "a folder without Arrow files"
        raise DataError(f"{place} cannot be read: {' '.join(str(error).split())[:300]}") from error


def _check_names(field: Any) -> None:
    """Raise UnicodeDecodeError if the name of a field, or of one inside it, is not UTF-8."""
    _ = field.name
    for number in range(field.type.num_fields):
        _check_names(field.type.field(number))


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What `datasets` says of each column: `_type`, and the names of classes."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        features = {name: described[name] for name in schema.names}
        if not all(isinstance(feature, dict) for feature in features.values()):
            raise TypeError("a column's description is no object")
        return features
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"the columns {', '.join(schema.names)} are not described by `datasets`: {error}") from error


def _column(
    root: Path, features: Mapping[str, Mapping[str, Any]], kind: str, what: str, or_named: str | None = None
) -> str:
    """The first column of a kind, or of a name."""
    for name, feature in features.items():
        if feature.get("_type") == kind:
            return name
    if or_named in features:
        return str(or_named)
    shown = ", ".join(f"{name} ({feature.get('_type')})" for name, feature in features.items())
    raise DataError(f"{root} has no column {what} ({kind}): it has {shown}")

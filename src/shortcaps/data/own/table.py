"""A CSV file of paths and labels."""

from __future__ import annotations

import csv
from pathlib import Path

from shortcaps.data.own.folder import SPLIT_FOLDERS
from shortcaps.data.own.pictures import Files, Listing
from shortcaps.errors import DataError

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABELS = ("label", "class", "class_name", "category", "target")
SPLITS = ("split", "set", "subset")
_SPLIT_OF = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}


def is_table(path: Path) -> bool:
    """Whether a path is that of a table, by its name."""
    return path.suffix.lower() in (".csv", ".tsv")


def list_table(file: Path, group_by: str | None) -> Listing:
    """The pictures in a CSV file with a header: a column of paths, one of labels and perhaps one of splits.

    Args:
        file: The file. Paths in it are relative to its folder, or absolute; columns are separated by commas, semicolons or tabs.
        group_by: The column that says what a picture shows.

    Raises:
        DataError: It cannot be read, a column is missing, or a value makes no sense.
    """
    lines, columns = _read(file)
    rows = list(lines.values())
    path, label = _column(file, columns, PATHS, "of paths"), _column(file, columns, LABELS, "of labels")
    split = next((columns[name] for name in SPLITS if name in columns), None)
    group = None if group_by is None else columns.get(group_by.lower())
    if group_by is not None and group is None:
        raise DataError(f"{file} has no column {group_by!r} to group by: it has {', '.join(columns)}")
    for number, row in lines.items():
        if not row[path] or not row[label]:
            raise DataError(f"{file}, line {number}: the {'path' if not row[path] else 'label'} is missing")
        if "\0" in row[path]:
            raise DataError(f"{file}, line {number}: {row[path]!r} is no path")
        if split is not None and row[split].lower() not in _SPLIT_OF:
            raise DataError(f"{file}, line {number}: unknown split {row[split]!r}: use train, val or test")
    labels = {row[path]: row[label] for row in rows}
    for number, row in lines.items():
        if labels[row[path]] != row[label]:
            raise DataError(f"{file}, line {number}: {row[path]} has the labels {row[label]} and {labels[row[path]]}")
    names = _in_order({row[label] for row in rows})
    if len(names) < 2:
        raise DataError(f"{file} has {len(names)} classes: a classifier needs at least two")
    splits = [] if split is None else [_SPLIT_OF[row[split].lower()] for row in rows]
    if splits:
        check_splits(file, splits)
    number_of = {name: number for number, name in enumerate(names)}
    return Listing(
        file,
        Files(file.parent, [row[path] for row in rows]),
        [number_of[row[label]] for row in rows],
        names,
        splits,
        () if group is None else [row[group] for row in rows],
    )


def check_splits(origin: Path, splits: list[str]) -> None:
    """Raise DataError where pictures are divided into splits and those for training or test are missing."""
    for split in ("train", "test"):
        if split not in splits:
            raise DataError(f"{origin} says which pictures are in which split, and none is for {split}: add some")


def _read(file: Path) -> tuple[dict[int, list[str]], dict[str, int]]:
    """The rows below the header by the number of their (last) line, and the place of each column by its name in small letters."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a table: {error}") from error
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    try:
        reader = csv.reader(text.splitlines(), delimiter=separator)
        rows = {}
        for row in reader:
            if row:
                rows[reader.line_num] = [value.strip() for value in row]
    except csv.Error as error:
        raise DataError(f"{file} is not a CSV file: {error}") from error
    if len(rows) < 2:
        raise DataError(f"{file} has no rows: expected a header such as path,label and a row for each picture")
    names = rows.pop(next(iter(rows)))
    for number, row in rows.items():
        if len(row) != len(names):
            raise DataError(f"{file}, line {number} has {len(row)} columns: the header has {len(names)}")
    return rows, {name.lower(): place for place, name in enumerate(names)}


def _column(file: Path, columns: dict[str, int], names: tuple[str, ...], what: str) -> int:
    found = [columns[name] for name in names if name in columns]
    if not found:
        raise DataError(f"{file} has no column {what} ({', '.join(names)}): it has {', '.join(columns)}")
    return found[0]


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """Names of the classes: numbers by value, words by the alphabet."""
    numeric = all(label.isdecimal() and len(label) < 20 for label in labels)  # longer ones are no numbers of classes
    return tuple(sorted(labels, key=lambda label: (int(label), label) if numeric else (0, label)))

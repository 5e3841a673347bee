"""Class folders: `train/ val/ test/` with a folder for each class, or a single tree of class folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from shortcaps.data.decode import OTHER_SUFFIXES, SUFFIXES
from shortcaps.data.own.pictures import Files, Listing
from shortcaps.errors import DataError

SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_OF_THE_SYSTEM = ("thumbs.db", "desktop.ini")
"""Files that nobody has put there; like those whose names begin with a dot, they are not worth a word."""


def list_folder(root: Path, group_by: str | None) -> Listing:
    """The pictures in class folders.

    Args:
        root: The folder.
        group_by: A regular expression that finds in a picture's path, from its class folder on, what it shows: the whole match, or its
            first group.

    Raises:
        DataError: There are no classes, or one without pictures; the splits have other classes; a path does not match.
    """
    places = {split: place for split in SPLIT_FOLDERS if (place := find_split(root, split)) is not None}
    if "train" not in places:
        classes, left_out = _checked_classes(root)
        return _listing(root, {"": classes}, left_out, group_by)
    if "test" not in places:
        raise DataError(f"{root} has a train folder but none for test: add {root / SPLIT_FOLDERS['test'][0]}")
    left_out = _strays(root, [place for place in root.iterdir() if place not in places.values()])
    found = {}
    for split, place in places.items():
        found[split], more = _checked_classes(place)
        left_out += more
        if tuple(found[split]) != (names := tuple(found["train"])):
            raise DataError(
                f"{place} has the classes {', '.join(found[split])}, but {places['train']} has {', '.join(names)}"
            )
    return _listing(root, found, left_out, group_by)


def find_split(root: Path, split: str) -> Path | None:
    """The folder of a split, if this tree is divided into splits: it holds class folders itself."""
    for folder in sorted(root.iterdir()):
        if (
            folder.is_dir()
            and folder.name.lower() in SPLIT_FOLDERS[split]
            and any(f.is_dir() for f in folder.iterdir())
        ):
            return folder
    return None


def _checked_classes(root: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The pictures of each class folder, and what else is there.

    Raises:
        DataError: There are fewer than two classes, or one without pictures; a folder's name is not UTF-8, so that no report or web
            page could show it.
    """
    classes: dict[str, list[Path]] = {}
    entries = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    left_out = _strays(root, [path for path in entries if not path.is_dir()])
    for folder in (path for path in entries if path.is_dir()):
        shown = os.fsencode(folder.name).decode("utf-8", "backslashreplace")
        if shown != folder.name:
            raise DataError(f"{root} has a class folder whose name is not UTF-8 ({shown}): rename it")
        below = [path for path in sorted(folder.rglob("*")) if not _is_hidden(path, folder)]
        # A link that leads nowhere is a picture that cannot be read, and is named as such.
        files = [path for path in below if path.is_file() or (path.is_symlink() and not path.exists())]
        classes[folder.name] = [path for path in files if is_picture(path)]
        # A link may lead round in a circle, so none is followed.
        links = [path for path in below if path.is_symlink() and path.is_dir()]
        left_out += _strays(folder, [path for path in files if not is_picture(path)] + links)
    if not classes:
        raise DataError(f"{root} has no class folders: put the images of each class into a folder named after it")
    if len(classes) == 1:
        raise DataError(f"{root} has one class only ({next(iter(classes))}): a classifier needs at least two")
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise DataError(
            f"{root}: no images for {', '.join(empty)}: add some ({', '.join(sorted(SUFFIXES))}) or remove the folder"
        )
    return classes, left_out


def _is_hidden(path: Path, folder: Path) -> bool:
    """Whether the name of a path below a folder, or of a folder on the way to it, begins with a dot: thumbnails, caches and the like."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_picture(path: Path) -> bool:
    """Whether a file is meant to be a picture, by its name; it need not be one that can be read."""
    return not path.name.startswith(".") and path.suffix.lower() in (*SUFFIXES, *OTHER_SUFFIXES)


def _strays(folder: Path, paths: Iterable[Path]) -> list[str]:
    """A line about what is in a folder and is not used, if there is anything."""
    kinds = Counter(
        ("link to a folder" if path.is_symlink() else "folder") if path.is_dir() else path.suffix.lower() or path.name
        for path in paths
        if not path.name.startswith(".") and path.name.lower() not in _OF_THE_SYSTEM
    )
    if not kinds:
        return []
    return [f"{folder}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))]


def _listing(
    root: Path, by_split: dict[str, dict[str, list[Path]]], left_out: list[str], group_by: str | None
) -> Listing:
    class_names = tuple(next(iter(by_split.values())))
    chosen = [
        (split, label, file, file.relative_to(root).as_posix())
        for split, classes in by_split.items()
        for label, files in enumerate(classes.values())
        for file in files
    ]
    depth = 1 if "" in by_split else 2  # folders above the part of a path that a pattern is shown
    paths = [path for *_, path in chosen]
    groups = () if group_by is None else _groups([path.split("/", depth)[-1] for path in paths], group_by)
    return Listing(
        root,
        Files(root, paths),
        [label for _, label, *_ in chosen],
        class_names,
        splits=() if "" in by_split else [split for split, *_ in chosen],
        groups=groups,
        left_out=tuple(left_out),
        keeps_old_division=True,
    )


def _groups(paths: list[str], pattern: str) -> list[str]:
    """What each picture shows, found in its path."""
    try:
        found = [re.search(pattern, path) for path in paths]
    except re.error as error:
        raise DataError(f"group-by {pattern!r} is not a regular expression: {error}") from error
    unmatched = [path for path, match in zip(paths, found, strict=True) if match is None]
    if unmatched:
        raise DataError(
            f"group-by {pattern!r} is found in {len(paths) - len(unmatched)} of {len(paths)} paths, but not in {unmatched[0]}: "
            "choose a pattern that every path has"
        )
    return [match[1] or "" if match.re.groups else match[0] for match in found if match is not None]

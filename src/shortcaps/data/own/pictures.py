"""Where pictures of one's own are, and what is said of each: the common form of folders, tables and Arrow files."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shortcaps.data.own.index import FileIndex
from shortcaps.errors import DataError


class Pictures(ABC):
    """Pictures by number, not decoded yet."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of pictures."""

    @abstractmethod
    def open(self, number: int) -> Path | BinaryIO:
        """A picture's file, or the contents of one.

        Raises:
            DataError: There is neither.
        """

    @abstractmethod
    def name(self, number: int) -> str:
        """What a picture is called in messages."""

    @abstractmethod
    def sha256(self, number: int) -> bytes:
        """The digest of what is in a picture's file.

        Raises:
            OSError: It cannot be read.
        """

    def is_checked(self, number: int) -> bool:
        """Whether it is known, from an earlier start, that a picture can be decoded."""
        return False

    def mark_checked(self, number: int) -> None:  # noqa: B027  (not every kind remembers)
        """Remember that a picture can be decoded."""

    def remember(self) -> None:  # noqa: B027
        """Store for the next start what was found out about the pictures."""


class Files(Pictures):
    """Pictures in files of their own.

    Args:
        root: The folder that they are in, however deep.
        paths: Their paths below it, with slashes.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root, self.paths = root, paths
        self._index: FileIndex | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, number: int) -> Path:
        """A picture's file."""
        file = self.root / self.paths[number]
        if not file.is_file():  # a pipe would keep its reader waiting
            raise DataError("it is not a file" if file.exists() else "there is no such file")
        return file

    def name(self, number: int) -> str:
        """Its path."""
        return str(self.root / self.paths[number])

    def sha256(self, number: int) -> bytes:
        """The digest of what is in a picture's file."""
        return self.index.sha256(self.paths[number])

    def is_checked(self, number: int) -> bool:
        """Whether it is known that a picture can be decoded."""
        return self.index.is_checked(self.paths[number])

    def mark_checked(self, number: int) -> None:
        """Remember that a picture can be decoded."""
        self.index.mark_checked(self.paths[number])

    @property
    def index(self) -> FileIndex:
        """What is known of the files from earlier starts."""
        if self._index is None:
            self._index = FileIndex(self.root)
        return self._index

    def remember(self) -> None:
        """Store the digests for the next start, and free the memory that they take."""
        if self._index is not None:
            self._index.save()
        self._index = None


@dataclass(frozen=True)
class Listing:
    """Pictures with their classes, as their owner has arranged them.

    Attributes:
        root: The folder or file that they were listed from.
        pictures: The pictures.
        labels: For each picture the number of its class.
        class_names: Names of the classes.
        splits: For each picture `train`, `validation` or `test`; empty if the owner did not divide them.
        groups: For each picture what it shows, if that was asked for: pictures of one thing stay in one split.
        left_out: What is in the place but is no picture that can be read, one line for each kind of it.
        keeps_old_division: Whether a division of undivided pictures must be that of earlier versions.
    """

    root: Path
    pictures: Pictures
    labels: Sequence[int]
    class_names: tuple[str, ...]
    splits: Sequence[str] = ()
    groups: Sequence[str] = ()
    left_out: tuple[str, ...] = field(default=())
    keeps_old_division: bool = False


def digest_of(text: str) -> bytes:
    """The SHA-256 of a text, for groups."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()

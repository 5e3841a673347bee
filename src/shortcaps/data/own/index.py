"""What is known of the files in a folder from earlier starts: their SHA-256, and whether they can be decoded.

Only contents say whether pictures are still those that a run was started with: times change when a folder is copied, and names and sizes
may stay when a picture is replaced. But reading 100,000 photos at every start takes minutes. So digests are remembered in the cache
folder together with size and times of a file, as git does, and a file is read again when one of these has changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shortcaps.data.cache import cache_folder
from shortcaps.files import atomic_write, sha256_of

log = logging.getLogger(__name__)

SECONDS_BEFORE_TRUST = 2.0
"""A file that was changed more recently may be changed once more within the resolution of its times; it is not remembered."""


class Known(NamedTuple):
    """What is known of a file."""

    size: int
    modified: int
    changed: int
    sha256: str
    is_checked: bool

    def fits(self, other: Known) -> bool:
        """Whether the file has been left alone in between."""
        return self[:3] == other[:3]


class FileIndex:
    """What is known of the files in a folder.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        name = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self.file = cache_folder() / "own-images" / f"{name}.jsonl"
        self._known: dict[str, Known] = {}
        self._is_changed = False
        # An index that is missing or damaged is made anew.
        with suppress(OSError, ValueError, TypeError), self.file.open(encoding="utf-8") as lines:
            for line in lines:
                path, *values = json.loads(line)
                self._known[path] = Known(*values)

    def sha256(self, path: str) -> bytes:
        """The digest of what is in a file.

        Args:
            path: Below the root, with slashes.

        Raises:
            OSError: The file cannot be read.
        """
        found = self._stat(path)
        known = self._known.get(path)
        if known is None or not known.fits(found):
            known = found._replace(sha256=sha256_of(self.root / path))
            self._known[path], self._is_changed = known, True
        return bytes.fromhex(known.sha256)

    def is_checked(self, path: str) -> bool:
        """Whether the file, unchanged since, was decoded before."""
        known = self._known.get(path)
        return known is not None and known.is_checked

    def mark_checked(self, path: str) -> None:
        """Remember that the file, whose digest was asked for, can be decoded."""
        known = self._known.get(path)
        if known is not None and not known.is_checked:
            self._known[path], self._is_changed = known._replace(is_checked=True), True

    def save(self) -> None:
        """Write what has been found out to the cache folder, if it can be written to."""
        if not self._is_changed:
            return
        trusted = (time.time() - SECONDS_BEFORE_TRUST) * 1e9
        try:
            with atomic_write(self.file) as file:
                for path, known in self._known.items():
                    if max(known.modified, known.changed) < trusted:
                        file.write(json.dumps([path, *known]).encode() + b"\n")
        except OSError as error:
            log.info("what is known of the pictures in %s could not be stored: %s", self.root, error)
        self._is_changed = False

    def _stat(self, path: str) -> Known:
        found = (self.root / path).stat()
        return Known(found.st_size, found.st_mtime_ns, found.st_ctime_ns, "", False)

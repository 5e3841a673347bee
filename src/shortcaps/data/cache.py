"""The cache folder: its location, locks on it, and checksums of its files."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shortcaps.errors import DataError
from shortcaps.files import atomic_write, open_file, remove_leftovers, sha256_of

_ENVIRONMENT_VARIABLE = "SHORTCAPS_CACHE"


def cache_folder() -> Path:
    """Where data sets are kept: $SHORTCAPS_CACHE, or the platform's cache folder."""
    if chosen := os.environ.get(_ENVIRONMENT_VARIABLE):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "shortcaps"


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Lock a folder: other processes that want to fill it wait, and then find it filled.

    A folder that cannot be written to (a read-only disk, another user's cache) is read without a lock.

    Raises:
        DataError: filelock is not installed.
    """
    try:
        from filelock import FileLock
    except ModuleNotFoundError as missing:
        raise DataError("the cache needs filelock, which is not installed: pip install 'shortcaps[data]'") from missing
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    remove_leftovers(folder)
    try:
        yield
    finally:
        lock.release()  # does nothing where it was not acquired


def write_checksum(file: Path) -> None:
    """Store the SHA-256 of a file next to it, for files that have no published one."""
    with atomic_write(_checksum_file(file)) as note:
        note.write(sha256_of(file).encode())


def fits_checksum(file: Path) -> bool:
    """Whether the file is still what was written."""
    try:
        return sha256_of(file).encode() == _checksum_file(file).read_bytes()
    except OSError:
        return False


def read_checked(file: Path) -> bytes | None:
    """What is in the file, or None where it is missing or no longer what was written."""
    try:
        with open_file(file) as stream:
            data = stream.read()
        return data if hashlib.sha256(data).hexdigest().encode() == _checksum_file(file).read_bytes() else None
    except OSError:
        return None


def has_checksum(file: Path) -> bool:
    """Whether a checksum was stored, whether or not the file still matches it."""
    return _checksum_file(file).exists()


def _checksum_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")

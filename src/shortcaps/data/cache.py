"""The cache folder: where it is, who may fill it, and whether what lies in it is still what was put there."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shortcaps.errors import DataError
from shortcaps.files import atomic_write, sha256_of

ENVIRONMENT_VARIABLE = "SHORTCAPS_CACHE"


def cache_folder() -> Path:
    """Where data sets are kept: $SHORTCAPS_CACHE, or the platform's place for such things."""
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
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
    """Others that want to fill the same folder wait here, and then find it filled.

    A folder that cannot be written to (a read-only disk, somebody else's cache) can be read without waiting for anybody.
    """
    try:
        from filelock import FileLock
    except ModuleNotFoundError as missing:
        raise DataError(
            "keeping data sets needs filelock, which is not installed: pip install 'shortcaps[data]'"
        ) from missing
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    try:
        yield
    finally:
        lock.release()  # does nothing where it was not acquired


def write_checksum(file: Path) -> None:
    """Remembers a file's SHA-256 beside it, for files that nobody has published one of."""
    with atomic_write(_checksum_file(file)) as note:
        note.write(sha256_of(file).encode())


def fits_checksum(file: Path) -> bool:
    """Whether the file is still what was written."""
    try:
        return sha256_of(file) == _checksum_file(file).read_text()
    except OSError:
        return False


def read_checked(file: Path) -> bytes | None:
    """What is in the file, or None where it is missing or no longer what was written."""
    try:
        data = file.read_bytes()
        return data if hashlib.sha256(data).hexdigest() == _checksum_file(file).read_text() else None
    except OSError:
        return None


def has_checksum(file: Path) -> bool:
    """Whether a checksum was remembered, be the file still what it was or not."""
    return _checksum_file(file).exists()


def _checksum_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")

"""Files that are written whole or not at all, and JSON that every parser can read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows, where a file that a process has open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

_MAX_JSON_BYTES = 16 * 2**20
_MAX_JSON_DEPTH = 50
_SECONDS_BEFORE_REMOVAL = 60.0
"""Longer than a writer takes between creating a file and locking it, or between its last byte and giving the file its name."""
_SECONDS_WITHOUT_LOCKS = 24 * 3600.0
"""On file systems without locks nobody can say whether a writer is alive; after a day it is not."""


@contextmanager
def atomic_write(target: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only once it is complete.

    Args:
        target: Path of the file; missing folders are created.

    Yields:
        A stream of bytes to write to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            _try_lock(handle)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):  # what went wrong first is the error to report
            Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Let the names in a folder survive a loss of power, as `fsync` does for what is in a file."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Some file systems have no such thing, and a folder may be for writing only: the file itself is there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF):
            raise


def open_file(file: Path) -> io.BufferedReader:
    """Open a file that belongs to a run, a record or the cache, for reading.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe or a device, which might keep its reader waiting for ever.
    """
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def remove_leftovers(folder: Path, *, is_claimed: bool = False) -> None:
    """Remove what killed processes left of files that `atomic_write` had begun in a folder; those of living ones stay.

    What cannot be removed, as the folder belongs to somebody else, stays too.

    Args:
        folder: Where to look.
        is_claimed: Whether nobody but the caller writes there, so that a file need not have been idle for a while.
    """
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            idle = time.time() - part.stat().st_mtime
            with open_file(part) as file:
                is_abandoned = _try_lock(file.fileno())
            patience = _SECONDS_BEFORE_REMOVAL if is_abandoned else _SECONDS_WITHOUT_LOCKS
            if is_claimed or (is_abandoned is not False and idle > patience):
                part.unlink()


def _try_lock(handle: int) -> bool | None:
    """Lock an open file until it is closed, or its process ends.

    Returns:
        Whether it was free; None on file systems without locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def to_json(content: object, *, indent: int | None = 2) -> str:
    """`content` as JSON, in which a number that is not finite is `null`: JSON has no NaN and no Infinity."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def write_json(target: Path, content: object) -> None:
    """Write `content` as indented JSON (see `to_json`), whole or not at all."""
    with atomic_write(target) as file:
        file.write((to_json(content) + "\n").encode())


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not JSON (NaN and numbers beyond the range of a float are not), or far too large or too deeply nested.
    """
    with open_file(file) as stream:
        data = stream.read(_MAX_JSON_BYTES + 1)
    if len(data) > _MAX_JSON_BYTES:
        raise ValueError(f"it has more than {_MAX_JSON_BYTES:,} bytes")
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(content)
    return content


def _check_depth(content: Any) -> None:
    """Raise ValueError for what a parser can read, and everything that goes through it step by step cannot."""
    level = [content]
    for _ in range(_MAX_JSON_DEPTH):
        containers = [value for value in level if isinstance(value, dict | list)]
        level = [inner for value in containers for inner in (value.values() if isinstance(value, dict) else value)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

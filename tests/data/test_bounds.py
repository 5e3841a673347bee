"""A source can neither hang, nor fill the memory, nor pass off another file as the published one."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from shortcaps import progress
from shortcaps.data import affnist, cache_folder, download, fetch, smallnorb
from shortcaps.data.download import SourceFailed
from shortcaps.data.fetch import Archive, Folder, Mirror, WantedFile
from shortcaps.errors import DataError
from tests.data.fakes import web_server


@contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """A server that sends this at once, and then a byte every twentieth of a second, for ever."""
    stop = threading.Event()

    def drip(client: socket.socket) -> None:
        with client:
            try:
                client.sendall(first)
                while not stop.wait(0.05):
                    client.sendall(b"x")
            except OSError:
                pass

    def accept() -> None:
        while not stop.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Drip: "]
)
def test_a_mirror_that_drips_gives_way(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WINDOW_SECONDS", 0.3)
    begun = time.monotonic()
    with dripping(first) as address, pytest.raises(SourceFailed, match=r"is too slow: \d+ bytes in 0.3 seconds"):
        Mirror(address).read(WantedFile("file"))
    assert time.monotonic() - begun < 20


def test_a_long_download_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.3)
    monkeypatch.setattr(download, "WINDOW_SECONDS", 0.4)
    monkeypatch.setattr(download, "MIN_BYTES_PER_WINDOW", 1)
    monkeypatch.setattr(download, "DEADLINE_SECONDS", 1.5)
    caplog.set_level("INFO")
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + bytes(1_000_000)
    with dripping(begin) as address, pytest.raises(SourceFailed, match="took more than"):
        Mirror(address).read(WantedFile("file"))
    assert re.fullmatch(r"file\.gz: 1\.0 of 2\.0 MB, about \d+ s left", caplog.messages[0])


def test_a_download_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DEADLINE_SECONDS", 0.3)
    monkeypatch.setattr(download, "WINDOW_SECONDS", 0.2)
    monkeypatch.setattr(download, "MIN_BYTES_PER_WINDOW", 1)
    with (
        dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") as address,
        pytest.raises(SourceFailed, match=r"took more than 0.3 seconds"),
    ):
        Mirror(address).read(WantedFile("file"))


def test_more_than_was_asked_for_is_refused() -> None:
    content = bytes(200_000)
    with (
        web_server({"file.gz": content}) as address,
        pytest.raises(SourceFailed, match="more than the 65,546 expected"),
    ):
        Mirror(address).read(WantedFile("file", max_bytes=10))
    with (
        dripping(b"HTTP/1.1 200 OK\r\n\r\n" + content) as address,
        pytest.raises(SourceFailed, match="sends more than"),
    ):
        Mirror(address).read(WantedFile("file", max_bytes=10))


def test_a_file_unpacks_to_what_is_expected_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.gz").write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(SourceFailed, match="unpacks to more than 999,999 bytes"):
        Folder(tmp_path).read(WantedFile("file", max_bytes=999_999))
    assert len(Folder(tmp_path).read(WantedFile("file", max_bytes=1_000_000))) == 1_000_000
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as written:
        for name, size in (("x/huge", 1_000_000), ("x/file", 10)):
            entry = tarfile.TarInfo(name)
            entry.size = size
            written.addfile(entry, io.BytesIO(bytes(size)))
    with web_server({"a.tar.gz": archive.getvalue()}) as address:
        assert Archive(f"{address}/a.tar.gz", "x").read(WantedFile("file")) == bytes(10)
        monkeypatch.setattr(fetch, "MAX_BYTES", 500_000)
        with pytest.raises(SourceFailed, match="is damaged: it unpacks to more than 500,000 bytes"):
            Archive(f"{address}/a.tar.gz", "x").read(WantedFile("file"))


def test_holes_in_an_archive_are_not_filled() -> None:
    """Two kilobytes that would be read as a terabyte of zeros."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as written:
        entry = tarfile.TarInfo("x/file")
        entry.size = 512
        entry.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "x/file",
            "GNU.sparse.realsize": str(2**40),
        }
        written.addfile(entry, io.BytesIO(f"1\n{2**40 - 1}\n1\n".encode().ljust(512, b"\0")))
    with web_server({"a.tar": archive.getvalue()}) as address, pytest.raises(SourceFailed, match="sparse"):
        Archive(f"{address}/a.tar", "x").read(WantedFile("file"))


def test_a_file_of_an_archive_is_no_larger_than_it_should_be() -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as written:
        entry = tarfile.TarInfo("x/file")
        entry.size = 11
        written.addfile(entry, io.BytesIO(bytes(11)))
    with web_server({"a.tar": archive.getvalue()}) as address, pytest.raises(SourceFailed, match="has 11 bytes"):
        Archive(f"{address}/a.tar", "x").read(WantedFile("file", max_bytes=10))


def test_where_only_the_packed_file_has_a_checksum_a_mirror_must_have_that() -> None:
    content = b"the published matrix"
    packed = gzip.compress(content)
    wanted = WantedFile("file.mat", packed_sha256=hashlib.sha256(packed).hexdigest())
    with web_server({"file.mat.gz": content}) as address, pytest.raises(SourceFailed, match="is not packed, and only"):
        Mirror(address).read(wanted)
    with web_server({"file.mat.gz": packed}) as address:
        assert Mirror(address).read(wanted) == content
    assert all(w.packed_sha256 and w.max_bytes < 2**29 for part in smallnorb.FILES.values() for w in part.values())


def affnist_zip(count: int = 4) -> bytes:
    matlab, archive = io.BytesIO(), io.BytesIO()
    record = {"image": np.zeros((1600, count), np.uint8), "label_int": (np.arange(count) % 10).astype(np.uint8)[None]}
    scipy.io.savemat(matlab, {"affNISTdata": record}, do_compression=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("test.mat", matlab.getvalue())
    return archive.getvalue()


def test_a_damaged_affnist_in_the_cache_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    cached = cache_folder() / "affnist" / "test.mat.zip"
    whole = affnist_zip()
    with web_server({"test.mat.zip": whole}) as address:
        monkeypatch.setattr(affnist, "MIRROR", Mirror(address, suffix=".zip"))
        assert affnist.read_published("test", None) is not None
        cached.write_bytes(whole[:-50])
        found = affnist.read_published("test", None)
    assert found is not None
    assert torch.equal(found[1], torch.arange(4))
    assert cached.read_bytes() == whole
    assert "test.mat.zip is damaged: fetching it again" in said.messages[0]
    cached.write_bytes(whole[:-50])
    with pytest.raises(DataError, match=r"could not be fetched again .*: delete .*test.mat.zip to use"):
        affnist.read_published("test", None)


def test_affnist_unpacks_to_no_more_than_the_published_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = affnist_zip(200)
    (tmp_path / "test.mat.zip").write_bytes(whole)
    assert affnist_labels(tmp_path) == 200
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        (tmp_path / "test.mat").write_bytes(archive.read("test.mat"))
    monkeypatch.setattr(affnist, "_MAX_BYTES", 10_000)
    with pytest.raises(DataError, match="it unpacks to more than 10,000 bytes"):
        affnist_labels(tmp_path)
    (tmp_path / "test.mat").unlink()
    monkeypatch.setattr(affnist, "_MAX_BYTES", 100)
    with pytest.raises(DataError, match=r"unpacks to .* bytes, more than the 100 expected"):
        affnist_labels(tmp_path)


def affnist_labels(folder: Path) -> int:
    found = affnist.read_published("test", folder)
    assert found is not None
    return len(found[1])

"""Small data sets in the published formats, and sources that misbehave."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shortcaps.data import DATASETS, affnist, cifar10, fashion_mnist, idx, mnist
from shortcaps.data.fetch import Folder, WantedFile
from shortcaps.data.solids import sets
from shortcaps.data.solids.shapes import Part, part
from shortcaps.data.solids.views import Views

TRAIN, TEST, VALIDATION = 120, 40, 30


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file of bytes, written from its description: two zeros, type 8, dimensions, sizes big-endian, data."""
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(struct.pack(">i", n) for n in array.shape) + array.tobytes()


def fake_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Different strokes on black, ten classes."""
    random = np.random.default_rng(seed)
    images = np.zeros((count, 28, 28), np.uint8)
    images[:, 6:22, 8:20] = random.integers(0, 256, (count, 16, 12))
    return images, (np.arange(count) % 10).astype(np.uint8)


def fake_files() -> dict[str, bytes]:
    train, test = fake_digits(TRAIN, 1), fake_digits(TEST, 2)
    return {
        "train-images-idx3-ubyte": idx_bytes(train[0]),
        "train-labels-idx1-ubyte": idx_bytes(train[1]),
        "t10k-images-idx3-ubyte": idx_bytes(test[0]),
        "t10k-labels-idx1-ubyte": idx_bytes(test[1]),
    }


def fake_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> idx.IdxSet:
    """Puts a small set in MNIST's place, and in Fashion-MNIST's."""
    files = fake_files()
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    wanted = {
        kind: WantedFile(file.name, hashlib.sha256(files[file.name]).hexdigest())
        for kind, file in mnist.MNIST.files.items()
    }
    small = idx.IdxSet("mnist", "MNIST", tuple("0123456789"), wanted, (Folder(folder),))
    monkeypatch.setattr(idx, "VALIDATION_IMAGES", VALIDATION)
    for module in (mnist, affnist):
        monkeypatch.setattr(module, "MNIST", small)
    fashion = replace(fashion_mnist.FASHION_MNIST, files=wanted, sources=small.sources)
    monkeypatch.setattr(fashion_mnist, "FASHION_MNIST", fashion)
    return small


def fake_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a small set in CIFAR-10's place: five files of 20 images to learn from and one to test on."""
    random = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)

    def wanted(name: str) -> WantedFile:
        rows = random.integers(0, 256, (20, 3073), np.uint8)
        rows[:, 0] = np.arange(20) % 10
        (folder / name).write_bytes(rows.tobytes())
        return WantedFile(name, hashlib.sha256(rows.tobytes()).hexdigest())

    monkeypatch.setattr(cifar10, "TRAINING_FILES", tuple(wanted(f"data_batch_{n}.bin") for n in range(1, 6)))
    monkeypatch.setattr(cifar10, "TEST_FILE", wanted("test_batch.bin"))
    monkeypatch.setattr(cifar10, "SOURCES", (Folder(folder),))
    monkeypatch.setattr(cifar10, "VALIDATION_IMAGES", 10)


def forget_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers from here on is gone after it."""
    for entries in ("_parts", "_places", "_plugins"):
        monkeypatch.setattr(DATASETS, entries, dict(getattr(DATASETS, entries)))


@contextmanager
def web_server(files: dict[str, bytes], *, silent: bool = False, cut: int | None = None) -> Iterator[str]:
    """Serves files on this machine. `silent`: accepts and never answers; `cut`: breaks off after so many bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if silent:
                time.sleep(3)
                return
            data = files.get(self.path.lstrip("/"))
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:cut])

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()}


def content_hashes(images: object) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest() for image in images.numpy()]


def few_solids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered sets with two instances of each category to train on (one of them to validate) and one to test on, all of them boxes."""

    def box(u: Callable[[float, float], float]) -> list[Part]:
        return [part("box", (u(0.2, 1), u(0.2, 1), u(0.2, 1)), (0, 0, 0), 0.5)]

    def views(random: np.random.Generator) -> Views:
        places = np.array([[0, 0], [0, 5], [8, 0], [8, 5]])
        return Views(places, np.zeros((4, 1), np.int64))

    for name in ("SOLIDS", "SOLIDS_SMALL"):
        few = {"training": (4, 9), "validation": (9,), "testing": (0,), "families": (box,) * 5, "views": views}
        monkeypatch.setattr(sets, name, replace(getattr(sets, name), **few))

"""A server in a process of its own, as a user starts it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from tests.inference.test_predict import draw

RUN = "mnist-baseline-fuzzy"


@contextmanager
def serving(*options: str, run: str = RUN) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a running server, and its process."""
    command = [sys.executable, "-m", "shortcaps", "serve", run, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, "a server says where it listens"
            yield found[0], process
        finally:
            process.terminate()


def png(size: int = 28, colour: int = 0, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("L", (size, size), colour).save(stream, kind)
    return stream.getvalue()


def one() -> bytes:
    """A drawn one, as PNG."""
    stream = io.BytesIO()
    draw().save(stream, "PNG")
    return stream.getvalue()

"""Downloads that end: with the file, or with an error, but never later than a deadline nor with more than was asked for."""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request

from shortcaps.progress import Pace

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
"""How long to wait for a source to answer, and for each next part of its answer."""
DEADLINE_SECONDS = 3600.0
"""How long a file may take in all."""
WINDOW_SECONDS = 30.0
MIN_BYTES_PER_WINDOW = 300_000
"""A source that sends less in this time, 10 kB a second, gives way to the next."""
_CHUNK = 2**16


class SourceFailed(Exception):
    """The source does not have the file, or does not answer."""


class _Download(threading.Thread):
    """Reads an answer.

    In a thread, since a server can hold up the look-up of its name, its headers and each line of them for ever without any
    time-out of a socket. Who asked stops waiting, and the thread ends with its socket, or with the process.
    """

    def __init__(self, url: str, max_bytes: int) -> None:
        super().__init__(daemon=True)
        self.url, self.max_bytes = url, max_bytes
        self.data = bytearray()
        self.expected: int | None = None
        self.failure: str | None = None
        self.is_wanted = True

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.url, timeout=TIMEOUT_SECONDS) as answer:
                declared = answer.headers.get("Content-Length")
                self.expected = int(declared) if declared is not None else None
                if self.expected is not None and self.expected > self.max_bytes:
                    self.failure = f"{self.url} has {self.expected:,} bytes, more than the {self.max_bytes:,} expected"
                    return
                # read1 gives what has arrived, where read would wait for the whole chunk.
                while self.is_wanted and (part := answer.read1(_CHUNK)):
                    self.data += part
                    if len(self.data) > self.max_bytes:
                        self.failure = f"{self.url} sends more than the {self.max_bytes:,} bytes expected"
                        return
            if self.expected is not None and len(self.data) != self.expected:
                self.failure = f"{self.url} was cut off after {len(self.data)} of {self.expected} bytes"
        # http.client raises its own family besides URLError and OSError, e.g. IncompleteRead.
        except Exception as error:
            self.failure = f"{self.url}: {getattr(error, 'reason', error)}"


def download(url: str, max_bytes: int) -> bytes:
    """What a web server gives for an address.

    Args:
        url: The address.
        max_bytes: The answer is refused if it is longer.

    Raises:
        SourceFailed: There is none, it is too long, or it comes too slowly.
    """
    reader = _Download(url, max_bytes)
    begun = window = time.monotonic()
    before, pace = 0, Pace()
    reader.start()
    try:
        while reader.is_alive():
            reader.join(min(1.0, WINDOW_SECONDS / 4))
            now = time.monotonic()
            if now - begun > DEADLINE_SECONDS:
                raise SourceFailed(f"{url} took more than {DEADLINE_SECONDS:g} seconds")
            if now - window > WINDOW_SECONDS:
                received = len(reader.data) - before
                if received < MIN_BYTES_PER_WINDOW and reader.is_alive():
                    raise SourceFailed(f"{url} is too slow: {received:,} bytes in {WINDOW_SECONDS:g} seconds")
                window, before = now, len(reader.data)
            if reader.expected is not None and (left := pace.left(len(reader.data), reader.expected)) is not None:
                megabytes = (f"{count / 1e6:,.1f}" for count in (len(reader.data), reader.expected))
                log.info("%s: %s of %s MB, %s", url.rpartition("/")[2], *megabytes, left)
    finally:
        reader.is_wanted = False
    if reader.failure is not None:
        raise SourceFailed(reader.failure)
    return bytes(reader.data)

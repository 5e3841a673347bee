"""A client of the server that `shortcaps serve` starts: pictures in, answers out, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from shortcaps.errors import ShortcapsError
from shortcaps.serve.limits import Limits

Picture = str | Path | bytes | BinaryIO
"""A file, the contents of one (PNG, JPEG or WebP), or something to read them from."""
BODY_MARGIN = 0.9
"""Of the bytes that a server takes, what pictures may be; the rest is for the form around them."""


class ServerError(ShortcapsError):
    """What the server said instead of an answer, or that it said nothing.

    Attributes:
        status: The HTTP status, or None where there was no answer at all.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What the network says of a picture, or why it says nothing.

    Attributes:
        answer: The class with the largest probability; None where there is a problem.
        probabilities: By class; they sum to 1.
        activations: Of the class capsules, each in 0–1 by itself.
        details: Where they were asked for: `pose`, `maps` and `image`, as the server's API describes them.
        problem: Why there is no answer, or None.
    """

    answer: str | None
    probabilities: dict[str, float] = field(default_factory=dict)
    activations: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Answer:
        """From what the server sends for a picture."""
        if "error" in values:
            return cls(None, problem=str(values["error"]))
        details = {name: values[name] for name in ("pose", "maps", "image") if values.get(name) is not None}
        return cls(values["answer"], values["probabilities"], values["activations"], details)


@dataclass(frozen=True)
class Client:
    """Asks a server about pictures. Every request has a connection of its own, so that threads may share a client.

    Args:
        address: Of the server, `http://…` or `https://…`.
        token: What the server's `--token-file` holds, if it was started with one.
        timeout: Seconds for a request, including the pauses after which a busy server (503) is asked again.

    Raises:
        ValueError: The address is none, or the time is not more than 0.
    """

    address: str = "http://127.0.0.1:8000"
    token: str | None = field(default=None, repr=False)
    timeout: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"address {self.address!r} must be like http://127.0.0.1:8000")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, and is {self.timeout!r}")

    def predict(self, picture: Picture, *, details: bool = False, **how: float | bool) -> Answer:
        """What the network says of a picture.

        Args:
            picture: A file, its contents, or something to read them from.
            details: Whether pose, routing maps and the image as the network sees it are wanted.
            **how: `rotation`, `scale`, `shear`, `shift_x`, `shift_y` and `invert`, as the server's API describes them.

        Raises:
            ServerError: The server refuses it, says nothing, or is not there.
            OSError: The file cannot be read.
        """
        query = {**how, **({"details": True} if details else {})}
        return self._post("/predict", [_content(picture)], query)[0]

    def predict_many(self, pictures: Iterable[Picture], **how: float | bool) -> Iterator[Answer]:
        """What the network says of pictures, in as few requests as the server's limits allow.

        Args:
            pictures: As in `predict`. No more of them are read than go into a request.
            **how: As in `predict`.

        Yields:
            An answer for each, in their order; where a picture cannot be used, `problem` says why.

        Raises:
            ServerError: The server refuses a request, says nothing, or is not there.
            OSError: A file cannot be read.
        """
        most = Limits.pictures
        for portion in _portions(map(_content, pictures)):
            waiting = [portion]
            while waiting:
                contents = waiting.pop()
                if len(contents) > most:
                    waiting += [contents[most:], contents[:most]]
                    continue
                try:
                    yield from self._post("/predict/batch", contents, how)
                except ServerError as error:
                    if error.status != 413:
                        raise
                    if len(contents) == 1:
                        yield Answer(None, problem=str(error))
                        continue
                    most = (len(contents) + 1) // 2  # the server takes less than servers do by default
                    waiting.append(contents)

    def is_ready(self) -> bool:
        """Whether the server is there and takes questions."""
        try:
            return self._ask("GET", "/readyz", b"", {}, time.monotonic() + self.timeout)[0] == 200
        except ServerError:
            return False

    def _post(self, path: str, contents: list[bytes], query: dict[str, Any]) -> list[Answer]:
        boundary = secrets.token_hex(16)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="picture"\r\n\r\n'.encode()
        body = b"".join(head + content + b"\r\n" for content in contents) + f"--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        target = path + ("?" + urlencode({name: _as_text(value) for name, value in query.items()}) if query else "")
        until = time.monotonic() + self.timeout
        while True:
            status, pause, content = self._ask("POST", target, body, headers, until)
            # A server that is full says when to come back.
            if status != 503 or time.monotonic() + pause >= until:
                break
            time.sleep(pause)
        try:
            values = json.loads(content)
            if status == 200:
                return [Answer.of(one) for one in values.get("answers", [values])]
            problem = values["error"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerError(f"{self.address} answers {status} with what is not shortcaps' JSON", status) from error
        raise ServerError(f"{self.address} answers {status}: {problem}", status)

    def _ask(
        self, verb: str, target: str, body: bytes, headers: dict[str, str], until: float
    ) -> tuple[int, float, bytes]:
        """Status, seconds after which to come back, and content of an answer."""
        parts = urlsplit(self.address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=max(0.001, until - time.monotonic()))
        if self.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self.token}"}
        too_late = ServerError(f"{self.address} did not answer within {self.timeout:g} seconds")
        try:
            connection.connect()
            # The socket's own limit begins anew with every byte that comes.
            with _hanging_up(connection.sock, until):
                connection.request(verb, parts.path.rstrip("/") + target, body, headers)
                with connection.getresponse() as response:
                    pause = response.headers.get("Retry-After", "")
                    found = response.status, float(pause) if pause.isdigit() else 1.0, response.read()
            if time.monotonic() >= until:
                raise too_late
            return found
        except TimeoutError as error:
            raise too_late from error
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= until:
                raise too_late from error
            reason = str(error) or type(error).__name__
            raise ServerError(f"{self.address} cannot be asked ({reason}): is the server running there?") from error
        finally:
            connection.close()


@contextmanager
def _hanging_up(connection: socket.socket, until: float) -> Iterator[None]:
    """Within, the connection is shut down when the time has come, whatever is going on."""

    def hang_up() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.001, until - time.monotonic()), hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _content(picture: Picture) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, str | Path):
        return Path(picture).read_bytes()
    return picture.read()


def _as_text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _portions(contents: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many at a time as a request may have, in number and in bytes."""
    portion: list[bytes] = []
    for content in contents:
        is_full = len(portion) >= Limits.pictures
        if is_full or (portion and sum(map(len, portion)) + len(content) > BODY_MARGIN * Limits.body_bytes):
            yield portion
            portion = []
        portion.append(content)
    if portion:
        yield portion

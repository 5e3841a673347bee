"""The client: answers as the server gives them, and one clear line for whatever goes wrong."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shortcaps.client import Answer, Client, ServerError, _portions
from shortcaps.serve import Limits
from tests.serve.support import one, png, serving

TOKEN = "a-word-of-sixteen-letters"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("secrets") / "token"
    file.write_text(TOKEN)
    with serving("--token-file", str(file)) as (address, _):
        yield address


def test_a_picture_may_be_a_file_its_contents_or_a_stream(address: str, tmp_path: Path) -> None:
    client = Client(address, token=TOKEN)
    file = tmp_path / "one.png"
    file.write_bytes(one())
    answers = [client.predict(picture) for picture in (file, str(file), one(), io.BytesIO(one()))]
    assert {answer.answer for answer in answers} == {"1"}
    assert sum(answers[0].probabilities.values()) == pytest.approx(1)
    assert answers[0].details == {}
    turned = client.predict(file, rotation=90, invert=False, details=True)
    assert turned.probabilities != answers[0].probabilities
    assert set(turned.details) == {"pose", "maps", "image"}
    assert client.is_ready()


def test_many_pictures_are_answered_in_order_whatever_is_among_them(address: str) -> None:
    pictures = [one() if number % 3 else b"no picture" for number in range(Limits.pictures + 3)]
    answers = list(Client(address, token=TOKEN).predict_many(pictures))
    assert [answer.answer for answer in answers] == ["1" if number % 3 else None for number in range(len(pictures))]
    assert answers[0].problem == "the picture is not an image in PNG, JPEG, WEBP"
    assert list(Client(address, token=TOKEN).predict_many([])) == []


def test_requests_are_filled_up_to_the_limits_of_the_server() -> None:
    many = [b"x"] * (Limits.pictures + 1)
    assert [len(portion) for portion in _portions(many)] == [Limits.pictures, 1]
    large = [bytes(3_000_000)] * 3
    assert [len(portion) for portion in _portions(large)] == [2, 1]


def test_what_the_server_refuses_is_said_in_its_words_with_the_status(address: str) -> None:
    for token in (None, "a-wrong-word-of-letters"):
        with pytest.raises(ServerError, match="401: this server wants its token") as refused:
            Client(address, token=token).predict(png())
        assert refused.value.status == 401
    with pytest.raises(ServerError, match="422: the picture is not an image"):
        Client(address, token=TOKEN).predict(b"no picture")
    with pytest.raises(ServerError, match="422: scale:"):
        Client(address, token=TOKEN).predict(png(), scale=0.0)


def test_nobody_there_and_nobody_answering_are_told_apart() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerError, match=r"cannot be asked \(.*\): is the server running there\?") as missing:
            Client(closed).predict(png())
        assert missing.value.status is None
        assert not Client(closed).is_ready()
        listener.listen()
        with pytest.raises(ServerError, match=r"did not answer within 0\.2 seconds"):
            Client(closed, timeout=0.2).predict(png())


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[float]]]:
    """A server of these answers, one after another, and when it was asked."""
    waiting, asked = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(time.monotonic())
            status, content = waiting.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


GOOD = b'{"answer": "1", "probabilities": {"1": 1.0}, "activations": {"1": 0.9}}'


def test_a_busy_server_is_asked_again() -> None:
    with answering((503, b'{"error": "full"}'), (200, GOOD)) as (address, asked):
        assert Client(address).predict(png()) == Answer("1", {"1": 1.0}, {"1": 0.9})
        assert len(asked) == 2


def test_a_server_that_takes_fewer_pictures_gets_fewer() -> None:
    one_by_one = b'{"answers": [%s]}' % GOOD
    too_many = (413, b'{"error": "too many"}')
    # Three at once are refused, then two; then the first, and each of the others by itself; one of them is too large even so.
    with answering(too_many, too_many, (200, one_by_one), (200, one_by_one), too_many) as (address, asked):
        found = list(Client(address).predict_many([png()] * 3))
        assert len(asked) == 5
    assert [answer.answer for answer in found] == ["1", "1", None]
    assert "too many" in (found[2].problem or "")


def test_the_time_is_for_everything_however_often_a_byte_comes() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not stop.wait(0.05):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            with pytest.raises(ServerError, match=r"did not answer within 0\.5 seconds"):
                Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5).predict(png())
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"{}", b'{"answers": 3}'])
def test_what_is_not_such_a_server_is_said(content: bytes) -> None:
    with (
        answering((200, content)) as (address, _),
        pytest.raises(ServerError, match="200 with what is not shortcaps' JSON"),
    ):
        Client(address).predict(png())


@pytest.mark.parametrize("wrong", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be like http"):
        Client(wrong)
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        Client(timeout=0)


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(Client(token=TOKEN))

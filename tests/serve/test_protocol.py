"""Connections: clients that are slow, greedy or stuck are cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from shortcaps.inference.predict import Predictor
from shortcaps.serve import Limits, create_app
from shortcaps.serve.protocol import LimitedProtocol
from shortcaps.serve.server import ACCEPTED_AT_ONCE, Server, server_config
from tests.serve.support import RUN, one

LIMITS = Limits(
    queue=2,
    connections=12,
    connections_per_address=8,
    header_seconds=0.6,
    upload_seconds=0.8,
    send_seconds=1.0,
    idle_seconds=2,
    drain_seconds=2,
)
PATIENCE = 20
"""Seconds after which something that has to happen is taken not to happen: far more than the limits, since a machine may be busy."""
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server in a thread: the protocol that `shortcaps serve` uses, with little patience."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        patch.setattr("shortcaps.serve.protocol.BODY_GRACE_SECONDS", 0.4)
        number = listener.getsockname()[1]
        app = create_app(Predictor(RUN), LIMITS)
        server = Server(server_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while httpx.get(f"http://127.0.0.1:{number}/readyz").status_code != 200:
            time.sleep(0.05)
        yield number
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def connected(port: int, source: str = "127.0.0.9") -> Iterator[socket.socket]:
    """A connection of a client with an address of its own, so that its misdeeds are not held against the others."""
    with socket.create_connection(("127.0.0.1", port), timeout=2 * PATIENCE, source_address=(source, 0)) as connection:
        yield connection


def is_welcome(connection: socket.socket, port: int) -> bool:
    """Whether a request is answered; the answer is read to its end, in however many pieces it comes."""
    connection.sendall(GET % port)
    head, body = b"", b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65536)
        assert part, "the server closed in the middle of its answer"
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length, "an answer says how long it is"
    while len(body) < int(length[1]):
        part = connection.recv(65536)
        assert part, "the server closed in the middle of its answer"
        body += part
    return head.startswith(b"HTTP/1.1 200")


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def good(port: int, **options: Any) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{port}/predict", files={"image": ("one.png", one())}, timeout=PATIENCE, **options
    )


def count(port: int, reason: str) -> int:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    lines = [line for line in text.splitlines() if f'reason="{reason}"' in line]
    return int(lines[0].split()[-1]) if lines else 0


@pytest.mark.parametrize("drip", [False, True], ids=["stuck", "dripping"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_a_head_that_is_never_finished_is_cut_off(port: int, drip: bool, first: bool) -> None:
    before = count(port, "head_time")
    with connected(port) as connection:
        if not first:
            assert is_welcome(connection, port)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        started = time.monotonic()
        while not select.select([connection], [], [], 0.1)[0]:
            assert time.monotonic() - started < PATIENCE
            if drip:
                connection.sendall(b"X")
        assert problem(rest_of(connection)) == (408, "the head of the request took more than 0.6 seconds")
    assert count(port, "head_time") == before + 1


def test_who_has_nothing_more_to_ask_is_let_go(port: int) -> None:
    with connected(port) as connection:
        assert is_welcome(connection, port)
        started = time.monotonic()
        assert rest_of(connection) == b""
        assert 1 < time.monotonic() - started < PATIENCE


def test_silence_is_cut_off(port: int) -> None:
    with connected(port) as connection:
        started = time.monotonic()
        assert problem(rest_of(connection))[0] == 408
        assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("piece", [1_000, 200_000], ids=["little by little", "at once"])
def test_ten_megabytes_of_headers_are_refused_at_sixteen_kilobytes(port: int, piece: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + f"Host: localhost:{port}\r\n".encode())
        sent = 0
        line = b"X-Filler: " + b"a" * (piece - 12) + b"\r\n"
        try:
            while sent < 10_000_000 and not select.select([connection], [], [], 0.005)[0]:
                connection.sendall(line)
                sent += len(line)
        except ConnectionError:
            pass
        assert sent <= 600_000
        assert problem(rest_of(connection)) == (431, "the head of the request has more than 16,384 bytes")


def test_a_head_that_is_complete_and_too_long_is_refused(port: int) -> None:
    with connected(port) as connection:
        connection.sendall((GET % port)[:-2] + b"X: " + b"a" * 20_000 + b"\r\n\r\n")
        assert problem(rest_of(connection))[0] == 431


@pytest.mark.parametrize(
    "words",
    [
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"G\0T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_one_line_of_json(port: int, words: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(words)
        status, reason = problem(rest_of(connection))
    assert status in (400, 501)
    assert reason == "this is not a request in HTTP/1.1"


def test_a_body_in_crumbs_is_refused_before_it_takes_time(port: int) -> None:
    with connected(port) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/png\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 30_000)
        assert problem(rest_of(connection))[0] == 400


@pytest.mark.parametrize("path", ["/healthz", "/predict"])
def test_a_body_that_never_ends_is_cut_off(port: int, path: str) -> None:
    with connected(port) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/png\r\nContent-Length: 999\r\n\r\n"
        )
        connection.sendall(head.encode())
        started = time.monotonic()
        answer = b""
        try:
            while time.monotonic() - started < 2 * PATIENCE:
                connection.sendall(b"x")
                if select.select([connection], [], [], 0.1)[0]:
                    if not (part := connection.recv(65536)):
                        break
                    answer += part
        except ConnectionError:
            pass
        assert time.monotonic() - started < PATIENCE
        assert problem(answer)[0] == (408 if path == "/predict" else 405)


def test_who_pipelines_and_never_reads_shuts_nobody_out(port: int) -> None:
    """More than the queue holds of them, each with answers waiting that it does not take."""
    body = one()
    head = f"POST /predict?details=true HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/png\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    request += b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port * 20  # whose answer is longer than the question
    before = count(port, "send_time")
    with ExitStack() as stack:
        greedy = []
        for _ in range(LIMITS.queue + 2):
            connection = socket.socket()
            stack.enter_context(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.bind(("127.0.0.8", 0))
            connection.connect(("127.0.0.1", port))
            connection.setblocking(False)
            greedy.append(connection)
        pending = dict.fromkeys(greedy, b"")
        started = time.monotonic()
        answers: list[int] = []
        while time.monotonic() - started < PATIENCE and count(port, "send_time") < before + len(greedy):
            for connection in greedy:
                try:
                    for _ in range(200):
                        pending[connection] = pending[connection] or request
                        pending[connection] = pending[connection][connection.send(pending[connection]) :]
                except OSError:  # the buffers are full, or the server has had enough
                    pass
            answers.append(good(port).status_code)
        assert count(port, "send_time") == before + len(greedy)
    assert set(answers) == {200}  # there is always a place for who is not among them


def test_one_address_has_so_many_connections_and_no_more(port: int) -> None:
    before = count(port, "connections")
    with ExitStack() as stack:
        held = [stack.enter_context(connected(port, "127.0.0.7")) for _ in range(LIMITS.connections_per_address)]
        with connected(port, "127.0.0.7") as refused:
            refused.sendall(GET % port)
            assert problem(rest_of(refused)) == (503, "too many connections: try again")
        assert good(port).status_code == 200  # for others there is room
        held[0].close()
        time.sleep(0.1)
        with connected(port, "127.0.0.7") as welcome:
            assert is_welcome(welcome, port)
        more = [stack.enter_context(connected(port, "127.0.0.6")) for _ in range(LIMITS.connections_per_address)]
        assert sum(problem(rest_of(connection))[0] == 503 for connection in more) >= 3  # beyond the limit in all
    assert count(port, "connections") >= before + 4


def test_clients_that_leave_at_once_leave_nothing_behind(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """There is no room for them, and they are gone before they could be told, with and without a reset."""
    with ExitStack() as stack:
        for _ in range(LIMITS.connections_per_address):
            stack.enter_context(connected(port, "127.0.0.5"))
        for number in range(100):
            client = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.5", 0))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0))
            client.close()
    started = time.monotonic()
    while "shortcaps_connections 1\n" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text:
        assert time.monotonic() - started < PATIENCE
    assert caplog.messages == []


def test_who_is_there_gets_a_turn_while_many_come(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections wait to be accepted, the others go on in between."""
    made: list[int] = []
    turns = 0
    connection_made, check_time = LimitedProtocol.connection_made, LimitedProtocol.check_time

    def count_turns(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal turns
        turns += 1
        if len(made) < 300:
            loop.call_soon(count_turns, loop)

    def stand_still(self: LimitedProtocol, now: float) -> None:
        if not turns:  # while many come
            count_turns(self.loop)
            everybody_is_here.wait(PATIENCE)
        check_time(self, now)

    def note(self: LimitedProtocol, transport: asyncio.Transport) -> None:
        made.append(turns)
        connection_made(self, transport)

    everybody_is_here = threading.Event()
    monkeypatch.setattr(LimitedProtocol, "connection_made", note)
    with ExitStack() as stack:
        stack.enter_context(connected(port))
        monkeypatch.setattr(LimitedProtocol, "check_time", stand_still)
        while not turns:
            time.sleep(0.01)
        for _ in range(300):
            stack.enter_context(connected(port, "127.0.0.4"))
        everybody_is_here.set()
        started = time.monotonic()
        while len(made) < 300:
            assert time.monotonic() - started < PATIENCE
            time.sleep(0.01)
    assert max(Counter(made[1:]).values()) <= ACCEPTED_AT_ONCE


def test_a_form_in_any_charset_stops_nobody(port: int) -> None:
    """The form that once took half an hour, and a look at the health of the server in the meantime."""
    body = b'--x\r\nContent-Disposition: form-data; name="' + b"9" * 800_000 + b'"; filename="b"\r\n\r\nx\r\n--x--\r\n'
    for kind in ("punycode", "idna", "utf-7", "unicode_escape", "zlib_codec", "nonsense"):
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={kind}"}
        started = time.monotonic()
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", content=body, headers=headers, timeout=2 * PATIENCE)
        assert answer.status_code == 400
        assert "the form cannot be read: the headers of a part do not end" in answer.json()["error"]
        assert time.monotonic() - started < PATIENCE


def test_other_hosts_and_origins_are_refused(port: int) -> None:
    rebound = good(port, headers={"Host": f"attacker.example:{port}"})
    assert rebound.status_code == 421
    assert "not called 'attacker.example:" in rebound.json()["error"]
    assert good(port, headers={"Origin": "http://attacker.example"}).status_code == 403
    assert good(port, headers={"Origin": f"http://127.0.0.1:{port}"}).status_code == 200

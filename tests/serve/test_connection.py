"""What comes over a connection is taken apart in time that is in proportion to it, and only where it has one meaning."""

from __future__ import annotations

import time

import h11
import pytest

from shortcaps.serve.connection import MAX_HEAD_LINES, LimitedConnection

START = b"POST /predict HTTP/1.1\r\nHost: a\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
READ = 250_000
"""Bytes that arrive in one go, at most."""


def events(*reads: bytes) -> list[h11.Event]:
    """What becomes of some reads."""
    connection, found = LimitedConnection(16_384), []
    for read in reads:
        connection.receive_data(read)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            assert isinstance(event, h11.Event)
            found.append(event)
    return found


@pytest.mark.parametrize(
    "read",
    [
        START + b"a:\r\n" * (READ // 4) + b"\r\n",
        START + b"a:\n" * (READ // 3) + b"\n",
        START + b"A: b\r\n" + b" c\r\n" * (READ // 4) + b"\r\n",
        START + b"a:\r\n" * 4000 + b"\r\n",
        CHUNKED + b"0\r\n" + b"a:\r\n" * (READ // 4) + b"\r\n",
        CHUNKED + b"1;" + b"a" * READ + b"\r\nx\r\n",
        CHUNKED + b"1\r\na\r\n" * (READ // 6),
    ],
    ids=["headers", "bare lines", "folded lines", "within the bytes", "trailers", "extension", "crumbs"],
)
def test_no_read_stops_the_others(read: bytes) -> None:
    started = time.process_time()
    with pytest.raises(h11.RemoteProtocolError):
        events(read)
    assert time.process_time() - started < 0.08


def test_a_head_may_have_so_many_lines_and_no_more() -> None:
    most = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * (MAX_HEAD_LINES - 2)
    assert isinstance(events(most + b"\r\n")[0], h11.Request)
    with pytest.raises(h11.RemoteProtocolError):
        events(most + b"a: b\r\n\r\n")


@pytest.mark.parametrize("size", [1, 7, 16_384, 10**9], ids=["bytes", "crumbs", "pieces", "at once"])
def test_good_requests_come_out_as_they_went_in(size: int) -> None:
    """Whole and in chunks, with another one behind it that has to wait for its turn."""
    body = bytes(range(256)) * (4 if size < 9 else 400)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body) // 4, body[n::4]) for n in range(4))
    for sent, expected in (
        (START + b"Content-Length: %d\r\n\r\n" % len(body) + body, body),
        (CHUNKED + chunks + b"0\r\n\r\n", b"".join(body[n::4] for n in range(4))),
    ):
        sent += b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
        connection, data, done = LimitedConnection(16_384), b"", False
        for start in range(0, len(sent), size):
            connection.receive_data(sent[start : start + size])
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                data += bytes(event.data) if isinstance(event, h11.Data) else b""
                done = done or isinstance(event, h11.EndOfMessage)
        assert done
        assert data == expected
        assert connection.trailing_data == (b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n", False)
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
        following = connection.next_event()
        assert isinstance(following, h11.Request)
        assert following.target == b"/next"


@pytest.mark.parametrize(
    "head",
    [
        START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        START.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n",
        START + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
        START + b"Transfer-Encoding: xchunked\r\n\r\n",
        START + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        START + b"Content-Length : 5\r\n\r\n",
        START + b"A: b\rContent-Length: 5\r\n\r\n",
        START + b"A: b\nContent-Length: 5\r\n\r\n",
        START + b"A: b\n\n",
        START + b"A: b\r\n Content-Length: 5\r\n\r\n",
        START + b"A: b\r\n\tContent-Length: 5\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /\r\n\r\n",
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(head: bytes) -> None:
    """Or else a proxy before the server could see one request where it sees two."""
    with pytest.raises(h11.RemoteProtocolError):
        events(head + b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")


@pytest.mark.parametrize(
    "rest", [b"5\r\nabcdeXX", b"5\nabcde\r\n\r\n", b"0x5\r\nabcde\r\n", b"-1\r\n", b"f" * 21 + b"\r\n"]
)
def test_chunks_that_are_not_written_as_chunks_are_refused(rest: bytes) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        events(CHUNKED + rest)

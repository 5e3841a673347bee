"""HTTP/1.1 as h11 reads it, with an end to some things that h11 leaves open."""

from __future__ import annotations

import h11

FREE_PIECES = 1024
"""Pieces that a body may come in, whatever their size; beyond, they must have some."""
MIN_PIECE = 64
"""Bytes that pieces must then have on average."""
MAX_HEAD_LINES = 128
"""Lines of a head: each is work, however short it is."""
_AT_ONCE = 16_384
"""Bytes that h11 is given at once, so that what it keeps of an unfinished line or trailer is all that it may come upon."""
_FOLDS = (b"\n ", b"\n\t")
"""The beginning of a line that goes on with the header before it."""


class LimitedConnection(h11.Connection):
    """Refuses heads that are too long even if they arrive in one go, bodies in chunks of a byte or so, and doubtful framing.

    h11 limits what it has to keep of an unfinished head or trailer, and not one that is complete when it first sees it: a single read
    of 256 kB with a header in every four bytes would stop everybody for half a second, and so would one-byte chunks. And where a
    request says in two ways how long it is, h11 believes one of them, and a proxy before it may believe the other.

    Attributes:
        status: For the client, after `next_event` has raised.
    """

    def __init__(self, max_head: int) -> None:
        super().__init__(h11.SERVER, max_head)
        self.max_head, self.status = max_head, 400
        self._pieces = self._bytes = 0
        self._backlog = bytearray()

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """As h11's: what has been received and not been looked at, and whether there is no more to come."""
        waiting, is_closed = super().trailing_data
        return waiting + bytes(self._backlog), is_closed

    def receive_data(self, data: bytes) -> None:
        """As h11's; `next_event` gets to it piece by piece."""
        self._backlog += data
        if not data:
            super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's; raises h11.RemoteProtocolError for a head or a body beyond the limits."""
        try:
            event = self._next_event()
            while event is h11.NEED_DATA and self._backlog:
                super().receive_data(bytes(self._backlog[:_AT_ONCE]))
                del self._backlog[:_AT_ONCE]
                event = self._next_event()
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        return event

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            _check_framing(event)
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > FREE_PIECES and self._bytes < MIN_PIECE * self._pieces:
                raise h11.RemoteProtocolError("the body comes in crumbs")
        return event

    def _check_head(self) -> None:
        """Before it is parsed, which takes some microseconds for each line."""
        waiting, _ = super().trailing_data
        end = waiting.find(b"\r\n\r\n")
        head = waiting if end < 0 else waiting[: end + 2]
        lines = head.count(b"\n")
        # Lines that only a lenient parser takes for lines: a proxy may take them for a part of a header, and let them pass.
        if lines != head.count(b"\r\n") or any(fold in head for fold in _FOLDS):
            raise h11.RemoteProtocolError("lines that are not written as lines")
        if len(head) > self.max_head or lines > MAX_HEAD_LINES:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)


def _check_framing(request: h11.Request) -> None:
    """Raise h11.RemoteProtocolError where somebody else might take another end of the request for its end."""
    names = {name for name, _ in request.headers}
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("another version of HTTP")
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("two lengths of a body")

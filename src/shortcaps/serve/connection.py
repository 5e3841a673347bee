"""HTTP/1.1 as h11 reads it, with an end to two things that h11 leaves open."""

from __future__ import annotations

import h11

FREE_PIECES = 1024
"""Pieces that a body may come in, whatever their size; beyond, they must have some."""
MIN_PIECE = 64
"""Bytes that pieces must then have on average."""


class LimitedConnection(h11.Connection):
    """Refuses heads that are too long even if they arrive in one go, and bodies in chunks of a byte or so.

    h11 limits what it has to keep of an unfinished head, and not a head that is complete when it first sees it. Each chunk costs
    some microseconds of Python, so that 256 kB of one-byte chunks, a single read, would stop everybody for a second.

    Attributes:
        status: For the client, after `next_event` has raised.
    """

    def __init__(self, max_head: int) -> None:
        super().__init__(h11.SERVER, max_head)
        self.max_head, self.status = max_head, 400
        self._pieces = self._bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's; raises h11.RemoteProtocolError for a head or a body beyond the limits."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._pieces = self._bytes = 0
                if len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers) > self.max_head:
                    raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
            elif isinstance(event, h11.Data):
                self._pieces += 1
                self._bytes += len(event.data)
                if self._pieces > FREE_PIECES and self._bytes < MIN_PIECE * self._pieces:
                    raise h11.RemoteProtocolError("the body comes in crumbs")
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        return event

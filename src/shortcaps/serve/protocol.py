"""uvicorn's HTTP protocol with limits: on heads, on connections, and on the time that a client takes for anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from http import HTTPStatus
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from shortcaps.serve.connection import LimitedConnection
from shortcaps.serve.service import Service
from shortcaps.serve.shares import address_of

LINGER_SECONDS = 1.0
"""Who is turned away may take so long to read why. Closing at once would reset the connection, and lose the answer."""
MAX_LINGERING = 64
"""Of more that are turned away at one time, the connection is dropped without a word."""
PIPELINE_SECONDS = 0.02
"""Between an answer and a request that was sent without waiting for it."""
SEND_BUFFER = 65_536
"""Bytes of answers that the kernel keeps of a connection."""
BODY_GRACE_SECONDS = 2.0
"""The application cuts off slow uploads itself and says so; this is for bodies that nobody reads."""


class ServiceConfig(Config):
    """uvicorn's configuration, with the service whose limits hold."""

    service: Service


class LimitedProtocol(H11Protocol):
    """One connection. `check_time` has to be called now and then."""

    def __init__(
        self,
        config: ServiceConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.service = config.service
        self.limits = config.service.limits
        self.conn: LimitedConnection = LimitedConnection(self.limits.header_bytes)
        self._address: str | None = None
        self._is_refused = False
        self._phase: tuple[str, object] = ("head", None)
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place for the connection, or refuse it."""
        super().connection_made(transport)
        # By itself the kernel takes megabytes that nobody reads, for each connection, and calls them sent.
        with contextlib.suppress(OSError):  # the client may have gone already
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        address = address_of(self.client)
        if self.service.connections.take(address):
            self._address = address
        elif len(self.connections) > self.limits.connections + MAX_LINGERING:
            self.service.metrics.refused("connections")
            transport.abort()
        else:
            self.refuse(503, "connections", "too many connections: try again")

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the connection's place back."""
        if self._address is not None:
            self.service.connections.give_back(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read, unless the client has been refused."""
        if not self._is_refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Act on what was read, unless the client has been refused in the meantime."""
        if not self._is_refused:
            super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in uvicorn's place: in JSON, like every error."""
        if self.conn.status == 431:
            self.refuse(431, "head_size", f"the head of the request has more than {self.limits.header_bytes:,} bytes")
        else:
            self.refuse(400, "framing", "this is not a request in HTTP/1.1")

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Say why, read no more, and close soon."""
        self.service.metrics.refused(reason)
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.service.metrics.answered(status)
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += "retry-after: 1\r\n" if status == 503 else ""
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        try:
            self.transport.write_eof()
        except OSError:  # the client has gone already
            self.transport.abort()
        self.flow.resume_reading()  # until they close, so that what they still send does not reset the connection

    def on_response_complete(self) -> None:
        """Go on with the next request of the connection."""
        # Browsers do not pipeline; who does waits a moment between requests, so that one connection is no faster than others.
        if self.conn.trailing_data[0]:
            self.loop.call_later(PIPELINE_SECONDS, super().on_response_complete)
        else:
            super().on_response_complete()

    def shutdown(self) -> None:
        """Close the connection once its answer is finished."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # there is no answer that could be finished
            self.transport.abort()

    def check_time(self, now: float) -> None:
        """Close the connection if the client takes too long for what it is at."""
        phase = self._current_phase()
        if phase != self._phase:
            self._phase, self._since = phase, now
            return
        seconds = now - self._since
        match phase[0]:
            case "closing" if seconds > LINGER_SECONDS:
                self.transport.abort()
            case "send" if seconds > self.limits.send_seconds:
                self.service.metrics.refused("send_time")
                self.transport.abort()
            case "body" if seconds > self.limits.upload_seconds + BODY_GRACE_SECONDS:
                if self.cycle is None or not self.cycle.response_complete:  # otherwise the answer was counted
                    self.service.metrics.refused("body_time")
                self.transport.abort()
            case "head" if seconds > self.limits.header_seconds:
                message = f"the head of the request took more than {self.limits.header_seconds:g} seconds"
                self.refuse(408, "head_time", message)

    def _current_phase(self) -> tuple[str, object]:
        """What the client is at, and with which request: whoever sends a byte now and then is still at the same."""
        if self._is_refused:
            return "closing", None
        if self.transport.get_write_buffer_size():
            return "send", None
        if self.conn.their_state is h11.SEND_BODY:
            return "body", self.cycle
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            return "head", self.cycle
        return "quiet", None  # the application is at work, or uvicorn's own timer runs until the next request

"""What stands before the application: who may ask, a limit on what waits, headers on every answer, and the books."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shortcaps.serve.access import Access
from shortcaps.serve.metrics import Metrics
from shortcaps.serve.refusals import Refused, busy
from shortcaps.serve.shares import Shares, address_of

REFUSAL_SECONDS = 0.25
"""Who is refused learns it after this pause: a client that comes back at once would otherwise take all the server's time."""
MAX_PAUSED = 1024

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; img-src 'self' data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
log = logging.getLogger("shortcaps.serve")
access_log = logging.getLogger("shortcaps.serve.access")
access_log.setLevel(logging.WARNING)  # requests are written down only where somebody sets it to INFO


class Guard:
    """Refuses who may not ask, and questions for which there is no place in `queue`, before anything of them is read.

    This is plain ASGI on purpose: what is refused must cost next to nothing.
    """

    def __init__(
        self, app: ASGIApp, *, paths: Collection[str], queue: Shares, access: Access, metrics: Metrics
    ) -> None:
        self.app, self.paths = app, paths
        self.queue, self.access, self.metrics = queue, access, metrics
        self.paused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_question = path in self.paths and scope["method"] == "POST"

        async def send_hardened(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.metrics.answered(status, time.monotonic() - started if is_question else None)
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        try:
            self.access.check(scope, path)
            if is_question and not self.queue.has_room(address_of(scope.get("client"))):
                raise busy("queue", "too many requests are waiting: try again")
            await self.app(scope, receive, send_hardened)
        except Refused as refusal:
            await self._refuse(refusal, send_hardened)
        except asyncio.CancelledError:  # the time to finish what is in hand is over
            if not status:
                await _answer(busy("shutdown", "the server is shutting down: try again"), send_hardened)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            # What strangers sent may be in it: one line, and nothing that a terminal would obey.
            log.error(
                "unexpected %s: %.300s (%s:%s)", type(error).__name__, ascii(str(error)), place.filename, place.lineno
            )
            if not status:
                await _answer(Refused(500, "", "something went wrong here, not with what you sent"), send_hardened)
        finally:
            self._note(scope, path, status, time.monotonic() - started)

    async def _refuse(self, refusal: Refused, send: Send) -> None:
        self.metrics.refused(refusal.reason)
        if self.paused < MAX_PAUSED:
            self.paused += 1
            try:
                await asyncio.sleep(REFUSAL_SECONDS)
            finally:
                self.paused -= 1
        await _answer(refusal, send)

    def _note(self, scope: Scope, path: str, status: int, seconds: float) -> None:
        if access_log.isEnabledFor(logging.INFO):
            line: dict[str, Any] = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "client": (scope.get("client") or ("",))[0],
                "method": scope["method"],
                "path": path,
                "status": status,
                "seconds": round(seconds, 4),
            }
            access_log.info(json.dumps(line))


async def _answer(refusal: Refused, send: Send) -> None:
    body = json.dumps({"error": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in (refusal.headers or {}).items()]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})

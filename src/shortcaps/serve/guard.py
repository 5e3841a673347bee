"""What stands before the application: a limit on requests in hand, and headers on every answer."""

from __future__ import annotations

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REFUSAL_SECONDS = 0.25
"""Who is refused learns it after this pause: a client that comes back at once would otherwise take all the server's time."""
MOST_PAUSED = 1024

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; img-src 'self' data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class Guard:
    """Adds the headers, and refuses questions beyond `most` in hand with 503, before anything of them is read.

    This is plain ASGI on purpose: what is refused must cost next to nothing.
    """

    def __init__(self, app: ASGIApp, *, path: str, most: int) -> None:
        self.app, self.path, self.most = app, path, most
        self.in_hand = self.paused = 0
        self.refusal = json.dumps({"error": "too many requests are waiting: try again"}).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path != self.path or scope["method"] != "POST":
            await self.app(scope, receive, send_hardened)
        elif self.in_hand >= self.most:
            await self._refuse(send_hardened)
        else:
            self.in_hand += 1
            try:
                await self.app(scope, receive, send_hardened)
            finally:
                self.in_hand -= 1

    async def _refuse(self, send: Send) -> None:
        if self.paused < MOST_PAUSED:
            self.paused += 1
            try:
                await asyncio.sleep(REFUSAL_SECONDS)
            finally:
                self.paused -= 1
        length = str(len(self.refusal)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": self.refusal})

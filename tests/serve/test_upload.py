"""What is held of an upload is what counts as held."""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from shortcaps.serve.limits import Limits
from shortcaps.serve.shares import Shares
from shortcaps.serve.upload import uploaded_picture, uploaded_pictures

PICTURE = bytes(range(256)) * 8_000
FORM = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + PICTURE + b"\r\n--x--\r\n"
TEXT = base64.b64encode(PICTURE).decode()


def request_with(kind: str, body: bytes) -> Request:
    parts = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    return Request({"type": "http", "headers": [(b"content-type", kind.encode())], "client": ("a", 1)}, receive)


@pytest.mark.parametrize(
    ("kind", "body", "upload"),
    [
        ("image/png", PICTURE, uploaded_picture),
        ("multipart/form-data; boundary=x", FORM, uploaded_picture),
        ("application/json", json.dumps({"image": TEXT}).encode(), uploaded_picture),
        ("image/png", PICTURE, lambda *given: uploaded_pictures(*given, 4)),
        ("multipart/form-data; boundary=x", FORM, lambda *given: uploaded_pictures(*given, 4)),
        ("application/json", json.dumps({"images": [TEXT]}).encode(), lambda *given: uploaded_pictures(*given, 4)),
    ],
    ids=["picture", "form", "JSON", "pictures", "form of several", "JSON of several"],
)
def test_a_picture_is_held_once_and_not_what_it_came_in_as_well(
    kind: str, body: bytes, upload: Callable[..., Any]
) -> None:
    memory = Shares(10**9, 10**9)

    async def check() -> None:
        request = request_with(kind, body)
        tracemalloc.start()
        try:
            async with upload(request, Limits(), memory) as found:
                assert (found if isinstance(found, bytes) else found[0]) == PICTURE
                assert memory.taken == len(body)
                assert tracemalloc.get_traced_memory()[0] < 1.2 * len(body)
        finally:
            tracemalloc.stop()

    asyncio.run(check())
    assert memory.taken == 0

"""The bytes of the picture in a request, whichever way they came, within limits of size and time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from shortcaps.serve.form import FormError, find_file
from shortcaps.serve.limits import Limits
from shortcaps.serve.refusals import Refused, busy
from shortcaps.serve.shares import Shares, address_of

FIELD = "image"
MAX_JSON_VALUES = 100
KINDS = ("multipart/form-data", "application/json", "application/octet-stream")


@asynccontextmanager
async def uploaded_picture(request: Request, limits: Limits, memory: Shares) -> AsyncIterator[bytes]:
    """The picture of a request, which counts as held in `memory` until it is let go.

    Raises:
        Refused: There is none, or too much of it, or it comes too slowly.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.split(";")[0].strip().lower()
    if kind not in KINDS and not kind.startswith("image/"):
        message = f"content type {kind[:60] or 'missing'!r}: send a form with an image, JSON, or a picture itself"
        raise Refused(415, "content_type", message)
    with memory.holding(address_of(request.client)) as take:
        body = await _read_body(request, limits, take)
        match kind:
            case "multipart/form-data":
                body = _from_form(content_type, body)
            case "application/json":
                body = _from_json(body)
        yield body


async def _read_body(request: Request, limits: Limits, take: Callable[[int], bool]) -> bytes:
    most = limits.body_bytes
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise Refused(413, "body_size", f"{int(declared):,} bytes are more than the {most:,} this server takes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, "body_size", f"more than the {most:,} bytes this server takes")
                if not take(len(part)):
                    raise busy("upload_memory", "too many large uploads at one time: try again")
                parts.append(part)
    except ClientDisconnect as error:
        raise Refused(400, "broken_off", "the upload broke off") from error
    except TimeoutError as error:
        message = f"the upload took more than {limits.upload_seconds:g} seconds"
        raise Refused(408, "body_time", message) from error
    return b"".join(parts)


def _from_form(content_type: str, body: bytes) -> bytes:
    try:
        content = find_file(content_type, body, FIELD.encode())
    except FormError as error:
        raise Refused(400, "form", f"the form cannot be read: {error}") from error
    if content is None:
        raise Refused(422, "form", f"the form has no file called {FIELD!r}")
    return content


def _from_json(body: bytes) -> bytes:
    # Neither base64 nor a data address holds these more than once; a million small values would take a second to parse.
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise Refused(400, "json", f"the body is not JSON with a picture: it has more than {MAX_JSON_VALUES} values")
    try:
        values = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(400, "json", "the body is not JSON") from error
    text = values.get(FIELD) if isinstance(values, dict) else None
    if not isinstance(text, str):
        raise Refused(422, "json", f"the JSON has no text called {FIELD!r}, with a picture in base64")
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(422, "json", f"{FIELD!r} is not base64") from error

"""The bytes of the pictures in a request, whichever way they came, within limits of size, number and time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

from shortcaps.serve.form import MAX_PARTS, FormError, find_file, find_files
from shortcaps.serve.limits import Limits
from shortcaps.serve.refusals import Refused, busy
from shortcaps.serve.shares import Shares, address_of

FIELD, LIST_FIELD = "image", "images"
MAX_JSON_VALUES = 100
KINDS = ("multipart/form-data", "application/json", "application/octet-stream")


@asynccontextmanager
async def uploaded_picture(request: Request, limits: Limits, memory: Shares) -> AsyncIterator[bytes]:
    """The picture of a request, which counts as held in `memory` until it is let go.

    Raises:
        Refused: There is none, or too much of it, or it comes too slowly.
    """
    kind, content_type = _kind_of(request)
    async with _body_of(request, limits, memory) as body:
        match kind:
            case "multipart/form-data":
                with _reading_form():
                    found = find_file(content_type, body, FIELD.encode())
                if found is None:
                    raise Refused(422, "form", f"the form has no file called {FIELD!r}")
                body = found
            case "application/json":
                body = _decoded(_json_field(body, FIELD), FIELD)
        # What the picture came in is not kept beside it: the limit is on what is held.
        yield body


@asynccontextmanager
async def uploaded_pictures(
    request: Request, limits: Limits, memory: Shares, max_pictures: int
) -> AsyncIterator[list[bytes]]:
    """The pictures of a request, at least one, which count as held in `memory` until they are let go.

    All of them together have the limits of one: of bytes, of time, and of memory for an address.

    Raises:
        Refused: There is none, or too much or too many of them, or they come too slowly.
    """
    kind, content_type = _kind_of(request)
    async with _body_of(request, limits, memory) as body:
        match kind:
            case "multipart/form-data":
                with _reading_form():
                    max_parts = MAX_PARTS + max_pictures
                    pictures = list(find_files(content_type, body, FIELD.encode(), max_parts=max_parts))
                if not pictures:
                    raise Refused(422, "form", f"the form has no files called {FIELD!r}")
                _check_number(len(pictures), max_pictures)
            case "application/json":
                pictures = _json_pictures(body, max_pictures)
            case _:
                pictures = [body]
        body = b""  # as above
        yield pictures


def _json_pictures(body: bytes, max_pictures: int) -> list[bytes]:
    texts = _json_field(body, LIST_FIELD, more_values=2 * max_pictures)
    if not isinstance(texts, list) or not texts:
        raise Refused(422, "json", f"the JSON has no list called {LIST_FIELD!r}, of pictures in base64")
    _check_number(len(texts), max_pictures)
    return [_decoded(text, f"{LIST_FIELD}[{n}]") for n, text in enumerate(texts)]


def _check_number(number: int, max_pictures: int) -> None:
    if number > max_pictures:
        message = f"{number} pictures are more than the {max_pictures} this server takes in one request: send several"
        raise Refused(413, "pictures", message)


def _kind_of(request: Request) -> tuple[str, str]:
    """The kind of body, one that is known, and the whole header."""
    content_type = request.headers.get("content-type", "")
    kind = content_type.split(";")[0].strip().lower()
    if kind not in KINDS and not kind.startswith("image/"):
        message = f"content type {kind[:60] or 'missing'!r}: send a form with an image, JSON, or a picture itself"
        raise Refused(415, "content_type", message)
    return kind, content_type


@asynccontextmanager
async def _body_of(request: Request, limits: Limits, memory: Shares) -> AsyncIterator[bytes]:
    with memory.holding(address_of(request.client)) as take:
        yield await _read_body(request, limits, take)


async def _read_body(request: Request, limits: Limits, take: Callable[[int], bool]) -> bytes:
    most = limits.body_bytes
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise Refused(413, "body_size", f"{int(declared[:20]):,} bytes are more than the {most:,} this server takes")
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


@contextmanager
def _reading_form() -> Iterator[None]:
    try:
        yield
    except FormError as error:
        raise Refused(400, "form", f"the form cannot be read: {error}") from error


def _json_field(body: bytes, name: str, *, more_values: int = 0) -> Any:
    # Neither base64 nor a data address holds these more than once; a million small values would take a second to parse.
    most = MAX_JSON_VALUES + more_values
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > most:
        raise Refused(400, "json", f"the body is not JSON with a picture: it has more than {most} values")
    try:
        values = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(400, "json", "the body is not JSON") from error
    return values.get(name) if isinstance(values, dict) else None


def _decoded(text: Any, name: str) -> bytes:
    if not isinstance(text, str):
        raise Refused(422, "json", f"the JSON has no text called {name!r}, with a picture in base64")
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(422, "json", f"{name!r} is not base64") from error

"""The files of a form that the server wants. Not a general parser: nothing is decoded, and every step has a limit."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_PARTS = 8
MAX_PART_HEAD = 2_048
"""Bytes of the headers of a part."""
_BOUNDARY = re.compile(r';[ \t]*boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))[ \t]*(?:;|$)', re.IGNORECASE)
_DISPOSITION = re.compile(
    rb"(?:^|\r\n)content-disposition:[ \t]*form-data[ \t]*((?:;[^\r\n]*)?)(?:\r\n|$)", re.IGNORECASE
)
_PARAMETER = re.compile(rb';[ \t]*([a-z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.IGNORECASE)


class FormError(ValueError):
    """A form that is not written as forms are; the message is one line."""


def find_file(content_type: str, body: bytes, name: bytes) -> bytes | None:
    """The content of the first file of this name in a multipart form, as `find_files` finds it; None where there is none."""
    return next(find_files(content_type, body, name), None)


def find_files(content_type: str, body: bytes, name: bytes, *, max_parts: int = MAX_PARTS) -> Iterator[bytes]:
    """The contents of all files of this name in a multipart form, in their order.

    Names are compared as bytes: whatever charset a form claims, no codec is run over what strangers send.

    Args:
        content_type: The header of the request, with the boundary.
        body: The whole form.
        name: Of the field.
        max_parts: That the form may have.

    Raises:
        FormError: The form cannot be read, or has more to it than a form with pictures has.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise FormError("its content type has no boundary of 1 to 70 characters")
    delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1", "replace")
    position = len(delimiter) - 2
    if body[:position] != delimiter[2:]:
        raise FormError("it does not begin with its boundary")
    for _ in range(max_parts):
        if body[position : position + 2] == b"--":
            return
        if body[position : position + 2] != b"\r\n":
            raise FormError("a boundary is not followed by a line")
        head_end = body.find(b"\r\n\r\n", position, position + MAX_PART_HEAD)
        if head_end < 0:
            raise FormError(f"the headers of a part do not end within {MAX_PART_HEAD:,} bytes")
        end = body.find(delimiter, head_end + 4)
        if end < 0:
            raise FormError("it breaks off")
        if _is_file(body[position + 2 : head_end], name):
            yield body[head_end + 4 : end]
        position = end + len(delimiter)
    # After the last part that there may be, a form has to end.
    if body[position : position + 2] != b"--":
        raise FormError(f"it has more than {max_parts} parts")


def _is_file(head: bytes, name: bytes) -> bool:
    found = _DISPOSITION.search(head)
    if found is None:
        return False
    parameters = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(found[1])}
    return parameters.get(b"name") == name and (b"filename" in parameters or b"filename*" in parameters)

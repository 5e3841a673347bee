"""How the server says no: a status, one line for who asked, and one word for who counts."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException


class Refused(HTTPException):
    """A request that is not answered.

    Attributes:
        reason: One word of few, by which refusals are counted.
    """

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers) if headers else None)
        self.reason = reason


def busy(reason: str, message: str) -> Refused:
    """A refusal of what may be asked again in a second."""
    return Refused(503, reason, message, {"Retry-After": "1"})

"""Settings as dataclasses whose values pydantic checks when they are created."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass

from shortcaps.errors import RunError

T = TypeVar("T")
_STRICT = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""No conversion between strings, numbers and booleans; an unknown setting is an error, and so is a number that is none."""


@dataclass_transform(frozen_default=True)
def checked_dataclass(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that checks the names, types and bounds of its fields.

    Bounds are annotations, e.g. `epochs: Annotated[int, Field(ge=1)]`. A mistake raises a `RunError` of one line.
    """
    made: Any = dataclass(cls, frozen=True, config=_STRICT)
    check = made.__init__

    def check_in_one_line(self: Any, *values: Any, **by_name: Any) -> None:
        try:
            check(self, *values, **by_name)
        except pydantic.ValidationError as error:
            known = [field.name for field in fields(made)]
            raise RunError(_in_one_line(error, known)) from error

    made.__init__ = check_in_one_line
    return made


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """One line about a setting that does not exist, with the closest name and all known ones."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1, 0.6)
    return f"unknown setting {name!r}: {f'did you mean {near[0]}? ' if near else ''}choose from {', '.join(known)}"


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file; names may be written with dashes, as on the command line.

    Raises:
        RunError: The file does not exist, cannot be read or is not TOML.
    """
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{file} does not exist") from error
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
    # Besides its own error tomllib raises those of what it comes upon: bytes that are no UTF-8, numbers of thousands of digits.
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RunError(f"{file} is not a TOML file: {reason}") from error
    return {name.replace("-", "_"): value for name, value in values.items()}


def _in_one_line(error: pydantic.ValidationError, known: Iterable[str]) -> str:
    """The first mistake, with the setting's name and value."""
    mistake: Mapping[str, Any] = error.errors()[0]
    name = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "unexpected_keyword_argument":
        return unknown_setting(name, known)
    if mistake["type"] in ("missing", "missing_argument"):
        return f"{name} is missing: it has no default"
    return f"{name} {mistake['msg'].replace('Input', repr(mistake['input']), 1)}"


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted names, e.g. `recipe.lr`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

"""Types and bounds of a network's settings, the same when a run is begun and when it is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from shortcaps.errors import RunError

Positive = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=1, le=4096)]
"""Height or width of images in pixels; a run that asks for more is damaged, or meant to fill the memory."""
_Rounds = Annotated[int, Field(ge=1, le=1000)]
_TYPES: dict[str, Any] = {
    "name": str,
    "image_size": Side | list[Side] | tuple[Side, Side],
    "channels": Positive,
    "classes": Positive,
    "routing": str,
    "routing_settings": dict[str, float],
    "shortcut": bool,
    "path": str,
    "backbone": str,
    "backbone_settings": dict[str, Any],
    "capsule_channels": list[Positive] | tuple[Positive, ...],
    "kernels": list[Positive | None] | tuple[Positive | None, ...],
    "strides": list[Positive] | tuple[Positive, ...],
    "pose": Positive,
    "passes": _Rounds,
    "iterations": _Rounds,
    "dropout": Annotated[float, Field(ge=0, le=1)],
    "capsules": Positive | list[Positive] | tuple[Positive, ...],
    "readout": str,
    "rectified": bool,
    "normalised": bool,
    "outputs": str,
}
"""The settings of this package's networks. Others belong to plug-ins, which check their own."""
_BOUNDS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _TYPES.items()}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the types and bounds of arguments of `create_model`.

    Raises:
        RunError: One of them is of the wrong type or out of range.
    """
    for name in settings.keys() & _BOUNDS.keys():
        try:
            _BOUNDS[name].validate_python(settings[name], strict=True)
        except ValidationError as error:
            mistake = error.errors()[0]
            why = mistake["msg"].replace("Input", f"{mistake['input']!r:.40}", 1)
            raise RunError(f"the network's setting {name} is wrong: {why}") from error
    for name, number in numbers_in(settings):
        if isinstance(number, float) and not math.isfinite(number):
            raise RunError(f"the network's setting {name} is wrong: {number} is not a finite number")


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """All numbers in nested settings, each with its name."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers_in(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from numbers_in(inner, name)

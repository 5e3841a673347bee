"""Arrays of numbers in a struct of a MATLAB 5 file, which is all that affNIST needs.

The format is that of "MAT-File Format" (The MathWorks), level 5. SciPy reads far more of it, and crashes the process on some damaged files;
here every length is checked against what is there before it is believed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Container, Iterator

import numpy as np
from numpy.typing import NDArray

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_STRUCT = 2
_COMPLEX = 0x0800
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""How numbers are stored, by the kind of an element. MATLAB stores doubles as smaller integers where they are such."""
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What numbers are for MATLAB, by the class of an array."""


def read_struct(data: bytes, name: str, fields: Container[str], max_bytes: int) -> dict[str, NDArray[np.generic]]:
    """The chosen fields of a 1x1 struct.

    Args:
        data: Of the file.
        name: The variable.
        fields: Which fields; each has to hold an array of real numbers. Others may hold anything and are passed over.
        max_bytes: Compressed variables may unpack to so much in all.

    Returns:
        The arrays by field.

    Raises:
        ValueError: The file is none of MATLAB 5, is damaged or has no such struct.
    """
    if len(data) < _HEADER or data[126:128] not in (b"IM", b"MI"):
        raise ValueError("it has no header of MATLAB 5")
    order = "<" if data[126:128] == b"IM" else ">"
    left = max_bytes
    for kind, content in _elements(memoryview(data)[_HEADER:], order):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(content, left + 1)
            left -= len(unpacked)
            if left < 0:
                raise ValueError(f"it unpacks to more than {max_bytes:,} bytes")
            if not unpacker.eof:
                raise ValueError("a compressed variable is cut off")
            kind, content = next(_elements(memoryview(unpacked), order), (0, memoryview(b"")))
        if kind == _MATRIX:
            matrix = _Matrix(content, order)
            if matrix.name == name:
                return matrix.fields(fields)
    raise ValueError(f"it has no variable {name}")


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The elements that lie one after another, each with its kind and content."""
    position = 0
    while position < len(data):
        if len(data) - position < 8:
            raise ValueError("an element is cut off")
        kind, size = (int(number) for number in np.frombuffer(data[position : position + 8], f"{order}u4"))
        if kind >> 16:  # up to four bytes lie in the tag itself
            kind, size, begin, after = kind & 0xFFFF, kind >> 16, position + 4, position + 8
            if size > 4:
                raise ValueError("a small element is too large")
        else:
            begin = position + 8
            after = begin + size if kind == _COMPRESSED else begin + (size + 7) // 8 * 8
        if begin + size > len(data):
            raise ValueError("an element is cut off")
        yield kind, data[begin : begin + size]
        position = after


class _Matrix:
    """An array of any class: flags, shape, name, and what follows."""

    def __init__(self, content: memoryview, order: str) -> None:
        self.order, self._rest = order, _elements(content, order)
        flags = self._numbers("<u4", "array flags")
        if len(flags) != 2:
            raise ValueError("an array has no flags")
        self.kind, self.is_complex = int(flags[0]) & 0xFF, bool(int(flags[0]) & _COMPLEX)
        self.shape = tuple(int(length) for length in self._numbers("<i4", "shape"))
        if len(self.shape) < 2 or min(self.shape) < 0:
            raise ValueError(f"an array has the shape {self.shape[:8]}")
        self.name = _text(self._next("name")[1])

    def _next(self, what: str) -> tuple[int, memoryview]:
        element = next(self._rest, None)
        if element is None:
            raise ValueError(f"an array has no {what}")
        return element

    def _numbers(self, wanted: str, what: str) -> NDArray[np.generic]:
        kind, content = self._next(what)
        stored = np.dtype(self.order + _STORED.get(kind, "V1"))
        target = np.dtype(wanted)
        if stored.kind == "V" or len(content) % stored.itemsize or not np.can_cast(stored, target):
            raise ValueError(f"the {what} of an array cannot be numbers of kind {kind}")
        return np.frombuffer(content, stored).astype(target)

    def fields(self, wanted: Container[str]) -> dict[str, NDArray[np.generic]]:
        """The chosen fields of a 1x1 struct."""
        if self.kind != _STRUCT or math.prod(self.shape) != 1:
            raise ValueError(f"{self.name} is not one struct")
        lengths = self._numbers("<i4", "length of names")
        _, names = self._next("names of fields")
        length = int(lengths[0]) if len(lengths) == 1 else 0
        if length < 1 or len(names) % length:
            raise ValueError(f"the fields of {self.name} have no names")
        found = {}
        for place in range(0, len(names), length):
            field = _text(names[place : place + length])
            kind, content = self._next(f"field {field}")
            if kind != _MATRIX:
                raise ValueError(f"the field {field} is no array")
            if field in wanted:
                found[field] = _Matrix(content, self.order).numbers(field)
        return found

    def numbers(self, field: str) -> NDArray[np.generic]:
        """The numbers of an array of real numbers, in its shape."""
        if self.kind not in _CLASSES or self.is_complex:
            raise ValueError(f"the field {field} holds no real numbers")
        values = self._numbers(f"<{_CLASSES[self.kind]}", f"numbers of {field}")
        if len(values) != math.prod(self.shape):
            raise ValueError(f"the field {field} has {len(values):,} numbers and the shape {self.shape[:8]}")
        return values.reshape(self.shape, order="F")


def _text(content: memoryview) -> str:
    return bytes(content).split(b"\0")[0].decode("ascii", "replace")

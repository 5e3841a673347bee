"""Weights as safetensors files that know their own SHA-256.

The checksum is in the file's header, so it cannot be separated from the weights or be older than they are. It is that of the whole file
with zeros in the checksum's place. Files of 0.1 have none.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from shortcaps.files import atomic_write, open_file

_KEY = "sha256"
_NONE = "0" * 64
_MAX_HEADER = 2 * 2**20
"""Of bytes: some twenty thousand tensors. Parsed, the same in brackets alone would take fifty times as much memory."""
_CHUNK = 2**20


@dataclass(frozen=True)
class WeightsHeader:
    """What a safetensors file says of itself.

    Attributes:
        shapes: The shape of each tensor by name.
        floating: Names of the tensors of floating-point numbers.
        sha256: The file's checksum; None for files of 0.1.
    """

    shapes: Mapping[str, tuple[int, ...]]
    floating: frozenset[str]
    sha256: str | None

    @property
    def elements(self) -> int:
        """How many numbers the file holds."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def as_stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, none of which shares its memory with another, as weights that are tied do: a file holds each by itself."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.contiguous().cpu()
        place = plain.untyped_storage().data_ptr()
        found[name] = plain.clone() if place in taken else plain
        taken.add(place)
    return found


def write_weights(tensors: Mapping[str, Tensor], target: Path) -> None:
    """Write named tensors with their checksum, whole or not at all."""
    plain = as_stored(tensors)
    # The checksum is as long as the zeros in its place, so nothing else moves.
    data = to_safetensors(plain, {_KEY: _NONE})
    digest = hashlib.sha256(data).hexdigest()
    with atomic_write(target) as file:
        file.write(data.replace(_NONE.encode(), digest.encode(), 1))


def read_header(file: Path) -> WeightsHeader:
    """Read the header of a safetensors file; nothing else is read, and nothing is allocated for it.

    Raises:
        ValueError: It is not a safetensors file, or is damaged.
    """
    try:
        with open_file(file) as stream:
            return _parse_header(_header_bytes(stream.read(8), stream.read(_MAX_HEADER)), file.stat().st_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not a safetensors file, or is damaged: {error}") from error


def _header_bytes(prefix: bytes, rest: bytes) -> bytes:
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > len(rest):
        raise ValueError(
            f"its header should have {length:,} bytes, which it does not have, or are too many"
            if prefix
            else "it is empty"
        )
    return rest[:length]


def _parse_header(header: bytes, size: int) -> WeightsHeader:
    entries = json.loads(header)
    about = entries.pop("__metadata__", None)
    # Others may write `format`; anything else is our own key, damaged.
    if about is not None and not about.keys() <= {_KEY, "format"}:
        raise ValueError(f"it has the unknown metadata {', '.join(about)}")
    sha256 = (about or {}).get(_KEY)
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError("its checksum is damaged")
    shapes = {}
    for name, entry in entries.items():
        if not all(isinstance(side, int) and 0 <= side <= size for side in entry["shape"]):
            raise ValueError(f"the shape of {name} is {entry['shape']}")
        shapes[name] = tuple(entry["shape"])
    floating = frozenset(name for name, entry in entries.items() if entry["dtype"] in ("F64", "F32", "F16", "BF16"))
    return WeightsHeader(shapes, floating, sha256)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file by name, and check them if the file has a checksum.

    Raises:
        ValueError: It is not a safetensors file, or is damaged.
    """
    header = read_header(file)
    if header.sha256 is not None and _digest(file, header.sha256) != header.sha256:
        raise ValueError(f"{file} is damaged (its checksum does not match): restore it, or train the network again")
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (it is no dict)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a safetensors file, or is damaged: {error}") from error


def _digest(file: Path, stored: str) -> str:
    """The SHA-256 of a file, with zeros in place of the stored one."""
    with open_file(file) as stream:
        prefix = stream.read(8)
        header = stream.read(int.from_bytes(prefix, "little")).replace(stored.encode(), _NONE.encode(), 1)
        digest = hashlib.sha256(prefix + header)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

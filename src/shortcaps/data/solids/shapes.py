"""What objects are made of: ellipsoids, boxes and cylinders, placed in space."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Part:
    """A unit sphere, a cube from -1 to 1, or a cylinder of radius 1 from z = -1 to 1, after an affine map of space.

    Attributes:
        shape: `sphere`, `box` or `cylinder`.
        matrix: (3, 3), the map's linear part.
        place: (3,), where the map moves the middle to.
        grey: How much light it gives back, 0 to 1.
    """

    shape: str
    matrix: Array
    place: Array
    grey: float


def turn(axis: str, degrees: float) -> Array:
    """Rotation about the x, y or z axis, (3, 3)."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rows = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }
    return np.array(rows[axis], dtype=np.float64)


def part(shape: str, size: Point, at: Point, grey: float, turned: Array | None = None) -> Part:
    """A solid whose `size` is half its extent along each axis, before it is turned (or sheared)."""
    matrix = np.diag(np.array(size, dtype=np.float64))
    if turned is not None:
        matrix = turned @ matrix
    return Part(shape, matrix, np.array(at, dtype=np.float64), grey)


def limb(start: Point, end: Point, radius: float, grey: float) -> Part:
    """A cylinder from one point to another."""
    a, b = np.array(start, dtype=np.float64), np.array(end, dtype=np.float64)
    along = (b - a) / 2
    length = np.linalg.norm(along)
    z = along / length
    helper = np.array([1.0, 0.0, 0.0] if abs(z[0]) < 0.9 else [0.0, 1.0, 0.0])
    x = np.cross(helper, z)
    x = x / np.linalg.norm(x)
    y = np.cross(z, x)
    return Part("cylinder", np.stack([x * radius, y * radius, z * length], 1), (a + b) / 2, grey)


def centred(parts: list[Part]) -> list[Part]:
    """The same object about the origin, scaled so that its bounding box fits into the unit sphere."""
    reach = np.stack([np.linalg.norm(p.matrix, axis=1) for p in parts])
    places = np.stack([p.place for p in parts])
    low, high = (places - reach).min(0), (places + reach).max(0)
    centre, scale = (low + high) / 2, 0.98 / float(np.linalg.norm((high - low) / 2))
    return [Part(p.shape, p.matrix * scale, (p.place - centre) * scale, p.grey) for p in parts]

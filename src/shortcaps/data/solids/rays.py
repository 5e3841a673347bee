"""Where rays meet the unit solids. Points and directions are (3, rays): one array for each coordinate, which is what goes fast."""

from __future__ import annotations

import numpy as np

from shortcaps.data.solids.shapes import Array


def distance(shape: str, origin: Array, direction: Array) -> Array:
    """How far rays go until they enter a unit solid, (rays,), in lengths of their directions; infinity where they never do."""
    if shape == "box":
        enter, leave = _between(origin, direction)
        return _where_entered(enter.max(0), leave.min(0))
    size = 3 if shape == "sphere" else 2
    o, d = origin[:size], direction[:size]
    a, b, c = dot(d, d), dot(o, d), dot(o, o) - 1
    root = np.sqrt(np.maximum(b * b - a * c, 0))
    enter, leave = (-b - root) / a, (root - b) / a
    if shape == "cylinder":
        top, bottom = _between(origin[2], direction[2])
        enter, leave = np.maximum(enter, top), np.minimum(leave, bottom)
    return _where_entered(enter, leave)


def normal(shape: str, point: Array) -> Array:
    """Of a unit solid at points of its surface, (3, points), of any length: out of the face in whose direction the point lies farthest."""
    if shape == "sphere":
        return point
    if shape == "box":
        size = np.abs(point)
        return np.where(size == size.max(0), np.sign(point), 0.0)
    on_a_cap = np.abs(point[2]) > np.hypot(point[0], point[1])
    return np.stack(
        [np.where(on_a_cap, 0, point[0]), np.where(on_a_cap, 0, point[1]), np.where(on_a_cap, np.sign(point[2]), 0)]
    )


def dot(a: Array, b: Array) -> Array:
    """Scalar products, (rays,); twice as fast as einsum's."""
    return sum((x * y for x, y in zip(a[1:], b[1:], strict=True)), a[0] * b[0])


def _between(origin: Array, direction: Array) -> tuple[Array, Array]:
    """Where rays cross the planes at -1 and 1, the nearer first."""
    inverse = 1 / np.where(direction == 0, 1e-12, direction)
    low, high = (-1 - origin) * inverse, (1 - origin) * inverse
    return np.minimum(low, high), np.maximum(low, high)


def _where_entered(enter: Array, leave: Array) -> Array:
    return np.where((enter < leave) & (enter > 0), enter, np.inf)

"""Pictures of objects, by casting a ray through every pixel.

In float64, and rounded to 256 greys at the end, so that the same object gives the same picture on every machine. All rays of a dozen or two
cameras are followed at once, but for each part of an object only those through the rectangle that it covers in a picture.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shortcaps.data.solids.rays import distance, dot, normal
from shortcaps.data.solids.shapes import Array, Part

SIDE = 96
SLOPE = math.tan(math.radians(26) / 2)
"""Half the width of the field of view, at distance 1."""
BACKGROUND = 0.62
# Direction the light comes from (towards it), its strength, and the strength of the light from all around.
LIGHTS = (
    ((0.3, 0.4, 1.0), 0.75, 0.25),
    ((-0.8, 0.3, 0.7), 0.80, 0.20),
    ((0.8, -0.5, 0.6), 0.80, 0.20),
    ((0.1, -0.9, 0.8), 0.60, 0.30),
    ((-0.3, -0.3, 1.0), 0.50, 0.45),
    ((0.9, 0.6, 0.4), 0.95, 0.12),
)
TOWARDS = np.array([np.array(towards) / np.linalg.norm(towards) for towards, _, _ in LIGHTS])
STRENGTH, AMBIENT = np.array([light[1:] for light in LIGHTS]).T
_CORNERS = np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0])).reshape(3, 8)

Integers = NDArray[np.int64]


def render(parts: list[Part], cameras: Array, lightings: Integers, side: int = SIDE) -> NDArray[np.uint8]:
    """One object as each camera sees it.

    Args:
        parts: What the object is made of.
        cameras: (cameras, 4, 3): position, right, up, forward.
        lightings: (cameras, lightings), under which each camera is to see it.
        side: Of the pictures, in pixels.

    Returns:
        (cameras, lightings, side, side)
    """
    directions = rays(cameras, side)
    pixels, normals, grey = visible(parts, cameras, directions, side)
    camera = pixels // side**2
    towards_eye = -_unit(directions.take(pixels, axis=1))
    shade = floor_shade(parts, cameras, directions)
    pictures = np.empty((len(cameras), lightings.shape[1], side * side), np.uint8)
    for number, lighting in enumerate(lightings.T):
        floor = BACKGROUND * (0.55 + 0.45 * (AMBIENT + STRENGTH * TOWARDS[:, 2]))[lighting]
        picture = _greys(floor[:, None] * shade)
        picture.reshape(-1)[pixels] = _greys(lit(normals, grey, towards_eye, lighting[camera]))
        pictures[:, number] = picture
    return pictures.reshape(*lightings.shape, side, side)


def rays(cameras: Array, side: int) -> Array:
    """Directions of the rays through every pixel of every camera, (3, cameras · side²); they are 1 long along `forward`."""
    steps = ((np.arange(side) + 0.5) / side * 2 - 1) * SLOPE
    _, right, up, forward = cameras.transpose(1, 2, 0)[..., None, None]
    return (forward + steps * right - steps[:, None] * up).reshape(3, -1)


def visible(parts: list[Part], cameras: Array, directions: Array, side: int) -> tuple[Integers, Array, Array]:
    """The pixels that show the object, the unit normals (3, pixels) of its surface there, and its grey."""
    nearest = np.full(directions.shape[1], np.inf)
    normals, grey = np.empty_like(directions), np.empty_like(nearest)
    for solid in parts:
        inverse = np.linalg.inv(solid.matrix)
        camera, pixels = covered(solid, cameras, side)
        direction = inverse @ directions.take(pixels, axis=1)
        origin = (inverse @ (cameras[:, 0] - solid.place).T).take(camera, axis=1)
        far = distance(solid.shape, origin, direction)
        nearer = np.flatnonzero(far < nearest[pixels])
        pixels, far = pixels[nearer], far[nearer]
        nearest[pixels], grey[pixels] = far, solid.grey
        point = origin.take(nearer, axis=1) + far * direction.take(nearer, axis=1)
        normals[:, pixels] = inverse.T @ normal(solid.shape, point)
    pixels = np.flatnonzero(np.isfinite(nearest))
    return pixels, _unit(normals.take(pixels, axis=1)), grey[pixels]


def covered(solid: Part, cameras: Array, side: int) -> tuple[Integers, Integers]:
    """The pixels of the smallest upright rectangle around a part in each picture: their cameras, and their places among all rays."""
    corners = (solid.place[:, None] + solid.matrix @ _CORNERS) - cameras[:, 0, :, None]
    right, up, forward = (cameras[:, 1:] @ corners).swapaxes(0, 1)
    inside = []
    for along in (-up, right):
        position = (along / forward / SLOPE + 1) / 2 * side - 0.5
        # A pixel more than needed, for rounding.
        low, high = np.floor(position.min(1)) - 1, np.ceil(position.max(1)) + 1
        inside.append((low[:, None] <= np.arange(side)) & (np.arange(side) <= high[:, None]))
    rows, columns = inside
    pixels = np.flatnonzero(rows[:, :, None] & columns[:, None])
    return np.repeat(np.arange(len(cameras)), rows.sum(1) * columns.sum(1)), pixels


def floor_shade(parts: list[Part], cameras: Array, directions: Array) -> Array:
    """A soft darkening on the ground below the object, which stands on a floor of the background's colour: (cameras, side²)."""
    lowest = min(float(solid.place[2] - np.linalg.norm(solid.matrix[2])) for solid in parts)
    x, y, z = cameras[:, 0].T[..., None]
    across, along, down = directions.reshape(3, len(cameras), -1)
    far = (lowest - z) / down
    return 1 - 0.3 * np.exp(-((x + far * across) ** 2 + (y + far * along) ** 2) / 0.5)


def lit(normals: Array, grey: Array, towards_eye: Array, lighting: Integers) -> Array:
    """How bright a surface looks, each point of it under its own lighting: diffuse, with a little shine."""
    towards, strength, ambient = TOWARDS.T.take(lighting, axis=1), STRENGTH[lighting], AMBIENT[lighting]
    lambert = np.maximum(dot(normals, towards), 0)
    shine = np.maximum(dot(normals, _unit(towards + towards_eye)), 0)
    cubed = shine * shine * shine
    return grey * (ambient + strength * lambert) + strength * (0.2 * np.square(np.square(np.square(cubed))))


def _greys(brightness: Array) -> NDArray[np.uint8]:
    return np.rint(np.clip(brightness, 0, 1) * 255).astype(np.uint8)


def _unit(vectors: Array) -> Array:
    return vectors / np.sqrt(dot(vectors, vectors))

"""Where objects are seen from: smallNORB's grid of elevations, azimuths and lightings, and the two cameras of a viewpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shortcaps.data.solids.shapes import Array

ELEVATIONS, AZIMUTHS, LIGHTINGS = 9, 18, 6
BANDS = 3
DISTANCE, EYES = 6.0, math.radians(6)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Views:
    """The viewpoints that an object is shown from.

    Attributes:
        places: (viewpoints, 2), elevation and azimuth, each counted from 0.
        lightings: (viewpoints, lightings), those under which it is seen from there.
    """

    places: Integers
    lightings: Integers

    @property
    def info(self) -> Integers:
        """(views, 3): elevation, azimuth and lighting of each, as smallNORB's `info` files have them: azimuths in tens of degrees."""
        places = np.repeat(self.places * np.array([1, 2]), self.lightings.shape[1], axis=0)
        return np.concatenate([places, self.lightings.reshape(-1, 1)], 1)


def all_views(random: np.random.Generator) -> Views:
    """Every elevation, azimuth and lighting with every other: 972 views, none of them drawn."""
    places = np.indices((ELEVATIONS, AZIMUTHS)).reshape(2, -1).T
    return Views(places, np.broadcast_to(np.arange(LIGHTINGS), (len(places), LIGHTINGS)))


def drawn_views(random: np.random.Generator) -> Views:
    """A balanced part of the grid: 54 views from as many viewpoints, in the order of the elevations.

    Every elevation is seen under every lighting once, and every azimuth once in each third of the elevations. So a third of the views has
    the azimuths that experiments with novel viewpoints train on, a third has their elevations, and this does not depend on the draw.
    """
    elevations = np.repeat(np.arange(ELEVATIONS), LIGHTINGS)
    azimuths = np.concatenate([random.permutation(AZIMUTHS) for _ in range(BANDS)])
    lightings = np.concatenate([random.permutation(LIGHTINGS) for _ in range(ELEVATIONS)])
    return Views(np.stack([elevations, azimuths], 1), lightings[:, None])


@cache
def cameras(elevation: int, azimuth: int) -> Array:
    """The two cameras of a viewpoint, (2, 4, 3): position, right, up, forward."""
    lift, around = math.radians(30 + 5 * elevation), math.radians(20 * azimuth)
    result = []
    for eye in (-EYES / 2, EYES / 2):
        angle = around + eye
        forward = -np.array([math.cos(lift) * math.cos(angle), math.cos(lift) * math.sin(angle), math.sin(lift)])
        right = np.array([-math.sin(angle), math.cos(angle), 0])
        result.append(np.stack([-forward * DISTANCE, right, np.cross(right, forward), forward]))
    return np.stack(result)

"""Which objects a rendered set has, which viewpoints each is shown from, and how they are divided into files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shortcaps.data.norb import CLASS_NAMES
from shortcaps.data.solids.families import Numbers
from shortcaps.data.solids.render import SIDE, render
from shortcaps.data.solids.shapes import Part, centred
from shortcaps.data.solids.views import Views, cameras

BATCH = 9
"""Viewpoints that are rendered at a time: more would not fit into a processor's cache."""
CATEGORIES = range(len(CLASS_NAMES))
VIEWS_STREAM = 1


@dataclass(frozen=True)
class Collection:
    """A rendered set: five categories, and as many instances of each as there are numbers for them.

    Attributes:
        name: Of the data set, and of its folder in the cache.
        seed: What all numbers are drawn from, those of each object in a stream of their own. Files are named by it, so that objects
            which are built differently from now on want another.
        families: For each category, what builds an object from drawn numbers.
        training: Numbers of the instances in the `training` part, those for validation among them.
        validation: Numbers of those that validate under the default protocol.
        testing: Numbers of the instances in the `testing` part.
        views: Draws the viewpoints of an object, equally many for each.
        instances_per_file: How many are rendered before they are kept.
        side: Of the images, in pixels.
    """

    name: str
    seed: int
    families: tuple[Callable[[Numbers], list[Part]], ...]
    training: tuple[int, ...]
    validation: tuple[int, ...]
    testing: tuple[int, ...]
    views: Callable[[np.random.Generator], Views]
    instances_per_file: int
    side: int = SIDE

    def files(self, part: str) -> list[tuple[int, ...]]:
        """The instances of the `training` or `testing` part, file by file."""
        instances = {"training": self.training, "testing": self.testing}[part]
        return [instances[n : n + self.instances_per_file] for n in range(0, len(instances), self.instances_per_file)]

    def build(self, category: int, instance: int) -> list[Part]:
        """One object, inside the unit sphere."""
        random = self._stream(category, instance)
        return centred(self.families[category](lambda low, high: float(random.uniform(low, high))))

    def views_of(self, category: int, instance: int) -> Views:
        """The viewpoints that one object is shown from."""
        return self.views(self._stream(category, instance, VIEWS_STREAM))

    def pictures(self, category: int, instance: int) -> NDArray[np.uint8]:
        """One object from all its viewpoints, by both cameras: (views, 2, side, side)."""
        parts, views = self.build(category, instance), self.views_of(category, instance)
        rendered = []
        for start in range(0, len(views.places), BATCH):
            batch = slice(start, start + BATCH)
            eyes = np.concatenate([cameras(*place) for place in views.places[batch].tolist()])
            pictures = render(parts, eyes, np.repeat(views.lightings[batch], 2, axis=0), self.side)
            rendered.append(pictures.reshape(-1, 2, *pictures.shape[1:]).swapaxes(1, 2))
        return np.concatenate(rendered).reshape(-1, 2, self.side, self.side)

    def info(self, part: str) -> NDArray[np.int64]:
        """Instance, elevation, azimuth and lighting of each image of a part, (instances, views, categories, 4).

        As in smallNORB the category changes fastest, so that any run of images holds all five.
        """
        instances = [instance for file in self.files(part) for instance in file]
        views = np.array([[self.views_of(c, instance).info for c in CATEGORIES] for instance in instances])
        views = views.swapaxes(1, 2)
        numbers = np.broadcast_to(np.array(instances)[:, None, None, None], (*views.shape[:3], 1))
        return np.concatenate([numbers, views], -1)

    def _stream(self, *words: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, *words]))

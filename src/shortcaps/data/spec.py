"""The description of a data set, so that no other module needs to know it by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shortcaps.errors import DataError

if TYPE_CHECKING:
    from shortcaps.data.dataset import Dataset

_FOR_EVERY_SET = ("folder", "progress")
"""Passed by `load_dataset` to any loader that has such a parameter; all its other keyword-only parameters are options."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set that can be loaded by name.

    Attributes:
        name: The name for `load_dataset` and `shortcaps train --data`.
        label: Its name in tables and reports, e.g. `MNIST`.
        description: One line for lists and help texts, without the size of the images.
        load: Called with split and protocol and, by keyword, with its keyword-only parameters: `folder` (of published files, or None),
            `progress` (a callback with the amount done and the total) and options of its own. Returns a `Dataset`.
        image_size: Height and width of the images as a network sees them, unless options change them.
        channels: Channels of the images, unless options change them.
        bright_on_dark: Whether they show light strokes or things on black, so that a picture of ink on paper has to be inverted.
        centred_digits: Whether they show digits fitted into a box and centred by mass, as MNIST's are.
        affine_is_unseen: Whether the test asks for rotation, scaling and shear that training must not have seen, so that no
            augmentation may show them.
        notes: What a reader must know before quoting a result, one sentence each.
        stand_in_for: The set with the same structure, but other images, that this one is used in place of.
        replica_of: The set that this one regenerates from its published description; it shares that set's column in tables.
        original_is_here: Whether the published images of `replica_of` are available, so that the replica is not needed.
        leaks: For each protocol that leaks, what selection sees of the test.
    """

    name: str
    label: str
    description: str
    load: Callable[..., Dataset]
    image_size: tuple[int, int]
    channels: int = 1
    bright_on_dark: bool = False
    centred_digits: bool = False
    affine_is_unseen: bool = False
    notes: tuple[str, ...] = ()
    stand_in_for: str | None = None
    replica_of: str | None = None
    original_is_here: Callable[[], bool] = lambda: False
    leaks: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all keyword-only parameters of the loader."""
        found = inspect.signature(self.load).parameters.values()
        return tuple(parameter.name for parameter in found if parameter.kind is parameter.KEYWORD_ONLY)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of the data set, without `folder`."""
        return tuple(name for name in self.parameters if name not in _FOR_EVERY_SET)

    def check_options(self, options: Iterable[str]) -> None:
        """Raise DataError for an option that the data set does not have."""
        known = [name for name in self.parameters if name != "progress"]
        for option in options:
            if option not in known:
                near = difflib.get_close_matches(option, known, 1, 0.6)
                hint = f"did you mean {near[0]}? " if near else ""
                takes = f"it takes {', '.join(known)}" if known else "it takes none"
                raise DataError(f"the data set {self.name} has no option {option!r}: {hint}{takes}")

    def caveats(self, protocol: str) -> tuple[str, ...]:
        """What a reader must know before quoting a result under this protocol."""
        return (*self.notes, self.leaks[protocol]) if protocol in self.leaks else self.notes

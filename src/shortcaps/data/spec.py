"""What a data set says of itself, so that nobody else needs to know it by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shortcaps.errors import DataError

if TYPE_CHECKING:
    from shortcaps.data.dataset import Dataset

FOR_EVERY_SET = ("folder", "progress")
"""What `load_dataset` passes to any loader that names it; all else that a loader names is an option."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set that can be asked for by name.

    Attributes:
        name: What `load_dataset` and `shortcaps train --data` ask for.
        label: How a table or a report calls it, e.g. `MNIST`.
        description: One line for lists and help texts, without the size of the images.
        load: Called with split and protocol, and by name with whatever it has for keyword-only parameters: `folder` (where published
            files lie, or None), `progress` (called with how much is done of how much) and options of its own. Gives a `Dataset`.
        image_size: Height and width of the images as a network sees them, unless options say otherwise.
        channels: Channels of the images, unless options say otherwise.
        bright_on_dark: Whether they show light strokes or things on black, so that a picture of ink on paper has to be inverted.
        centred_digits: Whether they show digits fitted into a box and centred by mass, as MNIST's are.
        notes: What a reader must know before quoting a figure, one sentence each.
        stand_in_for: The set whose structure this one has and which it is used in place of; it is not the same images.
        replica_of: The set that this one is made anew of, by its published description; it shares that set's column in tables.
        original_is_here: Whether the published images that this replica stands for can be read, so that it need not be used.
        leaks: By protocol, what selection sees of the test; a protocol that shows nothing of it is left out.
    """

    name: str
    label: str
    description: str
    load: Callable[..., Dataset]
    image_size: tuple[int, int]
    channels: int = 1
    bright_on_dark: bool = False
    centred_digits: bool = False
    notes: tuple[str, ...] = ()
    stand_in_for: str | None = None
    replica_of: str | None = None
    original_is_here: Callable[[], bool] = lambda: False
    leaks: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Everything the loader takes by name."""
        found = inspect.signature(self.load).parameters.values()
        return tuple(parameter.name for parameter in found if parameter.kind is parameter.KEYWORD_ONLY)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options it takes, beside `folder`."""
        return tuple(name for name in self.parameters if name not in FOR_EVERY_SET)

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
        """What a reader must know before quoting a figure under this protocol."""
        return (*self.notes, self.leaks[protocol]) if protocol in self.leaks else self.notes

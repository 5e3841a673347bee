"""The cells of Table 1 by name, and those beside it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from shortcaps.data import DATASETS
from shortcaps.errors import RunError
from shortcaps.reproduce import published
from shortcaps.runs.config import TrainConfig

COMPARED = ("cnn-23k", "cnn-68k", "sabour")
"""Networks without pose capsules, or of another kind, that the paper's are compared with."""

OPPONENTS = {
    ("baseline", "shortcut"): "cnn-23k",
    ("baseline", "sequential"): "cnn-68k",
    ("expanded", "shortcut"): "cnn-68k",
}
"""The plain CNN of the nearest size. Without shortcut the baseline network has 89k parameters, and the expanded one, 378k, no opponent."""

DYNAMIC_IS_ATTENTION = "Dynamic routing of two iterations from scratch is attention routing, since the scores that it adds to begin at zero: the two have the same figures."
"""A note where routing starts from scratch: in compact networks, and in the paper's without shortcut."""


@dataclass(frozen=True)
class Cell:
    """One network on one data set; routing and family are None for networks that have none."""

    network: str
    family: str | None
    routing: str | None
    dataset: str

    @property
    def name(self) -> str:
        """The name of the cell, e.g. `baseline/shortcut/fuzzy/mnist`."""
        return "/".join(part for part in (self.network, self.family, self.routing, self.dataset) if part)

    @property
    def published(self) -> float | None:
        """The paper's accuracy in percent."""
        return published.ACCURACY.get((self.network, self.family or "", self.routing or "", self.dataset))

    def config(self, **settings: Any) -> TrainConfig:
        """The config that trains this cell, with further settings by their names on the command line."""
        own: dict[str, Any] = {"data": self.dataset, "model": self.network}
        if self.routing is not None:
            own |= {"routing": self.routing, "shortcut": self.family != "sequential"}
        return TrainConfig.of(**own, **settings)


PAPER_CELLS = tuple(
    Cell(network, family, routing, dataset)
    for network in published.NETWORKS
    for family in published.FAMILIES
    for routing in published.ROUTINGS
    for dataset in published.DATASETS
)


def columns() -> tuple[str, ...]:
    """The paper's data sets, followed by those that stand in for one of them, for which the paper has no figures."""
    stand_ins = (name for name, spec in DATASETS.items() if spec.stand_in_for in published.DATASETS)
    return (*published.DATASETS, *stand_ins)


def all_cells() -> tuple[Cell, ...]:
    """Every network on every data set: the paper's cells, those of stand-ins, and those of networks to compare with."""
    stand_ins = tuple(
        Cell(network, family, routing, dataset)
        for network in published.NETWORKS
        for family in published.FAMILIES
        for routing in published.ROUTINGS
        for dataset in columns()
        if dataset not in published.DATASETS
    )
    compared = tuple(Cell(network, None, None, dataset) for network in COMPARED for dataset in columns())
    return (*PAPER_CELLS, *stand_ins, *compared)


def choose_cells(words: str, cells: Iterable[Cell]) -> list[Cell]:
    """Cells by names or patterns (`baseline/*/fuzzy/mnist`), separated by commas.

    Args:
        words: Names or patterns.
        cells: Those there are.

    Raises:
        RunError: A word names none of them.
    """
    every = {cell.name: cell for cell in cells}
    example = next(iter(every))
    chosen: dict[str, Cell] = {}
    for word in filter(None, (word.strip() for word in words.split(","))):
        found = [name for name in every if fnmatchcase(name, word)]
        if not found:
            near = difflib.get_close_matches(word, every, 3, 0.5)
            raise RunError(
                f"no cell is called {word!r}: "
                + (f"did you mean {' or '.join(near)}?" if near else f"a name is like {example}")
            )
        chosen |= {name: every[name] for name in found}
    if not chosen:
        raise RunError(f"--cells {words!r} names no cell: a name is like {example}")
    return list(chosen.values())

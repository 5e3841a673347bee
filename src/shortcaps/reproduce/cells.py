"""The cells of Table 1 by name, and those beside it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shortcaps.errors import RunError
from shortcaps.reproduce import published
from shortcaps.runs.config import TrainConfig

COMPARED = ("cnn-23k", "cnn-68k", "sabour")
"""Networks without pose capsules, or of another kind, that the paper's are compared with."""
STAND_IN = "solids"
"""Rendered objects with smallNORB's structure, which needs no download. It has no column in the paper."""


@dataclass(frozen=True)
class Cell:
    """One network on one data set; routing and family are None for networks that have none."""

    network: str
    family: str | None
    routing: str | None
    dataset: str

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.network, self.family, self.routing, self.dataset) if part)

    @property
    def published(self) -> float | None:
        """The paper's accuracy in percent."""
        return published.ACCURACY.get((self.network, self.family or "", self.routing or "", self.dataset))

    def config(
        self, *, seed: int, recipe: str, protocol: str, epochs: int | None, most_images: int | None
    ) -> TrainConfig:
        return TrainConfig(
            data=self.dataset,
            model=self.network,
            recipe=recipe,
            protocol=protocol,
            epochs=epochs,
            seed=seed,
            most_images=most_images,
            routing=self.routing or TrainConfig.routing,
            shortcut=self.family != "sequential",
        )


PAPER_CELLS = tuple(
    Cell(network, family, routing, dataset)
    for network in published.NETWORKS
    for family in published.FAMILIES
    for routing in published.ROUTINGS
    for dataset in published.DATASETS
)
OTHER_CELLS = tuple(
    Cell(network, family, routing, STAND_IN)
    for network in published.NETWORKS
    for family in published.FAMILIES
    for routing in published.ROUTINGS
) + tuple(Cell(network, None, None, dataset) for network in COMPARED for dataset in (*published.DATASETS, STAND_IN))


def choose_cells(words: str | None) -> list[Cell]:
    """Cells by names or patterns (`baseline/*/fuzzy/mnist`), separated by commas; without any, the paper's 48."""
    if words is None:
        return list(PAPER_CELLS)
    every = {cell.name: cell for cell in (*PAPER_CELLS, *OTHER_CELLS)}
    chosen: dict[str, Cell] = {}
    for word in filter(None, (word.strip() for word in words.split(","))):
        found = [name for name in every if fnmatchcase(name, word)]
        if not found:
            near = difflib.get_close_matches(word, every, 3, 0.5)
            raise RunError(
                f"no cell is called {word!r}: "
                + (f"did you mean {' or '.join(near)}?" if near else "a name is like baseline/shortcut/fuzzy/mnist")
            )
        chosen |= {name: every[name] for name in found}
    if not chosen:
        raise RunError(f"--cells {words!r} names no cell: a name is like baseline/shortcut/fuzzy/mnist")
    return list(chosen.values())

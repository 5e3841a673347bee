"""The rendered sets by name: `solids`, and `solids-small` with as few objects as smallNORB."""

from __future__ import annotations

from pathlib import Path

from shortcaps.data.dataset import Dataset
from shortcaps.data.norb import (
    CROP,
    PROTOCOL_LEAKS,
    TEST_INSTANCES,
    TRAINING_INSTANCES,
    VALIDATION_INSTANCES,
    NorbFiles,
    norb_dataset,
    part_of,
    register_viewpoints,
)
from shortcaps.data.registry import Progress, register_dataset
from shortcaps.data.solids.collection import Collection
from shortcaps.data.solids.families import FAMILIES, SMALL_FAMILIES
from shortcaps.data.solids.store import read_part
from shortcaps.data.solids.views import all_views, drawn_views

LABEL, SMALL_LABEL = "solids (rendered)", "solids-small (rendered)"

SOLIDS = Collection(
    name="solids",
    seed=2026,
    families=FAMILIES,
    testing=tuple(range(100)),
    training=tuple(range(100, 225)),
    validation=tuple(range(200, 225)),
    views=drawn_views,
    instances_per_file=5,
)
SOLIDS_SMALL = Collection(
    name="solids-small",
    seed=2021,
    families=SMALL_FAMILIES,
    testing=TEST_INSTANCES,
    training=TRAINING_INSTANCES,
    validation=VALIDATION_INSTANCES,
    views=all_views,
    instances_per_file=1,
)


def read_solids(part: str, folder: Path | None, progress: Progress) -> NorbFiles:
    """The `training` or `testing` part of `solids`, rendered first where it is not there or is damaged."""
    return read_part(SOLIDS, part, folder, progress)


def read_solids_small(part: str, folder: Path | None, progress: Progress) -> NorbFiles:
    """The same of `solids-small`."""
    return read_part(SOLIDS_SMALL, part, folder, progress)


@register_dataset(
    "solids",
    description="rendered objects with smallnorb's structure but more of them, which need no download",
    image_size=CROP,
    notes=("solids are rendered objects, not smallNORB.",),
    stand_in_for="smallnorb",
    leaks=PROTOCOL_LEAKS,
)
def load_solids(
    split: str, protocol: str, *, folder: Path | None = None, progress: Progress, camera: str = "left"
) -> Dataset:
    """Trained on 500 objects, selected on 125, tested on 500 others, each from 54 of smallNORB's viewpoints."""
    files = read_solids(part_of(split, protocol), folder, progress)
    return norb_dataset("solids", LABEL, split, protocol, files, camera=camera)


@register_dataset(
    "solids-small",
    description="the rendered objects of earlier versions, as few as smallnorb's",
    image_size=CROP,
    notes=("solids-small are rendered objects, not smallNORB.",),
    stand_in_for="smallnorb",
    leaks=PROTOCOL_LEAKS,
)
def load_solids_small(
    split: str, protocol: str, *, folder: Path | None = None, progress: Progress, camera: str = "left"
) -> Dataset:
    """All viewpoints; trained on one half of the 50 objects, tested on the other."""
    files = read_solids_small(part_of(split, protocol), folder, progress)
    return norb_dataset("solids-small", SMALL_LABEL, split, protocol, files, camera=camera)


register_viewpoints("solids", LABEL, read_solids)
register_viewpoints("solids-small", SMALL_LABEL, read_solids_small)

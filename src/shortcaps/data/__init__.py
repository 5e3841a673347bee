"""Data sets by name, or a folder of your own: `load("mnist", "train")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shortcaps.data.affnist import load_affnist
from shortcaps.data.augment import View
from shortcaps.data.cache import cache_folder
from shortcaps.data.dataset import PROTOCOLS, SPLITS, Dataset, check_split_and_protocol, sample_images
from shortcaps.data.folder import FolderSettings, load_folder
from shortcaps.data.mnist import FASHION_MNIST, MNIST, load_idx
from shortcaps.data.norb import norb_dataset
from shortcaps.data.smallnorb import read_smallnorb
from shortcaps.data.solids import read_solids
from shortcaps.errors import DataError

__all__ = [
    "DATASETS",
    "PROTOCOLS",
    "SPLITS",
    "DataError",
    "Dataset",
    "View",
    "cache_folder",
    "load",
    "options_of",
    "sample_images",
]

DATASETS = {
    "mnist": "handwritten digits, 28x28",
    "fashion-mnist": "pieces of clothing, 28x28",
    "affnist": "trained on shifted digits, tested on affinely transformed ones, 40x40",
    "smallnorb": "toys from many viewpoints, 48x48, cropped to 32x32",
    "smallnorb-azimuth": "smallnorb, trained on a third of the azimuths, tested on the others",
    "smallnorb-elevation": "smallnorb, trained on a third of the elevations, tested on the others",
    "solids": "rendered objects with smallnorb's structure; needs no download",
    "solids-azimuth": "solids, trained on a third of the azimuths, tested on the others",
    "solids-elevation": "solids, trained on a third of the elevations, tested on the others",
}

FOLDER_OPTIONS = ("image_size", "colour", "skip_broken")
NORB_OPTIONS = ("camera", "viewpoints")


def load(
    name: str | Path,
    split: str = "train",
    protocol: str = "default",
    *,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **options: Any,
) -> Dataset:
    """A split of a data set, fetched and checked first where that is needed.

    name: one of `DATASETS`, or the path of a folder with class folders
    split: `train`, `validation` or `test`
    protocol: `default` shows training and selection no rotation, scaling, shear or object of the test; `paper` is the authors'
    folder: where the published files of a named set already lie
    progress: called with (done, of) while a set is rendered
    options: for a folder of your own `image_size`, `colour`, `skip_broken`; for smallnorb and solids `camera`
        (`left`, `right`, `stereo`) and `viewpoints` (`novel`, `familiar`)
    """
    check_split_and_protocol(split, protocol)
    place = Path(folder).expanduser() if folder is not None else None
    if place is not None and not place.is_dir():
        raise DataError(f"{place} is not a folder")
    name = str(name)
    if name not in DATASETS and not Path(name).expanduser().is_dir():
        raise DataError(f"unknown data set {name!r}: choose one of {', '.join(DATASETS)}, or give the path of a folder")
    _refuse(options, name)
    if name in ("mnist", "fashion-mnist"):
        return load_idx(MNIST if name == "mnist" else FASHION_MNIST, split, protocol, place)
    if name == "affnist":
        return load_affnist(split, protocol, place)
    if name in DATASETS:
        base, _, viewpoint = name.partition("-")
        part = "testing" if split == "test" or (split == "validation" and protocol == "paper") else "training"
        files = read_smallnorb(part, place) if base == "smallnorb" else read_solids(part, place, progress)
        label = "smallNORB" if base == "smallnorb" else "solids (rendered)"
        return norb_dataset(name, label, split, protocol, {part: files}, viewpoint=viewpoint or None, **options)
    return load_folder(Path(name).expanduser(), split, protocol, FolderSettings(**options))


def options_of(name: str) -> tuple[str, ...]:
    """The options that `load` takes for a data set, beside `folder`."""
    if name not in DATASETS:
        return FOLDER_OPTIONS
    return NORB_OPTIONS if name.startswith(("smallnorb", "solids")) else ()


def _refuse(options: dict[str, Any], name: str) -> None:
    known = options_of(name)
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise DataError(f"the data set {name} has no option {option!r}: {takes}")

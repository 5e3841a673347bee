"""Data sets of one's own: listed, divided, checked, and decoded at once or as needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shortcaps.data.augment import Shift, View
from shortcaps.data.dataset import Dataset
from shortcaps.data.decode import DEFAULT_FIT, check_fit
from shortcaps.data.lazy import Cache, LazyImages
from shortcaps.data.own.arrow import has_parquet, is_arrow_folder, list_arrow, refuse_parquet
from shortcaps.data.own.divide import NO_CONTENTS, divide
from shortcaps.data.own.folder import list_folder
from shortcaps.data.own.pictures import Listing
from shortcaps.data.own.reader import PictureReader
from shortcaps.data.own.table import is_table, list_table
from shortcaps.data.spec import DatasetSpec
from shortcaps.errors import DataError
from shortcaps.progress import Pace

log = logging.getLogger(__name__)

IMAGE_SIZE = 28
IMAGE_MEMORY = 512
"""Megabytes of decoded images, of all splits together, that are kept in memory unless the user wants another number."""
_READ_AT_ONCE = 256
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Layout:
    """A way to arrange pictures of one's own.

    Attributes:
        description: One line for lists.
        recognises: Whether this is such a path.
        list: The pictures there; takes the path and what to group by.
    """

    description: str
    recognises: Callable[[Path], bool]
    list: Callable[[Path, str | None], Listing]


LAYOUTS = (
    Layout("a table of your own", is_table, list_table),
    Layout("a folder of Hugging Face `datasets`", is_arrow_folder, list_arrow),
    Layout("a folder of Parquet files", has_parquet, refuse_parquet),
    Layout("a folder of your own", lambda path: True, list_folder),
)
"""The first that recognises a path is taken."""


@dataclass(frozen=True)
class Options:
    """How pictures become a data set.

    Attributes:
        image_size: Side that every picture gets.
        colour: Keep three channels; otherwise one, grey.
        fit: How a picture that is not square gets there, one of `decode.FITS`.
        skip_broken: Leave out what cannot be read, instead of refusing everything.
        group_by: What pictures of one thing have in common: a column of a table, or a regular expression for a path.
        image_memory: Megabytes of decoded images that are kept in memory; if all splits have more, they are decoded as needed.
    """

    image_size: int = IMAGE_SIZE
    colour: bool = False
    fit: str = DEFAULT_FIT
    skip_broken: bool = False
    group_by: str | None = None
    image_memory: int = IMAGE_MEMORY


def is_own(path: Path) -> bool:
    """Whether there may be images of one's own at a path: it is a folder or a table."""
    return path.is_dir() or (path.is_file() and is_table(path))


def count_pictures(path: Path) -> int | None:
    """How many pictures there are at a path, of all splits; None if there is nothing of one's own."""
    if not is_own(path):
        return None
    return len(_layout_of(path).list(path, None).pictures)


def _layout_of(path: Path) -> Layout:
    return next(layout for layout in LAYOUTS if layout.recognises(path))


def own_spec(path: Path) -> DatasetSpec:
    """A folder or table as a data set: nothing is known of its images but what they are made into."""
    layout = _layout_of(path)

    def load(
        split: str,
        protocol: str,
        *,
        image_size: int = IMAGE_SIZE,
        colour: bool = False,
        fit: str = DEFAULT_FIT,
        skip_broken: bool = False,
        group_by: str | None = None,
        image_memory: int = IMAGE_MEMORY,
    ) -> Dataset:
        check_fit(fit)
        options = Options(image_size, colour, fit, skip_broken, group_by, image_memory)
        return _OwnImages(path, layout.list(path, group_by), options).load(split, protocol)

    return DatasetSpec(str(path), path.resolve().name, layout.description, load, (IMAGE_SIZE, IMAGE_SIZE))


class _OwnImages:
    """The pictures of a listing on their way to a data set.

    Args:
        path: What the user calls the data set.
        listing: The pictures.
        options: How they are read.
    """

    def __init__(self, path: Path, listing: Listing, options: Options) -> None:
        self.path, self.listing, self.options = path, listing, options
        self.parts = divide(listing, self.digest)

    def digest(self, number: int) -> bytes:
        """The digest of a picture's contents, or `NO_CONTENTS`."""
        try:
            return self.listing.pictures.sha256(number)
        except OSError:
            return NO_CONTENTS

    def load(self, split: str, protocol: str) -> Dataset:
        """A split, of what can be read."""
        if split == "train":
            for line in self.listing.left_out:
                log.warning("not used, as these are no pictures that can be read here: %s", line)
        listing, options = self.listing, self.options
        digests = {n: self.digest(n) for n in self.parts[split]}
        reader = self.reader(self.parts[split])
        size = int(np.prod(reader.shape))
        total = sum(map(len, self.parts.values()))
        room = options.image_memory * 10**6
        images: torch.Tensor | LazyImages
        if size * total <= room:
            images = torch.empty(len(reader), *reader.shape, dtype=torch.uint8)
            problems = _read_all(reader, range(len(reader)), images.numpy())
            kept = [place for place in range(len(reader)) if place not in problems]
            images = images[torch.tensor(kept, dtype=torch.int64)] if problems else images
        else:
            if split == "train":
                log.info(
                    "%s: %s images take %s MB decoded and are decoded as needed, %s MB of them kept (--image-memory)",
                    self.path,
                    f"{total:,}",
                    f"{size * total / 1e6:,.0f}",
                    options.image_memory,
                )
            cache = Cache(int(room / (size * total) * len(reader)), reader.shape)
            problems = self.check(reader, cache)
            kept = [place for place in range(len(reader)) if place not in problems]
            images = LazyImages(reader, np.array(kept, np.int64), cache)
        self.report(split, reader, problems)
        listing.pictures.remember()
        numbers = [self.parts[split][place] for place in kept]
        labels = torch.tensor([listing.labels[n] for n in numbers], dtype=torch.int64)
        present = set(labels.tolist())
        gone = [name for label, name in enumerate(listing.class_names) if label not in present]
        if gone:
            raise DataError(f"{self.path}: no usable image is left for {', '.join(gone)}")
        hashes = np.frombuffer(b"".join(digests[n] or bytes(32) for n in numbers), np.uint8).reshape(-1, 32).copy()
        return Dataset(
            str(self.path),
            self.path.resolve().name,
            split,
            protocol,
            images,
            labels,
            listing.class_names,
            augment=View((Shift(max(1, options.image_size // 14)),)),
            originals=self.originals(numbers),
            hashes=torch.from_numpy(hashes),
            fit=options.fit,
        )

    def reader(self, numbers: Sequence[int]) -> PictureReader:
        """What decodes some of the pictures."""
        options = self.options
        return PictureReader(self.listing.pictures, numbers, options.image_size, options.colour, options.fit)

    def originals(self, numbers: Iterable[int]) -> torch.Tensor | None:
        """What each picture shows, as a number, if that is known."""
        if not self.listing.groups:
            return None
        number_of: dict[str, int] = {}
        return torch.tensor([number_of.setdefault(self.listing.groups[n], len(number_of)) for n in numbers])

    def check(self, reader: PictureReader, cache: Cache | None = None) -> dict[int, str]:
        """Why pictures cannot be read, by place: each is decoded, unless that was done at an earlier start."""
        pictures = self.listing.pictures
        unknown = [place for place, n in enumerate(reader.numbers) if not pictures.is_checked(n)]
        problems = _read_all(reader, unknown, None, cache)
        for place in unknown:
            if place not in problems:
                pictures.mark_checked(reader.numbers[place])
        return problems

    def report(self, split: str, reader: PictureReader, problems: Mapping[int, str]) -> None:
        """Name the pictures that cannot be read: those of all splits, if they are not to be skipped.

        Raises:
            DataError: There are some, and they are not to be skipped.
        """
        if not problems:
            return
        lines = [f"{reader.name(place)}: {reason}" for place, reason in problems.items()]
        if self.options.skip_broken:
            listed = "; ".join(lines[:_SHOWN_PROBLEMS]) + ("; …" if len(lines) > _SHOWN_PROBLEMS else "")
            what, were = ("image", "was") if len(lines) == 1 else ("images", "were")
            log.warning("%s %s of %s (%s) %s left out: %s", len(lines), what, self.path, split, were, listed)
            return
        for other, numbers in self.parts.items():
            if other != split:
                others = self.reader(numbers)
                lines += [f"{others.name(place)}: {reason}" for place, reason in self.check(others).items()]
        total = sum(map(len, self.parts.values()))
        listed = "".join(f"\n  - {line}" for line in lines[:_SHOWN_PROBLEMS])
        more = f"\n  … and {len(lines) - _SHOWN_PROBLEMS} more" if len(lines) > _SHOWN_PROBLEMS else ""
        raise DataError(
            f"{len(lines)} of {total} images cannot be used; remove them or use --skip-broken:{listed}{more}"
        )


def _read_all(
    reader: PictureReader, which: Sequence[int], pixels: np.ndarray | None, cache: Cache | None = None
) -> dict[int, str]:
    """Decode pictures a few at a time.

    Args:
        reader: Decodes them.
        which: Their places.
        pixels: Where all of them are written to; None where they are only tried.
        cache: Where those that could be read are kept.

    Returns:
        Why others could not, by place.
    """
    problems: dict[int, str] = {}
    pace = Pace()
    spare = np.empty((min(_READ_AT_ONCE, len(which)), *reader.shape), np.uint8) if pixels is None else pixels
    for first in range(0, len(which), _READ_AT_ONCE):
        part = which[first : first + _READ_AT_ONCE]
        target = spare[: len(part)] if pixels is None else pixels[first : first + len(part)]
        if (left := pace.left(first, len(which))) is not None:
            log.info("%s of %s images read, %s", f"{first:,}", f"{len(which):,}", left)
        found = reader.read(part, target)
        problems |= {part[place]: reason for place, reason in found.items()}
        if cache is not None:
            good = np.array([place for place in range(len(part)) if place not in found], np.int64)
            cache.put(np.asarray(part)[good], target[good])
    return problems

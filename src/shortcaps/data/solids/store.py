"""Rendered files in the cache: rendered where they are missing, each kept as soon as it is there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shortcaps.data.cache import cache_folder, has_checksum, only_one_process, read_checked, write_checksum
from shortcaps.data.norb import NorbFiles, matrix_header, parse_matrix
from shortcaps.data.registry import Progress
from shortcaps.data.solids.collection import CATEGORIES, Collection
from shortcaps.files import atomic_write
from shortcaps.progress import Pace

log = logging.getLogger(__name__)

Images = NDArray[np.uint8]


def file_paths(collection: Collection, part: str, folder: Path | None = None) -> dict[tuple[int, ...], Path]:
    """Where the files of a part belong, by the instances that each holds."""
    place = folder or cache_folder() / collection.name
    return {
        instances: place / f"{collection.name}-{collection.seed}-{part}-{instances[0]:03}-{instances[-1]:03}-dat.mat"
        for instances in collection.files(part)
    }


def read_part(collection: Collection, part: str, folder: Path | None, progress: Progress) -> NorbFiles:
    """The `training` or `testing` part of a set. Files that are missing or damaged are rendered first.

    Args:
        collection: The set.
        part: `training` or `testing`.
        folder: Where its files are kept, if not in the cache.
        progress: Called with (done, of) after each object that had to be rendered.
    """
    paths = file_paths(collection, part, folder)
    info = collection.info(part)
    images = np.empty((*info.shape[:3], 2, collection.side, collection.side), np.uint8)
    places = dict(zip(paths, np.split(images, np.cumsum([len(file) for file in paths])[:-1]), strict=True))
    with only_one_process(next(iter(paths.values())).parent):
        missing = {instances: path for instances, path in paths.items() if not _read(path, places[instances])}
        if missing:
            for instances, rendered in _render(collection, part, missing, progress):
                places[instances][:] = rendered
    categories = np.broadcast_to(np.arange(len(CATEGORIES)), info.shape[:3])
    return NorbFiles(
        torch.from_numpy(images).flatten(0, 2),
        torch.from_numpy(categories.flatten()),
        torch.from_numpy(info).flatten(0, 2),
        validation=collection.validation,
    )


def _read(path: Path, target: Images) -> bool:
    """Fill the target from a file, if it is there and whole."""
    data = read_checked(path)
    if data is not None:
        target[:] = parse_matrix(data, path.name).reshape(target.shape)
        return True
    # Rendering that was cut short may have left a file without its checksum, but not one that differs from it.
    if has_checksum(path):
        log.warning("%s is damaged: rendering it again", path)
    return False


def _render(
    collection: Collection, part: str, missing: dict[tuple[int, ...], Path], progress: Progress
) -> Iterator[tuple[tuple[int, ...], Images]]:
    """Render files and write them; gives the images of each, (instances, views, categories, 2, side, side)."""
    objects = sum(map(len, missing)) * len(CATEGORIES)
    there = (sum(map(len, collection.files(part))) * len(CATEGORIES)) - objects
    kept = f", {there:,} are there already" if there else ""
    log.info("rendering %s (%s): %s objects%s", collection.name, part, f"{objects:,}", kept)
    pace = Pace()
    done = 0
    # numpy lets go of the interpreter while it computes, so threads share the work.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for instances, path in missing.items():
            wanted = [(category, instance) for instance in instances for category in CATEGORIES]
            pictures = []
            for rendered in pool.map(lambda which: collection.pictures(*which), wanted):
                pictures.append(rendered)
                done += 1
                progress(done, objects)
                if (left := pace.left(done, objects)) is not None:
                    log.info(
                        "rendering %s (%s): %s of %s objects, %s",
                        collection.name,
                        part,
                        f"{done:,}",
                        f"{objects:,}",
                        left,
                    )
            by_category = np.stack(pictures).reshape(len(instances), len(CATEGORIES), *pictures[0].shape)
            images = by_category.swapaxes(1, 2)
            _write(path, images.reshape(-1, *images.shape[3:]))
            yield instances, images


def _write(path: Path, images: Images) -> None:
    with atomic_write(path) as file:
        file.write(matrix_header(images.shape, images.dtype) + images.tobytes())
    write_checksum(path)

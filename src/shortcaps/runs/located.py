"""The data of a run, wherever it is now: a run may be used from another directory or on another machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shortcaps.data import DATASETS
from shortcaps.errors import DataError
from shortcaps.runs.config import DataConfig
from shortcaps.runs.manifest import Manifest

_PATHS = ("name", "folder")
"""The fields of `DataConfig` that may be paths."""


def absolute_paths(data: DataConfig) -> dict[str, str]:
    """Where the files and folders that a config names are, by field; nothing for a registered data set in the cache."""
    found = {}
    for field in _PATHS:
        value = getattr(data, field)
        if value is not None and not (field == "name" and value in DATASETS):
            path = Path(value).expanduser()
            if path.exists():
                found[field] = str(path.resolve())
    return found


def locate_data(manifest: Manifest, data: str | None = None) -> DataConfig:
    """The data of a run: where it was, or else by the same relative path from here.

    Args:
        manifest: Of the run.
        data: Where it is now, if the user says so; or other data, to be shown to the network as its own.

    Raises:
        DataError: It is nowhere, or nothing says what it is.
    """
    stored = _as_trained(manifest, data)
    if data is not None:
        known = [place for place in (stored.folder, manifest.data.paths.get("folder")) if place is not None]
        folder = next((place for place in known if Path(place).expanduser().exists()), None)
        return replace(stored, name=data, folder=folder)
    if not manifest.was_trained_here:
        raise DataError("the network was trained in Python and saved: nothing says on which images; give --data")
    if manifest.data.in_memory:
        raise DataError(
            f"the images ({manifest.data.label}) were given in Python, and cannot be loaded by name: give --data"
        )
    changes: dict[str, Any] = {}
    for field in manifest.data.paths.keys() & set(_PATHS):
        before, named = manifest.data.paths[field], getattr(stored, field)
        if Path(before).exists():
            changes[field] = before
        elif named is None or not Path(named).expanduser().exists():
            way_out = "say where it is now with --data"
            if field == "folder":
                way_out = f"put it back, or give --data {stored.name} to take the files from the cache"
            raise DataError(f"{before} is no longer there, nor is {named} here: {way_out}")
    return replace(stored, **changes)


def is_data_of(manifest: Manifest, data: str) -> bool:
    """Whether this names the data that a run was trained on: the same set, or the same folder or table, however it is written."""
    if not manifest.was_trained_here or manifest.data.in_memory:
        return False
    named = manifest.train.data.name
    if data in DATASETS or named in DATASETS:
        return data == named
    return Path(data).expanduser().resolve() == Path(manifest.data.paths.get("name", named)).expanduser().resolve()


def _as_trained(manifest: Manifest, data: str | None) -> DataConfig:
    """The data as the config has it; for images that were given in Python, and for others than a set by name, a folder of such images."""
    if manifest.was_trained_here and not manifest.data.in_memory:
        stored = manifest.train.data
        if data is None or data in DATASETS or stored.name not in DATASETS:
            return stored
    if data in DATASETS:
        return DataConfig()
    return DataConfig(**shown_alike(manifest))


def shown_alike(manifest: Manifest) -> dict[str, Any]:
    """The settings by which pictures in a folder become images like those that a network was trained on."""
    height, width = manifest.data.stored_size
    size = height if height == width else None
    return {"image_size": size, "colour": manifest.network.get("channels") == 3, "fit": manifest.data.fit}

"""What a study measures of one network, and the files that keep it: numbers as JSON, a score for each image beside them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.files import atomic_write, read_json, write_json

NEEDED = ("study", "network", "seed", "part", "quick", "values", "units", "run")


@dataclass(frozen=True)
class Scores:
    """One number for each image, whose mean is a statistic of the network.

    An accuracy is the mean of right (1) and wrong (0); statistics that are no means by nature have scores that are (`statistics.py`). So one
    rule gives every paired interval.

    Attributes:
        values: (images,).
        originals: (images,), which digit or object each image shows; None where each shows another.
    """

    values: Tensor
    originals: Tensor | None = None

    @property
    def mean(self) -> float:
        """The statistic."""
        return float(self.values.double().mean())


@dataclass(frozen=True)
class Measured:
    """What was measured of one network.

    Attributes:
        scores: By name.
        values: Further numbers by name, for plots, tables and sentences.
        images: Identifies the images, so that only networks that were shown the same are compared; see `identify`.
    """

    scores: Mapping[str, Scores]
    values: Mapping[str, float]
    images: str


def identify(*parts: Tensor | str) -> str:
    """A SHA-256 of what networks were shown.

    Args:
        *parts: Images; and in words what was done to them, where the result may differ in a last bit from machine to machine.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
        else:
            digest.update(repr(tuple(part.shape)).encode())
            digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Measurement:
    """A stored measurement.

    Attributes:
        record: The contents of its JSON file.
        scores: By name.
    """

    record: dict[str, Any]
    scores: Mapping[str, Scores]

    @property
    def network(self) -> str:
        """Name of the network."""
        return str(self.record["network"])

    @property
    def seed(self) -> int:
        """Seed of its run."""
        return int(self.record["seed"])

    @property
    def part(self) -> str:
        """The part of the study."""
        return str(self.record["part"])

    @property
    def values(self) -> dict[str, float]:
        """Every number that was measured, by name; the means of the scores too."""
        return {**{name: scores.mean for name, scores in self.scores.items()}, **self.record["values"]}


def file_name(network: str, part: str, seed: int) -> str:
    """The name of a measurement's files, without suffix."""
    return "-".join(word for word in (network.replace("/", "-"), part, f"seed{seed}") if word)


def write_measurement(folder: Path, record: Mapping[str, Any], measured: Measured) -> Measurement:
    """Write a measurement: the scores first, so that a record is never without them.

    Args:
        folder: Of the study.
        record: What is known besides: study, network, seed, part, quick, run and versions.
        measured: What was measured.
    """
    arrays: dict[str, Any] = {}
    clusters: list[Tensor] = []
    units: dict[str, int | None] = {}
    for name, scores in measured.scores.items():
        arrays[f"score {name}"] = _small(scores.values)
        units[name] = None if scores.originals is None else _place(clusters, scores.originals)
    for number, originals in enumerate(clusters):
        arrays[f"originals {number}"] = _small(originals)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    name = file_name(record["network"], record["part"], record["seed"])
    with atomic_write(folder / f"{name}.npz") as stream:
        stream.write(content.getvalue())
    whole = {**record, "images": measured.images, "values": dict(measured.values), "units": units}
    write_json(folder / f"{name}.json", whole)
    return Measurement(whole, measured.scores)


def _place(clusters: list[Tensor], originals: Tensor) -> int:
    """The place of a tensor among those stored, where it is put if it is not there."""
    for number, known in enumerate(clusters):
        if torch.equal(known, originals):
            return number
    clusters.append(originals)
    return len(clusters) - 1


def _small(values: Tensor) -> np.ndarray:
    """The same numbers in a small type: right and wrong as bytes, whole numbers as they need, others in single precision."""
    if values.is_floating_point():
        whole = bool((values == values.round()).all()) and bool((values >= 0).all())
        array = values.double().numpy()
        return array.astype(np.min_scalar_type(int(array.max(initial=0)))) if whole else array.astype(np.float32)
    return values.to(torch.int64).numpy().astype(np.min_scalar_type(int(values.max()) if values.numel() else 0))


def read_measurement(file: Path) -> Measurement:
    """Read a measurement by its JSON file.

    Raises:
        RunError: It is damaged, or its scores are missing.
    """
    try:
        record = read_json(file)
        if not isinstance(record, dict) or any(name not in record for name in NEEDED):
            raise ValueError("it is not the record of a measurement")
        with np.load(file.with_suffix(".npz"), allow_pickle=False) as stored:
            tensors = {name: torch.from_numpy(stored[name].astype(np.float64)) for name in stored.files}
        scores = {
            name: Scores(tensors[f"score {name}"], None if place is None else tensors[f"originals {place}"].long())
            for name, place in record["units"].items()
        }
    # Zip files and NumPy raise what they like on damaged files.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunError(f"{file} cannot be read as a measurement: {reason}; move it away to measure again") from error
    return Measurement(record, scores)


def read_measurements(folder: Path) -> list[Measurement]:
    """All measurements of a study, in the order of their names."""
    return [read_measurement(file) for file in sorted(folder.glob("*-seed*.json"))]

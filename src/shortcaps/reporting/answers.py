"""A network's answers to a test set, kept so that networks can be compared image by image after their runs are gone."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shortcaps.errors import RunError
from shortcaps.files import atomic_write, open_file

_MAX_BYTES = 2**30
"""Of one array, unpacked: answers to some hundred million images."""


@dataclass(frozen=True)
class StoredAnswers:
    """What a network answered.

    Attributes:
        predicted: (images,), the class it named.
        labels: (images,), the right class.
        originals: (images,), which digit or object each image shows; None where each shows another.
    """

    predicted: Tensor
    labels: Tensor
    originals: Tensor | None = None

    @property
    def right(self) -> Tensor:
        """(images,), whether each answer was right."""
        return self.predicted == self.labels

    def write(self, file: Path) -> None:
        """Write a compressed NumPy file, whole or not at all."""
        arrays = {"predicted": self.predicted, "labels": self.labels}
        if self.originals is not None:
            arrays["originals"] = self.originals
        content = io.BytesIO()
        small: dict[str, Any] = {name: _small(tensor.numpy()) for name, tensor in arrays.items()}
        np.savez_compressed(content, **small)
        with atomic_write(file) as stream:
            stream.write(content.getvalue())

    @classmethod
    def read(cls, file: Path) -> StoredAnswers:
        """Read what `write` has written.

        Raises:
            RunError: The file is missing, damaged or holds something else.
        """
        try:
            # Of a file that it opened itself and cannot read, NumPy leaves the descriptor to the garbage collector.
            with open_file(file) as stream, zipfile.ZipFile(stream) as archive:
                for member in archive.infolist():
                    if member.file_size > _MAX_BYTES:
                        raise ValueError(f"{member.filename} has {member.file_size:,} bytes, more than {_MAX_BYTES:,}")
                stream.seek(0)
                with np.load(stream, allow_pickle=False) as stored:
                    arrays = {name: torch.from_numpy(stored[name].astype(np.int64)) for name in stored.files}
            answers = cls(arrays["predicted"], arrays["labels"], arrays.get("originals"))
        # Zip files and NumPy raise what they like on damaged files (zlib.error, struct.error, NotImplementedError…).
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RunError(f"{file} cannot be read as the answers of a network: {reason}") from error
        shapes = {
            tensor.shape for tensor in (answers.predicted, answers.labels, answers.originals) if tensor is not None
        }
        if answers.predicted.ndim != 1 or len(shapes) > 1:
            raise RunError(f"{file} does not hold one answer for each label")
        return answers


def read_alike(files: Sequence[Path]) -> list[StoredAnswers]:
    """The answers of several runs to the same images.

    Raises:
        RunError: A file cannot be read, or its answers are to other images than those of the first.
    """
    found = [StoredAnswers.read(file) for file in files]
    for file, answers in zip(files, found, strict=True):
        if not torch.equal(answers.labels, found[0].labels) or not _equal(answers.originals, found[0].originals):
            raise RunError(f"{file} does not hold answers to the images of {files[0]}: run both on the same data")
    return found


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _small(values: np.ndarray) -> np.ndarray:
    """The same whole numbers in the smallest type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))

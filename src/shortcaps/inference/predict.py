"""Predictions of a trained network for pictures."""

from __future__ import annotations

import glob
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor

from shortcaps.data.decode import SUFFIXES, decode_image, reading
from shortcaps.errors import DataError, RunFault
from shortcaps.inference.load import load, require_capsules
from shortcaps.inference.prepare import Preparation
from shortcaps.models import as_probabilities
from shortcaps.pretrained import find_run

if TYPE_CHECKING:
    from shortcaps.models import CapsuleNetwork, Network


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture, or why there is none.

    Attributes:
        source: The file, or another name of the picture.
        activations: By class, each in 0–1 by itself; empty if there is a problem.
        problem: Why the picture could not be read, or None.
    """

    source: str
    activations: dict[str, float]
    problem: str | None = None

    @property
    def probabilities(self) -> dict[str, float]:
        """The activations, scaled to sum to 1."""
        shares = as_probabilities(torch.tensor(list(self.activations.values()), dtype=torch.float64))
        return dict(zip(self.activations, shares.tolist(), strict=True))

    @property
    def ranking(self) -> list[tuple[str, float]]:
        """Classes with their probabilities, the most probable first."""
        return sorted(self.probabilities.items(), key=lambda pair: -pair[1])

    @property
    def answer(self) -> str | None:
        """The most probable class, or None."""
        return self.ranking[0][0] if self.activations else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        if self.problem is not None:
            return {"file": self.source, "problem": self.problem}
        answer, probability = self.ranking[0]
        return {
            "file": self.source,
            "class": answer,
            "probability": probability,
            "probabilities": self.probabilities,
            "activations": self.activations,
        }


class Predictor:
    """A trained network, and the preparation that its pictures need.

    Args:
        run: A run directory, or the name of a network that comes with the package.
        device: Where the network runs.
    """

    def __init__(self, run: str | Path, device: str = "cpu") -> None:
        from shortcaps.runs.directory import read_manifest

        self.run = find_run(run)
        self.manifest = read_manifest(self.run)
        self.network: Network = load(self.run).to(device)
        self.preparation = Preparation.of_run(self.manifest)
        self.device = device

    @property
    def model(self) -> CapsuleNetwork:
        """The network, if it has pose capsules.

        Raises:
            RunError: It has none.
        """
        return require_capsules(self.network, self.run)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the outputs."""
        return self.network.class_names

    def read(self, source: Path | BinaryIO, *, invert: bool | None = None) -> Tensor:
        """The prepared image (channels, height, width) of a picture file.

        Args:
            source: The file.
            invert: Whether to exchange light and dark; None decides by the border of the picture.

        Raises:
            DataError: It cannot be read as a picture.
        """
        picture = decode_image(source, colour=self.preparation.colour)
        with reading():
            return self.preparation(picture, invert=invert)

    @torch.inference_mode()
    def activations(self, images: Tensor) -> Tensor:
        """Activations (batch, classes), on the CPU, of prepared images (batch, channels, height, width).

        Raises:
            RunFault: They are not finite.
        """
        found = self.network(images.to(self.device)).cpu()
        if not found.isfinite().all():
            raise RunFault(f"the network in {self.run} gives an answer that is not a number: train it again")
        return found

    def predict(
        self,
        sources: Iterable[Path | tuple[str, bytes] | Prediction],
        *,
        invert: bool | None = None,
        batch_size: int = 64,
    ) -> Iterator[Prediction]:
        """Predict pictures in batches; one that cannot be read is reported in its place.

        Args:
            sources: Files, or pairs of a name and the contents of a file; a `Prediction`, of what is known to have none, is
                given back in its place.
            invert: Whether to exchange light and dark; None decides by the border of each picture.
            batch_size: Pictures per batch.

        Yields:
            A prediction for each source, in their order.
        """
        waiting: list[tuple[str, Tensor | str]] = []

        def answers() -> Iterator[Prediction]:
            images = [image for _, image in waiting if isinstance(image, Tensor)]
            found = iter(self.activations(torch.stack(images)).tolist() if images else [])
            for name, image in waiting:
                if isinstance(image, str):
                    yield Prediction(name, {}, image)
                else:
                    yield Prediction(name, dict(zip(self.class_names, next(found), strict=True)))
            waiting.clear()

        for source in sources:
            if isinstance(source, Prediction):
                yield from answers()
                yield source
                continue
            name = source[0] if isinstance(source, tuple) else str(source)
            try:
                stream = io.BytesIO(source[1]) if isinstance(source, tuple) else source
                waiting.append((name, self.read(stream, invert=invert)))
            except DataError as reason:
                waiting.append((name, str(reason)))
            if len(waiting) >= batch_size:
                yield from answers()
        yield from answers()


def find_pictures(words: Iterable[str]) -> Iterator[Path]:
    """Files as given, all pictures in folders, and what patterns match.

    Raises:
        DataError: Nothing has that name or matches it, or a folder has no pictures.
    """
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = _pictures_in(path)
            if not inside:
                raise DataError(f"{path} holds no pictures ({', '.join(sorted(SUFFIXES))})")
            yield from inside
        elif path.exists():
            yield path
        elif found := [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]:
            files = [file for file in found if file.is_file()]
            files = files or [file for folder in found if folder.is_dir() for file in _pictures_in(folder)]
            if not files:
                raise DataError(f"{word} matches no pictures")
            yield from files
        else:
            raise DataError(f"{word} does not exist, and no file matches it as a pattern")


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in SUFFIXES)

"""Pictures of one's own as pixels: decoded, grey or in colour, of one size."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shortcaps.data.decode import OTHER_SUFFIXES, decode_image, fitted, quiet_decoders, reading
from shortcaps.data.own.pictures import Pictures
from shortcaps.errors import DataError


@dataclass(frozen=True)
class PictureReader:
    """Decodes pictures.

    Attributes:
        pictures: The pictures.
        numbers: Which of them, in the order that they are read by.
        image_size: Side that every picture gets.
        colour: Whether they keep three channels; otherwise one, grey.
        fit: How they get there, one of `decode.FITS`.
    """

    pictures: Pictures
    numbers: Sequence[int]
    image_size: int
    colour: bool
    fit: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return 3 if self.colour else 1, self.image_size, self.image_size

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, place: int) -> str:
        """What a picture is called in messages."""
        return self.pictures.name(self.numbers[place])

    def read(self, which: Sequence[int], pixels: NDArray[Any]) -> dict[int, str]:
        """Decode some pictures, in several threads if PyTorch has several.

        Args:
            which: Their places in `numbers`.
            pixels: Where to write them, uint8 (len(which), channels, height, width).

        Returns:
            Why a picture could not be read, by its place in `which`; empty if all could.
        """
        problems: dict[int, str] = {}

        def decode(place: int) -> None:
            try:
                pixels[place] = self._pixels(self.numbers[which[place]])
            except DataError as reason:
                problems[place] = str(reason)

        places = range(len(which))
        threads = min(torch.get_num_threads(), len(which))
        with quiet_decoders():
            if threads < 2:
                for place in places:
                    decode(place)
            else:
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(decode, places))
        return dict(sorted(problems.items()))

    def _pixels(self, number: int) -> NDArray[np.uint8]:
        with reading(is_quiet=True):
            source = self.pictures.open(number)
            if isinstance(source, Path) and source.suffix.lower() in OTHER_SUFFIXES:
                raise DataError(f"{source.suffix} is not read here: convert it to JPEG or PNG")
            picture = decode_image(source, colour=self.colour, is_quiet=True)
            return fitted(picture, (self.image_size, self.image_size), self.fit)

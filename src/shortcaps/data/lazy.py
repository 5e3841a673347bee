"""Images that are decoded when they are asked for, as many as fit kept in memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shortcaps.errors import DataError


class Reader(Protocol):
    """What decodes images."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    def read(self, which: Sequence[int], pixels: NDArray[Any]) -> dict[int, str]:
        """Write images to uint8 (len(which), channels, height, width); returns why some could not be read, by place in `which`."""

    def name(self, place: int) -> str:
        """What an image is called in messages."""


class Cache:
    """The pixels of the first so many images, once they were decoded.

    Nothing is ever thrown out: an epoch shows every image once, in another order each time, so that what was used least recently is what
    comes next. The memory is shared with processes that are forked, such as a data loader's workers.

    Args:
        count: Number of images.
        shape: Channels, height and width.
    """

    def __init__(self, count: int, shape: tuple[int, int, int]) -> None:
        self.count, self.shape = count, shape
        self._allocate()

    def _allocate(self) -> None:
        size = int(np.prod(self.shape))
        # Pages take memory once they are written to.
        memory = np.frombuffer(mmap.mmap(-1, max(1, self.count * (size + 1))), np.uint8)
        self._is_here = memory[: self.count]
        self._pixels = memory[self.count : self.count * (size + 1)].reshape(self.count, *self.shape)

    def __getstate__(self) -> dict[str, Any]:
        # A process that is started afresh begins with nothing.
        return {"count": self.count, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def get(self, numbers: NDArray[Any], pixels: NDArray[Any]) -> NDArray[Any]:
        """Copy the images that are here to `pixels`.

        Returns:
            The places in `numbers` of those that are not.
        """
        is_here = np.zeros(len(numbers), bool)
        inside = np.flatnonzero(numbers < self.count)
        is_here[inside] = self._is_here[numbers[inside]] != 0
        pixels[is_here] = self._pixels[numbers[is_here]]
        return np.flatnonzero(~is_here)

    def put(self, numbers: NDArray[Any], pixels: NDArray[Any]) -> None:
        """Keep images, as far as there is room for them."""
        inside = numbers < self.count
        self._pixels[numbers[inside]] = pixels[inside]
        # Pixels first: whoever sees that an image is here may use it.
        self._is_here[numbers[inside]] = 1


class LazyImages:
    """Images (count, channels, height, width), uint8, that behave like a tensor as far as a `Dataset` needs it.

    Args:
        reader: Decodes them.
        numbers: Their numbers for the reader, in their order here.
        cache: Where decoded images are kept, by number; it may be shared.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(self, reader: Reader, numbers: NDArray[Any], cache: Cache) -> None:
        self.reader, self.numbers, self.cache = reader, numbers, cache

    @property
    def shape(self) -> torch.Size:
        """Number of images, channels, height and width."""
        return torch.Size((len(self.numbers), *self.reader.shape))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, which: Tensor | slice) -> Tensor:
        """The images at these places, decoded, on the CPU.

        Raises:
            DataError: One of them can no longer be read.
        """
        numbers = self.select(which).numbers
        images = torch.empty(len(numbers), *self.reader.shape, dtype=torch.uint8)
        pixels = images.numpy()
        missing = self.cache.get(numbers, pixels)
        if len(missing):
            decoded = np.empty((len(missing), *self.reader.shape), np.uint8)
            problems = self.reader.read(numbers[missing].tolist(), decoded)
            for place, reason in problems.items():
                name = self.reader.name(int(numbers[missing[place]]))
                raise DataError(f"{name}: {reason}; it could be read before: restore it")
            pixels[missing] = decoded
            self.cache.put(numbers[missing], decoded)
        return images

    def select(self, which: Tensor | slice) -> LazyImages:
        """These images, none of them decoded."""
        places = which if isinstance(which, slice) else which.cpu().numpy()
        return LazyImages(self.reader, self.numbers[places], self.cache)

    def split(self, size: int) -> tuple[LazyImages, ...]:
        """Parts of so many images, none of them decoded."""
        return tuple(self.select(slice(first, first + size)) for first in range(0, len(self), size))

    def to(self, device: torch.device | str) -> Tensor:
        """All of them, decoded, on a device."""
        return self[:].to(device)

    def joined(self, others: LazyImages) -> LazyImages:
        """These images, then others of the same shape; whichever is kept in memory stays there."""
        chain = _Chain((self, others))
        return LazyImages(chain, np.arange(len(self) + len(others)), Cache(0, chain.shape))


class _Chain:
    """Several `LazyImages` as one reader: the images of the first, then those of the second, each kept in memory as they are by themselves.

    Args:
        parts: The images.
    """

    def __init__(self, parts: Sequence[LazyImages]) -> None:
        self.parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.parts[0].reader.shape

    def _find(self, place: int) -> tuple[int, int]:
        """Which part has an image, and its place there."""
        number = int(np.searchsorted(self._ends, place, side="right"))
        return number, place - (int(self._ends[number - 1]) if number else 0)

    def read(self, which: Sequence[int], pixels: NDArray[Any]) -> dict[int, str]:
        """Write images to uint8 (len(which), channels, height, width); the parts themselves name one that cannot be read."""
        found = [self._find(place) for place in which]
        for number, part in enumerate(self.parts):
            places = [place for place, (owner, _) in enumerate(found) if owner == number]
            if places:
                pixels[places] = part[torch.tensor([found[place][1] for place in places])].numpy()
        return {}

    def name(self, place: int) -> str:
        """What an image is called in messages."""
        number, inside = self._find(place)
        part = self.parts[number]
        return part.reader.name(int(part.numbers[inside]))

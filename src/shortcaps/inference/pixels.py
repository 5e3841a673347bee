"""The arithmetic of preparing a picture, without torch: the server's decoders, small processes of their own, run it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shortcaps.data.decode import DEFAULT_FIT, fitted
from shortcaps.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

# MNIST's digits were fitted into a box of this side and put into an image of that, by their centre of mass.
DIGIT_BOX, DIGIT_IMAGE = 20, 28
# Fainter than this share of the darkest stroke is paper.
FAINT_INK = 0.2


@dataclass(frozen=True)
class PixelPreparation:
    """How pictures become images (channels, height, width) in 0–1.

    Attributes:
        stored_size: Height and width that a picture is resized to.
        image_size: What of that, from the middle, the network sees.
        channels: 1 for grey, 3 for colour.
        bright_on_dark: Whether the training images are light strokes or things on black.
        digits: Whether they are centred digits, as MNIST's.
        fit: How a picture of other proportions is made to fit, one of `decode.FITS`.
    """

    stored_size: tuple[int, int]
    image_size: tuple[int, int]
    channels: int
    bright_on_dark: bool
    digits: bool
    fit: str = DEFAULT_FIT

    @property
    def colour(self) -> bool:
        """Whether pictures keep their colours."""
        return self.channels == 3

    def pixels(self, picture: Picture, *, invert: bool | None = None) -> NDArray[np.float32]:
        """The image of a picture, float32.

        Args:
            picture: Upright, grey or in colour as `colour` says.
            invert: Exchange light and dark. None decides by the border of the picture, and only for networks that were
                trained on light strokes on black.

        Raises:
            DataError: No picture has as many channels as the network takes.
        """
        if self.channels not in (1, 3):
            raise DataError(f"this network takes {self.channels} channels, and a picture has 1 or 3")
        if invert is None:
            invert = self.bright_on_dark and rim_of(picture) > 127
        if invert:
            from PIL import ImageOps

            picture = ImageOps.invert(picture)
        if self.digits and (picture.height, picture.width) != self.stored_size:
            image = self._digit(picture)
        else:
            image = fitted(picture, self.stored_size, self.fit).astype(np.float32) / np.float32(255)
        top, left = ((a - b) // 2 for a, b in zip(self.stored_size, self.image_size, strict=True))
        return np.ascontiguousarray(image[:, top : top + self.image_size[0], left : left + self.image_size[1]])

    def _digit(self, picture: Picture) -> NDArray[Any]:
        """As MNIST was made: the ink fitted into a box, and put into the image by its centre of mass."""
        from PIL import Image

        pixels = np.asarray(picture, dtype=np.float32)
        paper = rim_of(picture)
        ink = (pixels - paper).clip(0)
        strongest = ink.max()
        if strongest < 8:  # nothing is drawn
            return np.zeros((1, *self.stored_size), dtype=np.float32)
        ink /= strongest
        rows, columns = np.nonzero(ink.max(1) > FAINT_INK)[0], np.nonzero(ink.max(0) > FAINT_INK)[0]
        cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        scale = DIGIT_BOX / max(cut.shape)
        size = (max(1, round(cut.shape[1] * scale)), max(1, round(cut.shape[0] * scale)))
        small = Image.fromarray((cut * 255).astype(np.uint8)).resize(size, Image.Resampling.LANCZOS)
        digit = np.asarray(small, dtype=np.float32) / 255
        mass = digit.sum() or 1.0
        middle = [float((digit.sum(1 - axis) * np.arange(digit.shape[axis])).sum() / mass) for axis in (0, 1)]
        canvas = np.zeros((DIGIT_IMAGE, DIGIT_IMAGE), dtype=np.float32)
        corner = [
            int(np.clip(round((DIGIT_IMAGE - 1) / 2 - centre), 0, DIGIT_IMAGE - length))
            for centre, length in zip(middle, digit.shape, strict=True)
        ]
        canvas[corner[0] : corner[0] + digit.shape[0], corner[1] : corner[1] + digit.shape[1]] = digit
        vertical, horizontal = (side - DIGIT_IMAGE for side in self.stored_size)
        around = ((vertical // 2, vertical - vertical // 2), (horizontal // 2, horizontal - horizontal // 2))
        return _pad(canvas, around)[None]


def _pad(canvas: NDArray[Any], around: tuple[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
    """Zeros around a canvas; where the room is smaller than the canvas, its rim is cut off instead."""
    for axis, sides in enumerate(around):
        first, last = (max(0, -side) for side in sides)
        canvas = canvas.take(range(first, canvas.shape[axis] - last), axis)
    return np.pad(canvas, [tuple(max(0, side) for side in sides) for sides in around])


def rim_of(picture: Picture) -> float:
    """The usual brightness along the four sides, 0 to 255: that of the paper, where something is drawn on some."""
    pixels = np.asarray(picture.convert("L"))
    return float(np.median(np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])))

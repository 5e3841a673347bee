"""Files and bytes that claim to be pictures, made into pictures.

Nothing here needs torch: the server's decoders, small processes of their own, run this module too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shortcaps.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


class TooManyPixels(DataError):
    """A picture that is larger than anybody needs."""


@contextmanager
def reading(max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS) -> Iterator[None]:
    """Whatever a decoder raises in here is a picture that cannot be read: a DataError, with the reason in one line."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged corner of a picture that can be read is nobody's concern
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError("not an image" + ("" if formats == FORMATS else f" in {', '.join(formats)}")) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels(f"more than {max_pixels / 1e6:.3g} megapixels: make it smaller") from error
    # Decoders raise what they like on damaged files (struct.error, zlib.error, KeyError…), so no list is complete.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"broken ({reason})") from error


def decode_image(
    source: Path | BinaryIO, *, colour: bool, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS
) -> Picture:
    """An upright picture, with what is transparent made white.

    Args:
        source: A file, or the bytes of one.
        colour: Three channels; otherwise one, grey.
        max_pixels: What a picture may have, by its header: more is refused before anything is decoded.
        formats: Those that are recognised, by Pillow's names.

    Raises:
        DataError: It cannot be read; the message says why.
    """
    from PIL import Image, ImageOps

    # Of a file that it opened itself and cannot read, Pillow leaves the descriptor to the garbage collector.
    with (
        reading(max_pixels, formats),
        source.open("rb") if isinstance(source, Path) else nullcontext(source) as content,
        Image.open(content, formats=formats) as opened,
    ):
        width, height = opened.size
        if width * height > max_pixels:
            raise TooManyPixels(f"{width}x{height}, more than {max_pixels / 1e6:.3g} megapixels: make it smaller")
        upright = ImageOps.exif_transpose(opened)
        if upright.mode.startswith("I;16") or upright.mode == "I":
            # 16 bits of grey, which convert() would cut off
            upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
        if "A" in upright.getbands() or "transparency" in upright.info:
            rgba = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return upright.convert("RGB" if colour else "L")


def resized(picture: Picture, size: tuple[int, int]) -> NDArray[Any]:
    """uint8 (channels, height, width), resized whole."""
    from PIL import Image

    height, width = size
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(pixels.reshape(height, width, -1).transpose(2, 0, 1))

"""Files and bytes that claim to be pictures, made into pictures.

Nothing here needs torch: the server's decoders, small processes of their own, run this module too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shortcaps.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
"""How files with these formats are called. Of an animated one the first frame is read, of several pages the first."""
OTHER_SUFFIXES = (
    *(
        ".heic",
        ".heif",
        ".avif",
        ".jxl",
        ".jp2",
        ".jpe",
        ".jfif",
        ".svg",
        ".psd",
        ".ico",
        ".tga",
        ".ppm",
        ".pgm",
        ".pbm",
    ),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".raw"),
)
"""How pictures in formats that are not read here are called: nobody means to leave them out."""


class TooManyPixels(DataError):
    """A picture that is larger than anybody needs."""


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Without Pillow's warnings: a damaged corner of a picture that can be read is nobody's concern.

    What Python warns of is a matter of the whole process: threads that decode are started within this, and `reading` by one of them
    is told so.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def reading(
    max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS, *, is_quiet: bool = False
) -> Iterator[None]:
    """Whatever a decoder raises in here is a picture that cannot be read: a DataError, with the reason in one line.

    Args:
        max_pixels: For the message about a picture that has more.
        formats: For the message about something else.
        is_quiet: Whether `quiet_decoders` is in effect.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with nullcontext() if is_quiet else quiet_decoders():
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
    source: Path | BinaryIO,
    *,
    colour: bool,
    max_pixels: int = MAX_PIXELS,
    formats: tuple[str, ...] = FORMATS,
    is_quiet: bool = False,
) -> Picture:
    """An upright picture, with what is transparent made white; the first frame or page, if there are several.

    Args:
        source: A file, or the bytes of one.
        colour: Three channels; otherwise one, grey.
        max_pixels: What a picture may have, by its header: more is refused before anything is decoded.
        formats: Those that are recognised, by Pillow's names.
        is_quiet: Whether `quiet_decoders` is in effect.

    Raises:
        DataError: It cannot be read; the message says why.
    """
    from PIL import Image, ImageOps

    # Of a file that it opened itself and cannot read, Pillow leaves the descriptor to the garbage collector.
    with (
        reading(max_pixels, formats, is_quiet=is_quiet),
        source.open("rb") if isinstance(source, Path) else nullcontext(source) as content,
        Image.open(content, formats=formats) as opened,
    ):
        width, height = opened.size
        if width * height > max_pixels:
            raise TooManyPixels(f"{width}x{height}, more than {max_pixels / 1e6:.3g} megapixels: make it smaller")
        upright = ImageOps.exif_transpose(opened)
        if upright.mode == "F":
            raise DataError("its pixels are floats of an unknown range: save it with 8 or 16 bits")
        if upright.mode.startswith("I;16") or upright.mode == "I":
            # 16 bits of grey, which convert() would cut off
            upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
        if "A" in upright.getbands() or "transparency" in upright.info:
            rgba = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return upright.convert("RGB" if colour else "L")


def _stretch(picture: Picture, height: int, width: int) -> NDArray[Any]:
    return _resized(picture, height, width)


def _pad(picture: Picture, height: int, width: int) -> NDArray[Any]:
    scale = min(height / picture.height, width / picture.width)
    inner = _resized(picture, max(1, round(picture.height * scale)), max(1, round(picture.width * scale)))
    down, right = height - inner.shape[0], width - inner.shape[1]
    return np.pad(inner, ((down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0)))


def _crop(picture: Picture, height: int, width: int) -> NDArray[Any]:
    scale = min(picture.height / height, picture.width / width)
    tall, wide = height * scale, width * scale
    top, left = (picture.height - tall) / 2, (picture.width - wide) / 2
    # Sums of floats may be a hair outside.
    box = (left, top, min(left + wide, picture.width), min(top + tall, picture.height))
    return _resized(picture, height, width, box)


def _resized(
    picture: Picture, height: int, width: int, box: tuple[float, float, float, float] | None = None
) -> NDArray[Any]:
    from PIL import Image

    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, box))
    return pixels.reshape(height, width, -1)


FITS: dict[str, Callable[[Picture, int, int], NDArray[Any]]] = {"stretch": _stretch, "pad": _pad, "crop": _crop}
"""How a picture gets other proportions: stretched; whole, with black beside it; or cut off at both ends."""
DEFAULT_FIT = "stretch"


def fitted(picture: Picture, size: tuple[int, int], fit: str = DEFAULT_FIT) -> NDArray[Any]:
    """A picture in another size, and proportion.

    Args:
        picture: Grey or in colour.
        size: Height and width.
        fit: One of `FITS`.

    Returns:
        uint8 (channels, height, width).
    """
    return np.ascontiguousarray(FITS[fit](picture, *size).transpose(2, 0, 1))


def check_fit(fit: str) -> None:
    """Raise DataError for a fit that there is not."""
    if fit not in FITS:
        raise DataError(f"unknown fit {fit!r}: choose one of {', '.join(FITS)}")

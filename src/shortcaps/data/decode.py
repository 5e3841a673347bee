"""Files and bytes that claim to be pictures, made into pictures."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from shortcaps.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


class TooManyPixels(DataError):
    """A picture that is larger than anybody needs."""


def decode_image(source: Path | BinaryIO, *, colour: bool, max_pixels: int = MAX_PIXELS) -> Picture:
    """An upright picture in colour or grey, with what is transparent made white; raises DataError with the reason."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > max_pixels:
                    raise TooManyPixels(f"{width}x{height}, more than {max_pixels / 1e6:g} megapixels: make it smaller")
                upright = ImageOps.exif_transpose(opened)
                if upright.mode.startswith("I;16") or upright.mode == "I":
                    # 16 bits of grey, which convert() would cut off
                    upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
                if "A" in upright.getbands() or "transparency" in upright.info:
                    rgba = upright.convert("RGBA")
                    upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
                return upright.convert("RGB" if colour else "L")
    except UnidentifiedImageError as error:
        raise DataError("not an image") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels(f"more than {max_pixels / 1e6:g} megapixels: make it smaller") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise DataError(f"broken ({error})") from error


def as_tensor(picture: Picture, size: tuple[int, int]) -> Tensor:
    """uint8 (channels, height, width), resized whole."""
    from PIL import Image

    height, width = size
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).reshape(height, width, -1).permute(2, 0, 1).contiguous()

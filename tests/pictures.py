"""Pictures that are not what they seem."""

from __future__ import annotations

import io
import zlib

from PIL import Image


def png_of(*chunks: tuple[bytes, bytes], width: int = 1, height: int = 1) -> bytes:
    """A grey PNG of these chunks after its header, and an end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    parts = (chunk(kind, data) for kind, data in ((b"IHDR", header), *chunks, (b"IEND", b"")))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def short_exif() -> bytes:
    """83 bytes on which Pillow raises struct.error: the eXIf chunk ends before the offset that it should hold."""
    return png_of((b"eXIf", b"II*\0"), (b"IDAT", zlib.compress(bytes(2))))


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that claims, and keeps, a huge picture."""
    return png_of((b"IDAT", zlib.compress(bytes(100_000))), width=width, height=height)


def endless_jpeg(side: int = 2000, scans: int = 4000) -> bytes:
    """A progressive JPEG that repeats its last scan: a few bytes for each, and all blocks to go over."""
    stream = io.BytesIO()
    Image.new("L", (side, side), 90).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    last, end = whole.rindex(b"\xff\xda"), whole.rindex(b"\xff\xd9")
    return whole[:end] + whole[last:end] * scans + whole[end:]

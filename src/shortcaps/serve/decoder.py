"""A process that makes uploads into images, and that may be killed at any moment. Run as a script, by `decoders.py`.

It imports Pillow and numpy, once, and never torch; then a child of it decodes picture after picture. What exceeds its
processor time ends the child, by a timer of the kernel that no decoder can put off; another child is forked in a few milliseconds.

What goes over standard input and output is a fixed header and raw bytes, so that nothing has to be unpickled or parsed:

    request   length of the picture (u32), processor seconds (f32), invert (i8: -1 the rim decides, 0 no, 1 yes); the picture
    answer    what became of it (u8, see `Outcome`), length (u32); float32 pixels, or a reason in UTF-8
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import struct
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from shortcaps.inference.pixels import PixelPreparation

REQUEST = struct.Struct("!Ifb")
ANSWER = struct.Struct("!BI")
MAX_REASON = 300
"""Bytes of a reason."""
PICTURES_PER_CHILD = 500
"""A child retires after so many: nothing that a decoder leaks, or that was done to it, lasts."""
RETIRED = 3
"""Exit status of a child that has answered everything and wants to be replaced."""


class Outcome(IntEnum):
    """What became of a picture."""

    IMAGE = 0
    BROKEN = 1
    TOO_LARGE = 2
    TOO_SLOW = 3
    CRASHED = 4


def main() -> None:
    """Keep a child at work until there is no more work."""
    settings = json.loads(sys.argv[1])
    _import_without_torch()
    from shortcaps.inference.pixels import PixelPreparation

    max_pixels, max_memory, niceness = (settings.pop(name) for name in ("max_pixels", "max_memory", "niceness"))
    formats = tuple(settings.pop("formats"))
    preparation = PixelPreparation(tuple(settings.pop("stored_size")), tuple(settings.pop("image_size")), **settings)
    _warm_up(preparation, formats)
    os.nice(niceness)
    gc.freeze()  # what the child does not touch stays shared with this process
    while True:
        child = os.fork()
        if child == 0:
            _limit(max_memory)
            _work(preparation, formats, max_pixels)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        match os.waitstatus_to_exitcode(status):
            case 0:
                return
            case code if code != RETIRED:
                _answer(sys.stdout.buffer, Outcome.TOO_SLOW if code == -signal.SIGPROF else Outcome.CRASHED)


def _import_without_torch() -> None:
    """Make two packages importable without their `__init__`, which would load torch: 300 MB and seconds at each start."""
    package = Path(__file__).resolve().parents[1]
    for name, folder in (("shortcaps", package), ("shortcaps.data", package / "data")):
        bare = ModuleType(name)
        bare.__path__ = [str(folder)]
        sys.modules[name] = bare


def _warm_up(preparation: PixelPreparation, formats: tuple[str, ...]) -> None:
    """Load whatever a first picture of each kind loads, once for all children and at nobody's cost."""
    from PIL import Image

    Image.init()  # or else each child does so at the first thing that is no picture, which takes longer than a picture may
    for kind in formats:
        stream = io.BytesIO()
        Image.linear_gradient("L").convert("RGB").save(stream, kind)
        _image(preparation, stream.getvalue(), None, formats=formats)


def _limit(max_memory: int) -> None:
    """No core dumps, no files, few descriptors, and an end to memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    if sys.platform == "linux":  # elsewhere the kernel does not keep to it
        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))


def _work(preparation: PixelPreparation, formats: tuple[str, ...], max_pixels: int) -> None:
    """Picture after picture, until there is no more, or the child retires with a status of its own."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    for _ in range(PICTURES_PER_CHILD):
        header = source.read(REQUEST.size)
        if len(header) < REQUEST.size:
            return
        length, seconds, invert = REQUEST.unpack(header)
        content = source.read(length)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        outcome, result = _image(
            preparation, content, None if invert < 0 else bool(invert), max_pixels=max_pixels, formats=formats
        )
        # Half an answer would be worse than none.
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(sink, outcome, result)
    os._exit(RETIRED)


def _image(preparation: PixelPreparation, content: bytes, invert: bool | None, **limits: Any) -> tuple[Outcome, bytes]:
    from shortcaps.data.decode import TooManyPixels, decode_image, reading
    from shortcaps.errors import DataError

    try:
        picture = decode_image(io.BytesIO(content), colour=preparation.colour, **limits)
        with reading():
            return Outcome.IMAGE, preparation.pixels(picture, invert=invert).tobytes()
    except TooManyPixels as reason:
        return Outcome.TOO_LARGE, str(reason).encode(errors="replace")[:MAX_REASON]
    except DataError as reason:
        return Outcome.BROKEN, str(reason).encode(errors="replace")[:MAX_REASON]


def _answer(sink: BinaryIO, outcome: Outcome, content: bytes = b"") -> None:
    sink.write(ANSWER.pack(outcome, len(content)) + content)
    sink.flush()


if __name__ == "__main__":
    main()

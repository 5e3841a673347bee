"""Decoders: the right image, and an end to whatever takes too long or too much."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from shortcaps.data.decode import TooManyPixels
from shortcaps.errors import DataError
from shortcaps.inference.predict import Predictor
from shortcaps.inference.prepare import Preparation
from shortcaps.serve.decoder import Outcome
from shortcaps.serve.decoders import Decoders, TooSlow
from shortcaps.serve.fair_queue import FairQueue
from shortcaps.serve.limits import Limits
from tests.pictures import bomb, endless_jpeg, short_exif
from tests.serve.support import one, png

DIGITS = Preparation((28, 28), (28, 28), 1, bright_on_dark=True, digits=True)
COLOUR = Preparation((40, 36), (32, 32), 3, bright_on_dark=False, digits=False)
PADDED = Preparation((32, 32), (32, 32), 3, bright_on_dark=False, digits=False, fit="pad")


def with_decoders(
    check: Callable[[Decoders], Awaitable[None]], preparation: Preparation = DIGITS, limits: Limits | None = None
) -> None:
    async def run() -> None:
        decoders = Decoders(preparation, limits or Limits())
        await decoders.start()
        try:
            await check(decoders)
        finally:
            await decoders.stop()

    asyncio.run(run())


async def read(decoders: Decoders, content: bytes, **asked: Any) -> torch.Tensor:
    """As the service does it."""
    image = await decoders.quick_image(content, **asked)
    return await decoders.slow_image(content, **asked) if image is None else image


def children(pid: int | None) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def encoded(picture: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("preparation", [DIGITS, COLOUR, PADDED], ids=["digits", "colour", "padded"])
def test_images_are_those_that_predict_sees_and_torch_is_not_loaded(preparation: Preparation) -> None:
    predictor = Predictor.__new__(Predictor)
    predictor.preparation = preparation
    photograph = Image.effect_noise((90, 70), 80).convert("RGBA")
    photograph.putalpha(130)
    pictures = [
        one(),
        encoded(photograph, "PNG"),
        encoded(photograph, "WEBP"),
        encoded(photograph.convert("L"), "JPEG"),
    ]

    async def check(decoders: Decoders) -> None:
        for content in pictures:
            for invert in (None, True, False):
                image = await read(decoders, content, invert=invert, address="")
                assert torch.equal(image, predictor.read(io.BytesIO(content), invert=invert))
        for process in (*decoders.quick.processes, *decoders.slow.processes):
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()

    with_decoders(check, preparation)


def test_what_cannot_be_read_is_refused_with_the_reason() -> None:
    async def check(decoders: Decoders) -> None:
        for content, kind, reason in (
            (b"", DataError, "not an image"),
            (short_exif(), DataError, "broken"),
            (png(kind="BMP"), DataError, "not an image"),
            (png(kind="GIF"), DataError, "not an image"),
            (bomb(4097, 4096), TooManyPixels, r"4097x4096, more than 16\.8 megapixels"),
            (bomb(2**31 - 1, 2**31 - 1), TooManyPixels, r"more than 16\.8 megapixels"),
        ):
            with pytest.raises(kind, match=reason):
                await read(decoders, content, invert=None, address="")

    with_decoders(check)


def test_what_takes_too_long_is_ended_and_nobody_else_waits_for_it() -> None:
    """Each scan of the JPEG is a few bytes, and 4 ms or more to go over: a minute in all, in 60 kB."""

    async def check(decoders: Decoders) -> None:
        slow = [asyncio.create_task(read(decoders, endless_jpeg(), invert=None, address="b")) for _ in range(2)]
        await asyncio.sleep(0.5)
        for _ in range(5):
            await read(decoders, one(), invert=None, address="a")
        assert not any(task.done() for task in slow)  # so nobody has waited for them
        started = time.monotonic()
        for task in slow:
            with pytest.raises(TooSlow, match=r"more work than 1\.5 seconds"):
                await task
        assert time.monotonic() - started < 30
        await read(decoders, one(), invert=None, address="b")

    with_decoders(check, limits=Limits(decode_seconds=1.5))


def test_what_takes_too_much_memory_is_a_broken_picture() -> None:
    large = encoded(Image.new("RGB", (4000, 4000)), "PNG")

    async def check(decoders: Decoders) -> None:
        with pytest.raises(DataError, match="broken"):
            await read(decoders, large, invert=None, address="a")
        await read(decoders, one(), invert=None, address="a")

    with_decoders(check, limits=Limits(decoder_bytes=160_000_000))


def test_a_decoder_that_crashes_costs_its_picture_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortcaps.serve.decoders.QUICK_PROCESSES", 1)

    async def check(decoders: Decoders) -> None:
        for everything in (False, True):
            process = decoders.quick.processes[0].pid or 0
            if everything:
                os.killpg(process, signal.SIGSEGV)
            else:
                os.kill(children(process)[0], signal.SIGSEGV)
            with pytest.raises(DataError, match="its decoder crashed"):
                await read(decoders, one(), invert=None, address="a")
            await read(decoders, one(), invert=None, address="a")

    with_decoders(check)


def test_stopping_does_not_wait_for_a_decoder_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortcaps.serve.decoders.QUICK_PROCESSES", 1)
    pids: list[int] = []

    async def check(decoders: Decoders) -> None:
        for lane in (decoders.quick, decoders.slow):
            for process in lane.processes:
                pids.extend([process.pid or 0, *children(process.pid)])
        os.kill(pids[1], signal.SIGSTOP)
        stuck = asyncio.create_task(read(decoders, one(), invert=None, address="a"))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):  # a stopped process would be waited for without end
            await decoders.stop()
        stuck.cancel()

    with_decoders(check)
    started = time.monotonic()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() - started < 20


def is_running(pid: int) -> bool:
    """A child whose parent is gone may wait to be buried by init; it does nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_decoder_that_hangs_is_killed_and_its_picture_read_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortcaps.serve.decoders.QUICK_PROCESSES", 1)
    monkeypatch.setattr("shortcaps.serve.decoders.QUICK_SECONDS", 0.02)

    async def check(decoders: Decoders) -> None:
        hung = children(decoders.quick.processes[0].pid)[0]
        os.kill(hung, signal.SIGSTOP)
        await read(decoders, one(), invert=None, address="a")
        assert not is_running(hung)
        started = time.monotonic()  # and its place is taken by a new one, which has to start first
        while await decoders.quick_image(one(), invert=None, address="b") is None:
            assert time.monotonic() - started < 30
            decoders._slow.clear()

    with_decoders(check)


def test_a_first_picture_is_as_quick_as_any() -> None:
    """What a decoder loads once is loaded before it gets to work: or else a child's first picture would be too slow."""
    contents = [encoded(Image.new("RGB", (64, 64)), kind) for kind in ("WEBP", "JPEG", "PNG")]

    async def check(decoders: Decoders) -> None:
        for content in (*contents, b"no picture"):
            for process in decoders.quick.processes:
                os.kill(children(process.pid)[0], signal.SIGKILL)
                await process.ask(b"", seconds=1, wall_seconds=1, invert=None)  # this one crashes
                outcome, _ = await process.ask(content, seconds=0.02, wall_seconds=1, invert=None)
                assert outcome == (Outcome.BROKEN if content == b"no picture" else Outcome.IMAGE)

    with_decoders(check)


def test_who_sends_what_takes_long_is_quick_only_with_what_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(decoders: Decoders) -> None:
        slow = endless_jpeg()
        assert await decoders.quick_image(slow, invert=None, address="a") is None
        with monkeypatch.context() as patch:
            patch.delattr("shortcaps.serve.decoders.Lane.decode")  # nobody looks at them
            for _ in range(50):
                assert await decoders.quick_image(slow[: len(slow) // 2], invert=None, address="a") is None
        assert await decoders.quick_image(one(), invert=None, address="a") is not None

    with_decoders(check)


def test_addresses_take_turns() -> None:
    async def check() -> list[str]:
        queue: FairQueue[str] = FairQueue()
        for address, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
            queue.put(address, item)
        return [await queue.get() for _ in range(6)]

    assert asyncio.run(check()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_the_default_limits_are_enough_for_the_largest_picture() -> None:
    largest = encoded(Image.new("RGBA", (4096, 4096), (9, 99, 9, 99)), "PNG")

    async def check(decoders: Decoders) -> None:
        decoders.slow.wall_seconds = 100  # the limit is that of the processor's time, however busy this machine is
        image = await read(decoders, largest, invert=None, address="a")
        assert image.shape == (1, 28, 28)

    with_decoders(check)

"""Uploads made into images by processes that may be killed: a quick lane for everybody, and another for what takes longer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shortcaps.data.decode import TooManyPixels
from shortcaps.errors import DataError, RunFault
from shortcaps.inference.pixels import PixelPreparation
from shortcaps.serve.decoder import Outcome
from shortcaps.serve.decoder_process import DecoderProcess
from shortcaps.serve.fair_queue import FairQueue
from shortcaps.serve.limits import Limits

FORMATS = ("PNG", "JPEG", "WEBP")
"""What browsers and cameras write. Each further format is a further decoder that strangers can reach."""
QUICK_PROCESSES = 2
"""So that one picture that takes its time keeps nobody waiting."""
QUICK_SECONDS = 0.1
"""Processor time in the quick lane: several times what a photograph of a megapixel takes."""
SLOW_ADDRESS_SECONDS = 30.0
"""For so long, what an address sends goes to the slow lane at once if it is like what took long: a quarter as large, or more. Its
drawings stay quick while its photographs are not; and who seeks the limit finds himself in the slow lane after a few tries."""
SLOW_SHARE = 4
EMPTY = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU"
    b"\0\0\0\nIDATx\x9cc`\0\0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82"
)
"""A picture of one black pixel, to see whether a decoder works."""


@dataclass(frozen=True)
class Job:
    """A picture that waits for a decoder."""

    content: bytes
    invert: bool | None
    done: asyncio.Future[tuple[Outcome, bytes]]


class Lane:
    """Decoder processes with a queue, in which addresses take turns."""

    def __init__(self, processes: list[DecoderProcess], *, seconds: float, wall_seconds: float) -> None:
        self.processes, self.seconds, self.wall_seconds = processes, seconds, wall_seconds
        self._queue: FairQueue[Job] = FairQueue()
        self._workers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises RunFault where the decoders do not work."""
        await asyncio.gather(*(self._try_out(process) for process in self.processes))
        self._workers = [asyncio.create_task(self._work(process)) for process in self.processes]

    async def _try_out(self, process: DecoderProcess) -> None:
        try:
            outcome, reason = await process.ask(EMPTY, seconds=1, wall_seconds=1, invert=None)
        except OSError as error:
            raise RunFault(f"no decoder can be started: {error.strerror}") from error
        if outcome != Outcome.IMAGE:
            raise RunFault(f"the decoders do not work here: {outcome.name.lower()} {reason.decode(errors='replace')}")

    async def stop(self) -> None:
        """At once: what is being decoded is not waited for."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for process in self.processes:
            process.kill()

    async def decode(self, content: bytes, invert: bool | None, address: str) -> tuple[Outcome, bytes]:
        """What became of a picture, with the pixels of its image or the reason, when its address's turn has come."""
        done: asyncio.Future[tuple[Outcome, bytes]] = asyncio.get_running_loop().create_future()
        self._queue.put(address, Job(content, invert, done))
        return await done

    async def _work(self, process: DecoderProcess) -> None:
        while True:
            job = await self._queue.get()
            if job.done.done():  # who asked has given up
                continue
            try:
                result = await process.ask(
                    job.content, seconds=self.seconds, wall_seconds=self.wall_seconds, invert=job.invert
                )
            except OSError as error:
                if not job.done.done():
                    job.done.set_exception(RunFault(f"no decoder can be started: {error.strerror}"))
                continue
            if not job.done.done():
                job.done.set_result(result)
            if process.pid is None:  # it had to be killed; the next picture is not to wait for another to start
                with contextlib.suppress(OSError):
                    process.start()


class Decoders:
    """Makes uploads into images for a network, within limits of time, memory and pixels."""

    def __init__(self, preparation: PixelPreparation, limits: Limits) -> None:
        self.preparation, self.limits = preparation, limits
        self.shape = (preparation.channels, *preparation.image_size)
        # In the quick lane a picture only has to show that it is quick; what is not gets its time in the other one, which
        # gives way to the network.
        quick = [self._process(0) for _ in range(QUICK_PROCESSES)]
        self.quick = Lane(quick, seconds=QUICK_SECONDS, wall_seconds=20 * QUICK_SECONDS)
        self.slow = Lane([self._process(10)], seconds=limits.decode_seconds, wall_seconds=3 * limits.decode_seconds)
        self._slow: dict[str, tuple[float, int]] = {}  # until when, and from how many bytes on, by address

    def _process(self, niceness: int) -> DecoderProcess:
        preparation = self.preparation
        settings = {
            "stored_size": preparation.stored_size,
            "image_size": preparation.image_size,
            "channels": preparation.channels,
            "bright_on_dark": preparation.bright_on_dark,
            "digits": preparation.digits,
            "fit": preparation.fit,
            "max_pixels": self.limits.pixels,
            "max_memory": self.limits.decoder_bytes,
            "formats": FORMATS,
            "niceness": niceness,
        }
        return DecoderProcess(json.dumps(settings), 4 * int(np.prod(self.shape)))

    async def start(self) -> None:
        """Raises RunFault where the decoders do not work."""
        try:
            await asyncio.gather(self.quick.start(), self.slow.start())
        except RunFault:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Kill them all."""
        for lane in (self.quick, self.slow):
            await lane.stop()

    async def quick_image(self, content: bytes, *, invert: bool | None, address: str) -> Tensor | None:
        """The image of an uploaded file, (channels, height, width); None if it has to be asked of `slow_image`.

        Args:
            content: Of the file.
            invert: As in `PixelPreparation.pixels`.
            address: Whose it is; addresses take turns.

        Raises:
            DataError: It cannot be read.
            RunFault: There is no decoder.
        """
        now = time.monotonic()
        self._slow = {who: (until, size) for who, (until, size) in self._slow.items() if until > now}
        if address in self._slow and len(content) >= self._slow[address][1]:
            return None
        outcome, result = await self.quick.decode(content, invert, address)
        if outcome == Outcome.TOO_SLOW:
            self._slow[address] = (time.monotonic() + SLOW_ADDRESS_SECONDS, len(content) // SLOW_SHARE)
            return None
        return self._tensor(outcome, result)

    async def slow_image(self, content: bytes, *, invert: bool | None, address: str) -> Tensor:
        """The same for what takes longer, and for who has sent such lately."""
        return self._tensor(*await self.slow.decode(content, invert, address))

    def _tensor(self, outcome: Outcome, result: bytes) -> Tensor:
        match outcome:
            case Outcome.IMAGE:
                image = torch.from_numpy(np.frombuffer(result, dtype=np.float32).reshape(self.shape).copy())
                if not image.isfinite().all():
                    raise DataError("broken (its decoder crashed)")
                return image
            case Outcome.TOO_LARGE:
                raise TooManyPixels(result.decode(errors="replace"))
            case Outcome.BROKEN:
                raise DataError(result.decode(errors="replace"))
            case Outcome.TOO_SLOW:
                raise TooSlow(f"more work than {self.limits.decode_seconds:g} seconds: save it anew, or smaller")
            case Outcome.CRASHED:
                raise DataError("broken (its decoder crashed)")


class TooSlow(DataError):
    """A picture that takes longer to decode than a picture should."""

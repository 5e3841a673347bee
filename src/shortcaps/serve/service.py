"""What a running server consists of: limits, counters, decoders and the network's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from shortcaps.data.decode import TooManyPixels
from shortcaps.errors import DataError, RunFault
from shortcaps.inference.predict import Predictor
from shortcaps.serve.answers import Question, answer_all
from shortcaps.serve.batching import Batcher
from shortcaps.serve.decoders import Decoders, TooSlow
from shortcaps.serve.limits import Limits
from shortcaps.serve.metrics import Metrics
from shortcaps.serve.refusals import Refused, busy
from shortcaps.serve.schema import Answer
from shortcaps.serve.shares import Shares

SLOW_PLACES = 16
"""Pictures that may wait because they take long: as many photographs as can be decoded before their time is up."""


class Service:
    """Answers questions about pictures, as many at a time as there are places."""

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.metrics = Metrics()
        self.queue = Shares(limits.queue, max(1, limits.queue // 2))
        self.slow_queue = Shares(SLOW_PLACES, SLOW_PLACES // 2)
        self.uploads = Shares(limits.upload_bytes, max(limits.body_bytes, limits.upload_bytes // 4))
        self.connections = Shares(limits.connections, limits.connections_per_address)
        self.decoders = Decoders(predictor.preparation, limits)
        self.batcher: Batcher[Question, Answer] = Batcher(
            lambda questions: answer_all(predictor, questions), largest=limits.batch
        )
        self.max_pictures = min(limits.pictures, self.queue.each)
        self.is_up = self.is_draining = False
        self.metrics.gauges.update(
            shortcaps_waiting=("Questions that wait for the network.", lambda: self.batcher.waiting),
            shortcaps_in_hand=(
                "Questions that have a place, from decoding to the answer.",
                lambda: self.queue.taken + self.slow_queue.taken,
            ),
            shortcaps_connections=("Open connections.", lambda: self.connections.taken),
            shortcaps_upload_bytes=("Bytes of uploads that are held.", lambda: self.uploads.taken),
        )

    async def start(self) -> None:
        """Raises RunFault where the decoders do not work."""
        await self.decoders.start()
        self.batcher.start()
        self.is_up = True

    async def stop(self) -> None:
        """End the decoders at once, and the network after its batch."""
        self.is_up = False
        await self.decoders.stop()
        await self.batcher.stop()

    def why_not_ready(self) -> str | None:
        """Why a balancer should send requests elsewhere, if it should."""
        if not self.is_up:
            return "the server is not up"
        if self.is_draining:
            return "the server is shutting down"
        if self.queue.taken >= self.queue.total:
            return "too many requests are waiting"
        return None

    async def answer(
        self, content: bytes, *, invert: bool | None, moves: dict[str, float], details: bool, address: str
    ) -> Answer:
        """What the network says of an uploaded picture.

        Raises:
            Refused: There is no place, the picture cannot be used, or there is no answer in time.
        """
        decoders = self.decoders
        asked: dict[str, Any] = {"invert": invert, "address": address}
        with _saying_why():
            async with asyncio.timeout(self.limits.answer_seconds):
                # Places are given back before the answer is sent: how fast somebody reads is no business of the others. Nor is
                # how long a picture takes, for which there are places apart.
                with _places(self.queue, address):
                    image = await decoders.quick_image(content, **asked)
                    if image is not None:
                        return await self.batcher.ask(Question(image, details, moves))
                with _places(self.slow_queue, address):
                    image = await decoders.slow_image(content, **asked)
                    return await self.batcher.ask(Question(image, details, moves))

    async def answer_many(
        self, contents: list[bytes], *, invert: bool | None, moves: dict[str, float], address: str
    ) -> list[Answer | Refused]:
        """What the network says of several uploaded pictures, or why it says nothing of one.

        Each picture has a place of its own, as if it had come alone, and all of them have the time of one. Those that take long
        are decoded one after another, on a single place.

        Raises:
            Refused: There are not as many places.
        """
        until = asyncio.get_running_loop().time() + self.limits.answer_seconds
        asked: dict[str, Any] = {"invert": invert, "address": address}

        async def answer(content: bytes, decode: Callable[..., Awaitable[Tensor | None]]) -> Answer | Refused | None:
            try:
                with _saying_why():
                    async with asyncio.timeout_at(until):
                        image = await decode(content, **asked)
                        return None if image is None else await self.batcher.ask(Question(image, False, moves))
            except Refused as refusal:
                self.metrics.refused(refusal.reason)
                return refusal

        with _places(self.queue, address, len(contents)):
            found = await asyncio.gather(*(answer(content, self.decoders.quick_image) for content in contents))
        if None in found:
            try:
                with _places(self.slow_queue, address):
                    for number, content in enumerate(contents):
                        if found[number] is None:
                            found[number] = await answer(content, self.decoders.slow_image)
            except Refused as refusal:
                self.metrics.refused(refusal.reason)
                found = [refusal if one is None else one for one in found]
        return [one for one in found if one is not None]


@contextmanager
def _saying_why() -> Iterator[None]:
    """What may go wrong on the way from an upload to its answer, as a refusal."""
    try:
        yield
    except TimeoutError as error:
        raise Refused(504, "answer_time", "no answer in time: try again") from error
    except TooManyPixels as reason:
        raise Refused(413, "pixels", f"the picture is {reason}") from reason
    except TooSlow as reason:
        raise Refused(422, "decode_time", f"the picture is {reason}") from reason
    except DataError as reason:
        raise Refused(422, "picture", f"the picture is {reason}") from reason
    except RunFault as fault:
        raise busy("decoder", f"{fault}: try again") from fault


@contextmanager
def _places(queue: Shares, address: str, number: int = 1) -> Iterator[None]:
    with queue.holding(address) as take:
        if not take(number):
            raise busy("queue", "too many requests are waiting: try again")
        yield

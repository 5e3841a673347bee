"""What a running server consists of: limits, counters, decoders and the network's queue."""

from __future__ import annotations

import asyncio

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


class Service:
    """Answers questions about pictures, as many at a time as there are places."""

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.metrics = Metrics()
        self.queue = Shares(limits.queue, max(1, limits.queue // 2))
        self.uploads = Shares(limits.upload_bytes, max(limits.body_bytes, limits.upload_bytes // 4))
        self.connections = Shares(limits.connections, limits.connections_per_address)
        self.decoders = Decoders(predictor.preparation, limits)
        self.batcher: Batcher[Question, Answer] = Batcher(
            lambda questions: answer_all(predictor, questions), largest=limits.batch
        )
        self.is_up = self.is_draining = False
        self.metrics.gauges.update(
            shortcaps_waiting=("Questions that wait for the network.", lambda: self.batcher.waiting),
            shortcaps_in_hand=("Questions that have a place, from decoding to the answer.", lambda: self.queue.taken),
            shortcaps_connections=("Open connections.", lambda: self.connections.taken),
            shortcaps_upload_bytes=("Bytes of uploads that are held.", lambda: self.uploads.taken),
        )

    async def start(self) -> None:
        """Raises RunFault where the decoders do not work."""
        await self.decoders.start()
        self.batcher.start()
        self.is_up = True

    async def stop(self) -> None:
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
        if not self.queue.take(address):
            raise busy("queue", "too many requests are waiting: try again")
        # The place is given back before the answer is sent: how fast somebody reads is no business of the others.
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                image = await self._decode(content, invert, address)
                return await self.batcher.ask(Question(image, details, moves))
        except TimeoutError as error:
            raise Refused(504, "answer_time", "no answer in time: try again") from error
        finally:
            self.queue.give_back(address)

    async def _decode(self, content: bytes, invert: bool | None, address: str) -> Tensor:
        try:
            return await self.decoders.image(content, invert=invert, address=address)
        except TooManyPixels as reason:
            raise Refused(413, "pixels", f"the picture is {reason}") from reason
        except TooSlow as reason:
            raise Refused(422, "decode_time", f"the picture is {reason}") from reason
        except DataError as reason:
            raise Refused(422, "picture", f"the picture is {reason}") from reason
        except RunFault as fault:
            raise busy("decoder", f"{fault}: try again") from fault

"""Requests that arrive together are answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batcher(Generic[Question, Answer]):
    """Collects questions while the network is busy with earlier ones, and asks them all at once when it is free.

    There is no waiting for a batch to fill: alone, a question is answered at once; under load, batches grow by
    themselves. How many may wait is decided before they get here. One thread runs the network, so that requests do not compete for the cores.
    """

    def __init__(self, answer_all: Callable[[list[Question]], list[Answer]], *, largest: int) -> None:
        self.answer_all, self.largest = answer_all, largest
        self._waiting: asyncio.Queue[tuple[Question, asyncio.Future[Answer]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Finish the batch at hand, and answer no more."""
        if self._worker is not None:
            self._worker.cancel()
        self._thread.shutdown(wait=True)

    @property
    def waiting(self) -> int:
        """Questions that the network has not been asked yet."""
        return self._waiting.qsize()

    async def ask(self, question: Question) -> Answer:
        """The answer to one question, which is asked together with whatever else waits."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((question, future))
        return await future

    async def _work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self.largest and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            # Who has gone away in the meantime needs no answer.
            batch = [(question, future) for question, future in batch if not future.done()]
            if not batch:
                continue
            if not await self._answer(batch) and len(batch) > 1:
                for one in batch:  # the failure belongs to whoever caused it, and to nobody else
                    await self._answer([one])

    async def _answer(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> bool:
        """Answers all of a batch, or none; a question that fails alone is told why."""
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self.answer_all, [question for question, _ in batch])
        except Exception as error:
            if len(batch) == 1 and not batch[0][1].done():
                batch[0][1].set_exception(error)
            return False
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        return True

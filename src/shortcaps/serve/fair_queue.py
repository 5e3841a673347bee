"""A queue in which who sends much waits for himself, and not everybody for him."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Takes turns among the addresses that have something waiting; of one address, the oldest comes first."""

    def __init__(self) -> None:
        self._by_address: dict[str, deque[Item]] = {}
        self._count = asyncio.Semaphore(0)

    def put(self, address: str, item: Item) -> None:
        """Let an item of this address wait."""
        self._by_address.setdefault(address, deque()).append(item)
        self._count.release()

    async def get(self) -> Item:
        """The next item, of the address that has waited for its turn longest."""
        await self._count.acquire()
        # The first in the dictionary has waited for its turn longest; with more to say it goes to the end.
        address = next(iter(self._by_address))
        waiting = self._by_address.pop(address)
        item = waiting.popleft()
        if waiting:
            self._by_address[address] = waiting
        return item

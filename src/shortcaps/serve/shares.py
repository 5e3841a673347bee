"""Limits in all and for each address, so that nobody can take everything."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Shares:
    """So much of something in all, of which one address may hold only a part."""

    def __init__(self, total: int, each: int) -> None:
        self.total, self.each = total, each
        self.taken = 0
        self._by_address: Counter[str] = Counter()

    def has_room(self, address: str, amount: int = 1) -> bool:
        """Whether that much is left, in all and for this address."""
        return self.taken + amount <= self.total and self._by_address[address] + amount <= self.each

    def take(self, address: str, amount: int = 1) -> bool:
        """Whether there was room for it."""
        if not self.has_room(address, amount):
            return False
        self.taken += amount
        self._by_address[address] += amount
        return True

    def give_back(self, address: str, amount: int = 1) -> None:
        """Return what was taken."""
        self.taken -= amount
        self._by_address[address] -= amount
        if not self._by_address[address]:
            del self._by_address[address]

    @contextmanager
    def holding(self, address: str) -> Iterator[Callable[[int], bool]]:
        """A `take` for this address, all of which is given back in the end."""
        held = 0

        def take(amount: int) -> bool:
            nonlocal held
            taken = self.take(address, amount)
            held += amount if taken else 0
            return taken

        try:
            yield take
        finally:
            self.give_back(address, held)


def address_of(client: tuple[str, int] | None) -> str:
    """Who counts as one: an IPv4 address, or an IPv6 network of 64 bits, all of which one household has."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))

"""Requests that wait in the gateway because every engine has enough: bounded, in the order policy's order.

A full queue turns a newcomer away, unless some other tenant has more waiting: then that tenant's last one goes. So a
flood fills the queue of whoever sends it, not everybody's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

_SCAN = 64  # waiting requests that are tried before a free engine is left idle


class Waiting(Protocol):
    """What the queue needs to know of a request."""

    tenant: str


T = TypeVar("T", bound=Waiting)


class Queue(Generic[T]):
    """Smallest key first; of equal keys, first come first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[float, int, T]] = []
        self._there: dict[int, T] = {}
        self._tenants: Counter[str] = Counter()
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[T]:
        return (item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2]) if id(item) in self._there)

    def join(self, item: T, key: float) -> T | None:
        """Let one wait; whoever is turned away for it, possibly itself."""
        away = None
        if len(self._there) >= self._limit:
            most, count = self._tenants.most_common(1)[0] if self._tenants else ("", 0)
            if count <= self._tenants[item.tenant] + 1:
                return item
            away = self._last_of(most)
            self.leave(away)
        self._sequence += 1
        heapq.heappush(self._heap, (key, self._sequence, item))
        self._there[id(item)] = item
        self._tenants[item.tenant] += 1
        return away

    def leave(self, item: T) -> bool:
        """One waits no longer; False where it did not."""
        if self._there.pop(id(item), None) is None:
            return False
        self._tenants[item.tenant] -= 1
        if not self._tenants[item.tenant]:
            del self._tenants[item.tenant]
        if len(self._heap) > 2 * len(self._there) + 16:  # those who left lie in the heap until they are many
            self._heap = [entry for entry in self._heap if id(entry[2]) in self._there]
            heapq.heapify(self._heap)
        return True

    def serve(self, place: Callable[[T], bool], room: Callable[[], bool]) -> None:
        """Offer waiting requests, first ones first, while there is room."""
        passed: list[tuple[float, int, T]] = []
        while self._heap and len(passed) < _SCAN and room():
            entry = heapq.heappop(self._heap)
            item = entry[2]
            if id(item) not in self._there:
                continue
            if place(item):
                self.leave(item)
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._heap, entry)

    def _last_of(self, tenant: str) -> T:
        mine = [entry for entry in self._heap if entry[2].tenant == tenant and id(entry[2]) in self._there]
        return max(mine, key=lambda entry: entry[:2])[2]

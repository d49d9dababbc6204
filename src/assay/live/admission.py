"""Requests that wait in the gateway because every engine that could take them has enough.

Those that the same engines can take wait in one lane, in the order policy's order: where the first of a lane finds no
room, nobody behind it would, and who waits for a full engine holds up nobody who asks for another one.

The bound is one for all lanes. A full queue turns a newcomer away, unless some other tenant has more waiting: then
that tenant's last one goes. So a flood fills the queue of whoever sends it, not everybody's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the queue needs to know of a request."""

    tenant: str


T = TypeVar("T", bound=Waiting)


class Queue(Generic[T]):
    """Lanes; in each of them, and among their first ones, smallest key first; of equal keys, first come first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lanes: dict[Hashable, list[tuple[float, int, T]]] = {}  # heaps; those who left lie there for a while
        self._there: dict[int, tuple[T, Hashable]] = {}
        self._waiting: Counter[Hashable] = Counter()  # by lane
        self._tenants: Counter[str] = Counter()
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[T]:
        entries = sorted((entry for heap in self._lanes.values() for entry in heap), key=lambda entry: entry[:2])
        return (item for _, _, item in entries if id(item) in self._there)

    def waits(self, lane: Hashable) -> bool:
        """Whether somebody waits in a lane."""
        return lane in self._lanes

    def join(self, item: T, key: float, lane: Hashable = None) -> T | None:
        """Let one wait; whoever is turned away for it, possibly itself."""
        away = None
        if len(self._there) >= self.limit:
            most, count = self._tenants.most_common(1)[0] if self._tenants else ("", 0)
            if count <= self._tenants[item.tenant] + 1:
                return item
            away = self._last_of(most)
            self.leave(away)
        self._sequence += 1
        self._add(lane, (key, self._sequence, item))
        self._tenants[item.tenant] += 1
        return away

    def leave(self, item: T) -> bool:
        """One waits no longer; False where it did not."""
        found = self._there.pop(id(item), None)
        if found is None:
            return False
        lane = found[1]
        self._tenants[item.tenant] -= 1
        if not self._tenants[item.tenant]:
            del self._tenants[item.tenant]
        self._waiting[lane] -= 1
        if not self._waiting[lane]:
            del self._waiting[lane], self._lanes[lane]
        elif len(self._lanes[lane]) > 2 * self._waiting[lane] + 16:  # those who left are many
            self._lanes[lane] = [entry for entry in self._lanes[lane] if id(entry[2]) in self._there]
            heapq.heapify(self._lanes[lane])
        return True

    def serve(self, place: Callable[[T], bool], may: Callable[[Hashable], bool] = lambda lane: True) -> None:
        """Offer the first ones of the lanes that `may` be served, until nobody takes any."""
        heads = [(*self._first(lane)[:2], lane) for lane in list(self._lanes) if may(lane)]
        heapq.heapify(heads)
        while heads:
            lane = heapq.heappop(heads)[2]
            item = self._first(lane)[2]
            if place(item):
                self.leave(item)
                if lane in self._lanes:
                    heapq.heappush(heads, (*self._first(lane)[:2], lane))

    def sort(self, lane_of: Callable[[T], Hashable]) -> None:
        """Who can take what has changed: everybody to the lane where they belong now."""
        entries = [entry for heap in self._lanes.values() for entry in heap if id(entry[2]) in self._there]
        self._lanes, self._there = {}, {}
        self._waiting.clear()
        for entry in entries:
            self._add(lane_of(entry[2]), entry)

    def _add(self, lane: Hashable, entry: tuple[float, int, T]) -> None:
        heapq.heappush(self._lanes.setdefault(lane, []), entry)
        self._there[id(entry[2])] = entry[2], lane
        self._waiting[lane] += 1

    def _first(self, lane: Hashable) -> tuple[float, int, T]:
        heap = self._lanes[lane]
        while id(heap[0][2]) not in self._there:
            heapq.heappop(heap)
        return heap[0]

    def _last_of(self, tenant: str) -> T:
        mine = [
            entry for heap in self._lanes.values() for entry in heap
            if entry[2].tenant == tenant and id(entry[2]) in self._there
        ]  # fmt: skip
        return max(mine, key=lambda entry: entry[:2])[2]

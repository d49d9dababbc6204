"""A least-recently-used cache of bytes on an OrderedDict: obviously right, and slow."""

from __future__ import annotations

from collections import OrderedDict


class Cache:
    """Oldest first in `entries`."""

    def __init__(self, nbytes: int) -> None:
        self.capacity = nbytes
        self.entries: OrderedDict[int, int] = OrderedDict()

    @property
    def used(self) -> int:
        return sum(self.entries.values())

    def get(self, key: int) -> bool:
        if key in self.entries:
            self.entries.move_to_end(key)
            return True
        return False

    def put(self, key: int, nbytes: int) -> list[int]:
        self.entries.pop(key, None)
        if nbytes > self.capacity:
            return []
        evicted = self.shrink(self.capacity - nbytes)
        self.entries[key] = nbytes
        return evicted

    def resize(self, nbytes: int) -> list[int]:
        self.capacity = nbytes
        return self.shrink(nbytes)

    def shrink(self, nbytes: int) -> list[int]:
        evicted = []
        while self.used > nbytes:
            evicted.append(self.entries.popitem(last=False)[0])
        return evicted

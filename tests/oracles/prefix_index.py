"""What engines have in their prefix caches, one ordered dictionary an engine: obviously right, and slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Cache:
    """Last use by hash, coldest first. `parents` knows the hash before each."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: OrderedDict[int, float] = OrderedDict()
        self.parents: dict[int, int | None] = {}

    def insert(self, hashes: Sequence[int], now: float, after: int | None = None) -> int:
        """Use a whole path, deepest block first."""
        path = self.path(after)
        if after is not None and not path:
            return 0
        for parent, block in zip([after, *hashes], hashes, strict=False):
            self.parents[block] = parent
        for block in reversed([*path, *hashes]):
            self.used[block] = now
            self.used.move_to_end(block)
        self.evict()
        return sum(block in self.used for block in hashes)

    def path(self, block: int | None) -> list[int]:
        """From the first block to this one; nothing where it is not there."""
        found: list[int] = []
        while block is not None and block in self.used:
            found.insert(0, block)
            block = self.parents[block]
        return found

    def remove(self, hashes: Sequence[int]) -> None:
        for block in hashes:
            self.used.pop(block, None)
        while orphans := [b for b in self.used if self.parents[b] is not None and self.parents[b] not in self.used]:
            for block in orphans:
                del self.used[block]

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self.evict()

    def evict(self) -> None:
        while len(self.used) > self.capacity:
            self.used.popitem(last=False)

    def match(self, hashes: Sequence[int], oldest: float) -> int:
        """Blocks from the first on, up to the first that is not there or too old."""
        for depth, block in enumerate(hashes):
            if block not in self.used or self.used[block] < oldest:
                return depth
        return len(hashes)

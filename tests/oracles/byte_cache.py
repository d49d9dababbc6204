"""Caches by the letter of their definition: lists searched from end to end, for a handful of keys."""

from __future__ import annotations


class Slow:
    """Holds (key, size) pairs and everything that ever happened; `rank` says who goes, the least first."""

    def __init__(self, capacity: int, policy: str) -> None:
        self.capacity, self.policy = capacity, policy
        self.sizes: dict[str, int] = {}
        self.used_at: dict[str, int] = {}
        self.uses: dict[str, int] = {}
        self.now = 0

    def rank(self, key: str) -> tuple[int, int]:
        return (self.uses[key] if self.policy == "lfu" else 0, self.used_at[key])

    def request(self, key: str, size: int) -> bool:
        self.now += 1
        if key in self.sizes:
            self.uses[key] += 1
            self.used_at[key] = self.now
            return True
        if size <= self.capacity:
            while sum(self.sizes.values()) + size > self.capacity:
                del self.sizes[min(self.sizes, key=self.rank)]
            self.sizes[key], self.uses[key], self.used_at[key] = size, 1, self.now
        return False


def fewest_misses(requests: list[str], slots: int) -> int:
    """The least misses that any choice of victims can have, by trying all of them; all sizes are one."""
    states: dict[frozenset[str], int] = {frozenset(): 0}
    for key in requests:
        after: dict[frozenset[str], int] = {}
        for held, missed in states.items():
            if key in held:
                options = [(held, missed)]
            elif len(held) < slots:
                options = [(held | {key}, missed + 1)]
            else:
                options = [((held - {gone}) | {key}, missed + 1) for gone in held]
            for state, count in options:
                after[state] = min(count, after.get(state, count))
        states = after
    return min(states.values())

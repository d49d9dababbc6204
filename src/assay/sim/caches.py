"""Caches of a bounded number of bytes that evict what was used least recently, compiled.

Entries are integers (an item, a user, a block) and have a size in bytes. Several caches may share one key space and
one memory pool: each is a *part* with a capacity of its own, and the capacities can be moved while it runs. Recency is
a doubly linked list in an integer array, so a look-up, an insertion and an eviction cost a few memory accesses whatever
the cache holds.

:class:`Cache` is the same thing as a Python object, for code that is not compiled.

>>> cache = Cache(nbytes=100, keys=8)
>>> cache.put(0, 60), cache.put(1, 40), cache.get(0)
([], [], True)
>>> cache.put(2, 30)      # key 1 was used longer ago than key 0
[1]
>>> cache.resize(50)      # a smaller cache keeps what was used last
[0]
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

NOTHING = -1
JIT: dict[str, Any] = {"cache": True, "nogil": True, "forceinline": True}


# An entry's columns: neighbours in recency, and size (0 where absent). Four, so that none straddles two cache lines.
NEWER, OLDER, SIZE, COLUMNS = 0, 1, 2, 4


class Lru(NamedTuple):
    """Least-recently-used lists over keys 0..K-1.

    Row K + p of `entries` is the sentinel of part p, between its newest and its oldest key. An entry is smaller than
    2 GiB; its part may be of any size.
    """

    entries: NDArray[np.int32]
    used: NDArray[np.int64]
    capacity: NDArray[np.int64]


def lru(keys: int, capacity: list[int]) -> Lru:
    """Empty caches over keys 0..`keys`-1, one for each capacity.

    >>> lru(10, [100, 200]).capacity.tolist()
    [100, 200]
    """
    parts = len(capacity)
    entries = np.zeros((keys + parts, COLUMNS), np.int32)
    entries[:, NEWER] = entries[:, OLDER] = np.arange(keys + parts)  # a sentinel alone is its own neighbour
    return Lru(entries, np.zeros(parts, np.int64), np.array(capacity, np.int64))


@njit(**JIT)
def _unlink(entries, key):
    a, b = entries[key, NEWER], entries[key, OLDER]
    entries[a, OLDER] = b
    entries[b, NEWER] = a


@njit(**JIT)
def _link(entries, key, after):
    """Put the key just behind `after` in recency; behind the sentinel is the newest place."""
    b = entries[after, OLDER]
    entries[after, OLDER] = key
    entries[key, NEWER] = after
    entries[key, OLDER] = b
    entries[b, NEWER] = key


@njit(**JIT)
def _sentinel(cache, part):
    return len(cache.entries) - len(cache.used) + part


@njit(**JIT)
def touch(cache, key, part):
    """Whether the key is in the cache; if so it is now the newest.

    >>> bool(touch(lru(4, [10]), 0, 0))
    False
    """
    if cache.entries[key, SIZE] == 0:
        return False
    _unlink(cache.entries, key)
    _link(cache.entries, key, _sentinel(cache, part))
    return True


@njit(**JIT)
def remove(cache, key, part):
    """Take a key that is present out of its part.

    >>> c = lru(4, [10])
    >>> insert(c, 2, 0, 5); remove(c, 2, 0); int(c.used[0])
    0
    """
    _unlink(cache.entries, key)
    cache.used[part] -= cache.entries[key, SIZE]
    cache.entries[key, SIZE] = 0


@njit(**JIT)
def insert(cache, key, part, nbytes):
    """Add an absent key as the newest. The caller has made room (:func:`oldest`, :func:`remove`).

    >>> c = lru(4, [10])
    >>> insert(c, 2, 0, 5); int(oldest(c, 0))
    2
    """
    cache.entries[key, SIZE] = nbytes
    cache.used[part] += nbytes
    _link(cache.entries, key, _sentinel(cache, part))


@njit(**JIT)
def insert_oldest(cache, key, part, nbytes):
    """Add an absent key as the one to be evicted next: for what is fetched on speculation.

    >>> c = lru(4, [10])
    >>> insert(c, 2, 0, 5); insert_oldest(c, 3, 0, 5); int(oldest(c, 0))
    3
    """
    cache.entries[key, SIZE] = nbytes
    cache.used[part] += nbytes
    _link(cache.entries, key, cache.entries[_sentinel(cache, part), NEWER])


@njit(**JIT)
def oldest(cache, part):
    """The key that would be evicted next, or NOTHING.

    >>> int(oldest(lru(4, [10]), 0))
    -1
    """
    sentinel = _sentinel(cache, part)
    key = np.int64(cache.entries[sentinel, NEWER])
    return NOTHING if key == sentinel else key


class Cache:
    """One cache of at most `nbytes` over the keys 0..`keys`-1.

    >>> cache = Cache(10, keys=3)
    >>> cache.put(0, 11)  # what can never fit is not kept, and costs nothing its place
    []
    >>> cache.get(0), cache.used
    (False, 0)
    """

    def __init__(self, nbytes: int, keys: int) -> None:
        self.lru = lru(keys, [nbytes])

    @property
    def used(self) -> int:
        """Bytes held."""
        return int(self.lru.used[0])

    def get(self, key: int) -> bool:
        """Whether the key is held; a hit makes it the newest."""
        return bool(touch(self.lru, key, 0))

    def put(self, key: int, nbytes: int) -> list[int]:
        """Hold the key with this size as the newest; returns the keys evicted for it, oldest first."""
        if nbytes < 1:
            raise ValueError(f"an entry needs at least one byte, got {nbytes}")
        if self.lru.entries[key, SIZE]:
            remove(self.lru, key, 0)
        if nbytes > self.lru.capacity[0]:
            return []
        evicted = self._shrink(int(self.lru.capacity[0]) - nbytes)
        insert(self.lru, key, 0, nbytes)
        return evicted

    def resize(self, nbytes: int) -> list[int]:
        """Change the capacity; returns the keys evicted, oldest first."""
        self.lru.capacity[0] = nbytes
        return self._shrink(nbytes)

    def _shrink(self, nbytes: int) -> list[int]:
        evicted = []
        while self.used > nbytes:
            evicted.append(int(oldest(self.lru, 0)))
            remove(self.lru, evicted[-1], 0)
        return evicted

"""A cache of so many bytes, over any keys, with the policy as a parameter.

:mod:`assay.sim.caches` is the compiled cache of integers; this one is for objects and pages, where a miss costs more
than the book-keeping. A policy chooses who goes; the cache counts the bytes.

>>> cache = ByteCache(100, Lru())
>>> cache.put("a", 60), cache.put("b", 40), cache.get("a"), cache.put("c", 30)
([], [], True, ['b'])
>>> cache.hits, cache.misses
(1, 0)
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Hashable, Iterable, Sequence

Key = Hashable


class Policy(ABC):
    """Who goes when room is needed. It is told what comes, what is hit and what goes."""

    @abstractmethod
    def insert(self, key: Key, nbytes: int) -> None:
        """A key comes in."""

    @abstractmethod
    def touch(self, key: Key) -> None:
        """A key that is held was asked for."""

    @abstractmethod
    def remove(self, key: Key) -> None:
        """A key goes, by the policy's choice or another's."""

    @abstractmethod
    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """Who goes next, of those that are not kept; None: nobody may."""

    def missed(self, key: Key) -> None:  # noqa: B027 - most policies need not know
        """A key that is not held was asked for: what has to count all requests learns of it here."""


def _first(keys: Iterable[Key], kept: Container[Key]) -> Key | None:
    return next((key for key in keys if key not in kept), None)


class Lru(Policy):
    """Who was asked for longest ago."""

    def __init__(self) -> None:
        self._order: OrderedDict[Key, None] = OrderedDict()

    def insert(self, key: Key, nbytes: int) -> None:
        """The newest."""
        self._order[key] = None

    def touch(self, key: Key) -> None:
        """The newest again."""
        self._order.move_to_end(key)

    def remove(self, key: Key) -> None:
        """Out of the order."""
        del self._order[key]

    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """The oldest."""
        return _first(self._order, kept)


class _Ranked(Policy):
    """Who has the least rank; equal ranks go in the order they got them. Changed ranks leave stale entries behind."""

    def __init__(self) -> None:
        self._rank: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def _set(self, key: Key, rank: float) -> None:
        self._count += 1
        self._rank[key] = (rank, self._count)
        heapq.heappush(self._heap, (rank, self._count, key))

    def remove(self, key: Key) -> None:
        """Its entry in the heap is stale from now on."""
        del self._rank[key]

    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """The least, past what is stale."""
        passed = []
        found = None
        while self._heap and found is None:
            entry = self._heap[0]
            if self._rank.get(entry[2]) != entry[:2]:
                heapq.heappop(self._heap)
            elif entry[2] in kept:
                passed.append(heapq.heappop(self._heap))
            else:
                found = entry[2]
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found


class Lfu(_Ranked):
    """Who was asked for least often since it came; of equals, who was asked for longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[Key] = Counter()

    def insert(self, key: Key, nbytes: int) -> None:
        """Used once."""
        self._uses[key] = 1
        self._set(key, 1)

    def touch(self, key: Key) -> None:
        """Once more."""
        self._uses[key] += 1
        self._set(key, self._uses[key])

    def remove(self, key: Key) -> None:
        """Its count is forgotten."""
        super().remove(key)
        del self._uses[key]


class MinPending(_Ranked):
    """Who will be needed least often from now on, by a count that the caller keeps (`least=False`: most often).

    ATLAS evicts a partial sum that waits for few more messages: it will be brought back the fewest times.
    """

    def __init__(self, pending: Callable[[Key], float], least: bool = True) -> None:
        super().__init__()
        self._pending, self._sign = pending, 1.0 if least else -1.0

    def insert(self, key: Key, nbytes: int) -> None:
        """By what is pending now."""
        self._set(key, self._sign * self._pending(key))

    def touch(self, key: Key) -> None:
        """Something has changed: ask again."""
        self._set(key, self._sign * self._pending(key))


class S3Fifo(Policy):
    """Newcomers pass a small queue; who is asked for again there moves to the main one; who is not leaves a ghost.

    Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. `small` is the newcomers' share of bytes.
    """

    def __init__(self, nbytes: int, small: float = 0.1) -> None:
        self._room, self._small_room = nbytes, small * nbytes
        self._small: OrderedDict[Key, int] = OrderedDict()
        self._main: OrderedDict[Key, int] = OrderedDict()
        self._ghosts: OrderedDict[Key, int] = OrderedDict()
        self._small_bytes = self._ghost_bytes = 0
        self._uses: dict[Key, int] = {}

    def insert(self, key: Key, nbytes: int) -> None:
        """A ghost has proven itself; anybody else starts in the small queue."""
        self._uses[key] = 0
        if key in self._ghosts:
            self._ghost_bytes -= self._ghosts.pop(key)
            self._main[key] = nbytes
        else:
            self._small[key] = nbytes
            self._small_bytes += nbytes

    def touch(self, key: Key) -> None:
        """Up to three uses count."""
        self._uses[key] = min(self._uses[key] + 1, 3)

    def remove(self, key: Key) -> None:
        """From the small queue one leaves a ghost."""
        del self._uses[key]
        if key in self._main:
            del self._main[key]
            return
        size = self._small.pop(key)
        self._small_bytes -= size
        self._ghosts[key] = size
        self._ghost_bytes += size
        while self._ghost_bytes > self._room:
            self._ghost_bytes -= self._ghosts.popitem(last=False)[1]

    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """The first in its queue that nobody asked for again; those who were asked for get another round."""
        while True:
            new, old = _first(self._small, kept), _first(self._main, kept)
            if new is not None and (self._small_bytes > self._small_room or old is None):
                if self._uses[new] == 0:
                    return new
                size = self._small.pop(new)
                self._small_bytes -= size
                self._uses[new] = 0
                self._main[new] = size
            elif old is None or self._uses[old] == 0:
                return old
            else:
                self._uses[old] -= 1
                self._main.move_to_end(old)


class Belady(_Ranked):
    """Who is needed last, known from the whole future: no policy that must hold what is asked for misses less often.

    (With sizes that differ it is a strong rival and not quite a bound.)
    """

    def __init__(self, future: Iterable[Key]) -> None:
        super().__init__()
        self._next: dict[Key, deque[int]] = defaultdict(deque)
        for when, key in enumerate(future):
            self._next[key].append(when)

    def _passed(self, key: Key) -> float:
        times = self._next[key]
        if times:
            times.popleft()
        return -float(times[0]) if times else -float("inf")

    def insert(self, key: Key, nbytes: int) -> None:
        """By when it is needed next; :meth:`missed` has counted this request."""
        times = self._next[key]
        self._set(key, -float(times[0]) if times else -float("inf"))

    def touch(self, key: Key) -> None:
        """This request is past."""
        self._set(key, self._passed(key))

    def missed(self, key: Key) -> None:
        """So is this one."""
        self._passed(key)


class ByteCache:
    """At most `nbytes` of entries, chosen by a policy. Nobody in `kept` goes: what the step under way depends on.

    >>> cache = ByteCache(10, Lru())
    >>> cache.put("large", 11)  # what can never fit is not kept, and costs nobody its place
    []
    >>> "large" in cache, cache.used
    (False, 0)
    """

    def __init__(self, nbytes: int, policy: Policy | None = None, kept: Container[Key] = ()) -> None:
        self.capacity, self.policy, self.kept = nbytes, policy or Lru(), kept
        self.used = self.hits = self.misses = 0
        self._sizes: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def get(self, key: Key) -> bool:
        """Whether it is held; counts as a use."""
        if key in self._sizes:
            self.hits += 1
            self.policy.touch(key)
            return True
        self.misses += 1
        self.policy.missed(key)
        return False

    def put(self, key: Key, nbytes: int) -> list[Key]:
        """Hold a key; returns who went for it. Where nobody may go and there is no room, it is not held."""
        if nbytes < 0:
            raise ValueError(f"an entry has no negative size, got {nbytes}")
        if key in self._sizes:
            self.drop(key)
        if nbytes > self.capacity:
            return []
        gone: list[Key] = []
        while self.used + nbytes > self.capacity:
            victim = self.policy.victim(self.kept)
            if victim is None:
                return gone
            self.drop(victim)
            gone.append(victim)
        self._sizes[key] = nbytes
        self.used += nbytes
        self.policy.insert(key, nbytes)
        return gone

    def drop(self, key: Key) -> None:
        """Let a key go."""
        self.used -= self._sizes.pop(key)
        self.policy.remove(key)


def replayed(requests: Sequence[tuple[Key, int]], nbytes: int, policy: Policy) -> ByteCache:
    """A cache after a sequence of requests, each fetched and held where it was missed.

    >>> replayed([("a", 1), ("b", 1), ("a", 1)], 2, Lru()).hits
    1
    """
    cache = ByteCache(nbytes, policy)
    for key, size in requests:
        if not cache.get(key):
            cache.put(key, size)
    return cache

"""The cache that the members of a zone share: each blob has one owner there, who fetches it once for all of them.

Owners are found by consistent hashing, so a member that comes or goes moves only its own blobs. Those who ask while a
blob is on its way wait for the same request.
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from assay.data.interface import Buffer, Store
from assay.record.errors import BadInput
from assay.sim.byte_cache import ByteCache
from assay.sim.clock import Clock

POINTS = 64  # of each member on the ring: shares differ by about an eighth
CACHE = 256 << 20  # bytes a member holds


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class Ring:
    """Whose turn it is, by consistent hashing.

    >>> three, two = Ring(["a", "b", "c"]), Ring(["a", "b"])
    >>> names = [f"blob-{i}" for i in range(1000)]
    >>> sum(three.owner(name) != two.owner(name) for name in names if three.owner(name) != "c")
    0
    """

    def __init__(self, members: Sequence[str]) -> None:
        if not members:
            raise BadInput("a zone's cache needs at least one member")
        self.owner = lru_cache(4096)(self._owner)  # the readers of a zone ask for the same blobs
        self._points = sorted((_hash(f"{member}#{point}"), member) for member in members for point in range(POINTS))

    def _owner(self, name: str) -> str:
        """The member at the first point behind the name's own."""
        return self._points[bisect(self._points, (_hash(name), "")) % len(self._points)][1]


@dataclass(frozen=True, slots=True)
class Network:
    """Between two members of a zone: seconds to the first byte, and bytes/s."""

    latency: float = 0.0005
    bandwidth: float = 1.25e9


class _Member:
    """What one member holds: whole blobs, least recently used first out."""

    def __init__(self, store: Store, nbytes: int) -> None:
        self.store, self.cache = store, ByteCache(nbytes)
        self._held: dict[str, memoryview] = {}
        self._coming: dict[str, asyncio.Task[memoryview]] = {}

    async def whole(self, key: str) -> memoryview:
        if self.cache.get(key):
            return self._held[key]
        if key not in self._coming:
            self._coming[key] = asyncio.create_task(self._fetch(key))
        return await asyncio.shield(self._coming[key])

    async def _fetch(self, key: str) -> memoryview:
        try:
            whole = memoryview(await self.store.get(key))
            self.keep(key, whole)
            return whole
        finally:
            del self._coming[key]

    def keep(self, key: str, whole: memoryview) -> None:
        for gone in self.cache.put(key, len(whole)):
            del self._held[str(gone)]
        if key in self.cache:
            self._held[key] = whole


class ZoneCache:
    """Reads of one zone. `network` is what a peer waits for on its way to the owner, where that is simulated.

    >>> from assay.data.store.memory import MemStore
    >>> from assay.data.store.wrappers import Recorded
    >>> async def two_readers_of_one_blob() -> int:
    ...     store = Recorded(MemStore())
    ...     await store.put("blob", b"abcdef")
    ...     zone = ZoneCache(store, ["m0", "m1"])
    ...     await asyncio.gather(zone.get("blob", 0, 3, size=6), zone.get("blob", 3, 3, size=6))
    ...     return sum(op.name == "get" for op in store.trace)
    >>> asyncio.run(two_readers_of_one_blob())
    1
    """

    def __init__(
        self, store: Store, members: Sequence[str], nbytes: int = CACHE, *, network: Network | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.store, self.nbytes = store, nbytes
        self.ring, self.members = Ring(members), {member: _Member(store, nbytes) for member in members}
        self._network, self._clock = network, clock

    async def get(self, key: str, start: int, length: int, *, size: int, member: str = "") -> Buffer:
        """A span of a blob of `size` bytes, for a member; what no cache can hold is read as it is asked for."""
        if size > self.nbytes:
            return await self.store.get(key, start, length)
        owner = self.ring.owner(key)
        whole = await self.members[owner].whole(key)
        if self._network and self._clock and owner != member:
            await self._clock.sleep(self._network.latency + length / self._network.bandwidth)
        return whole[start : start + length]

    def hand_over(self, key: str, whole: bytes) -> None:
        """A writer of this zone gives the owner what it has just written: nobody here needs to fetch it."""
        self.members[self.ring.owner(key)].keep(key, memoryview(whole))

    @property
    def hits(self) -> int:
        """Reads that were answered from memory."""
        return sum(member.cache.hits for member in self.members.values())

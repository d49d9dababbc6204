"""A cache of whole objects in front of a store, for objects that never change once they are written.

>>> import asyncio
>>> from assay.data.store.memory import MemStore
>>> store = Cached(MemStore(), nbytes=1000)
>>> _ = asyncio.run(store.put("a", b"0123456789"))
>>> bytes(asyncio.run(store.get("a", 2, 3))), bytes(asyncio.run(store.get("a", 5, 2)))
(b'234', b'56')
>>> store.cache.hits, store.cache.misses
(1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.data.interface import Buffer, Meta, OutOfRange, Span, Store
from assay.data.store.wrappers import Wrapper
from assay.sim.byte_cache import ByteCache, Policy


class Cached(Wrapper):
    """Keeps what was read, up to so many bytes; the policy says who goes.

    What is put or deleted through this store is forgotten here. Changes by others are not noticed: use it on names that
    are written once. An object larger than the cache is read as it is asked for.
    """

    def __init__(self, inner: Store, nbytes: int, policy: Policy | None = None) -> None:
        super().__init__(inner)
        self.cache = ByteCache(nbytes, policy)
        self._held: dict[str, memoryview] = {}

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """From here, or the whole object from the store."""
        if self.cache.get(key):
            whole = self._held[key]
        else:
            meta = await self.inner.head(key)
            if meta is None or meta.size > self.cache.capacity:
                return await self.inner.get(key, start, length)
            whole = memoryview(await self.inner.get(key))
            self._keep(key, whole)
        end = len(whole) if length is None else start + length
        if not 0 <= start <= end <= len(whole):
            raise OutOfRange(f"{key} has {len(whole)} bytes, not {end}")
        return whole[start:end]

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Each from the cache."""
        return [await self.get(key, start, length) for start, length in spans]

    async def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Copied from the cache."""
        into[:] = await self.get(key, start, len(into))

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Written through."""
        self._forget(key)
        return await self.inner.put(key, data, if_absent=if_absent)

    async def delete(self, *keys: str) -> None:
        """Here, too."""
        for key in keys:
            self._forget(key)
        await self.inner.delete(*keys)

    def _keep(self, key: str, whole: memoryview) -> None:
        for gone in self.cache.put(key, len(whole)):
            del self._held[str(gone)]
        if key in self.cache:
            self._held[key] = whole

    def _forget(self, key: str) -> None:
        if key in self.cache:
            self.cache.drop(key)
            del self._held[key]

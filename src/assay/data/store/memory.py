"""Objects in memory: as atomic as any store, and gone with the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence

from assay.data.interface import AlreadyExists, Buffer, Meta, NotFound, OutOfRange, Store, checked_key
from assay.sim.clock import Clock, WallClock


class MemStore(Store):
    """A dictionary with the manners of an object store.

    >>> import asyncio
    >>> store = MemStore()
    >>> asyncio.run(store.put("a/b", b"hello", if_absent=True)).size
    5
    >>> bytes(asyncio.run(store.get("a/b", 1, 3)))
    b'ell'
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or WallClock()
        self.objects: dict[str, bytes] = {}
        self._times: dict[str, float] = {}
        self._keys: list[str] = []  # in order

    def copy(self, clock: Clock) -> MemStore:
        """A store of its own with the same objects."""
        other = MemStore(clock)
        other.objects, other._times, other._keys = dict(self.objects), dict(self._times), list(self._keys)
        return other

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Keep a copy: what the caller does to its buffers later is no longer our business."""
        if key not in self.objects:
            insort(self._keys, checked_key(key))
        elif if_absent:
            raise AlreadyExists(f"{key} is there already")
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        self.objects[key] = whole
        now = self._times[key] = self.clock.now()
        return Meta(key, len(whole), now)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """A view, without a copy."""
        whole = self.objects.get(key)
        if whole is None:
            raise NotFound(f"there is no {key}")
        if start == 0 and length is None:
            return whole
        end = len(whole) if length is None else start + length
        if not 0 <= start <= end <= len(whole):
            raise OutOfRange(f"{key} has {len(whole)} bytes, not {end}")
        return memoryview(whole)[start:end]

    async def head(self, key: str) -> Meta | None:
        """What is kept of it."""
        whole = self.objects.get(key)
        return None if whole is None else Meta(key, len(whole), self._times[key])

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """In key order; the keys are those of the moment it began."""
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        for key in self._keys[first : bisect_left(self._keys, prefix + "\x7f")]:
            if key in self.objects:  # deleted since
                yield Meta(key, len(self.objects[key]), self._times[key])

    async def delete(self, *keys: str) -> None:
        """Forget them."""
        for key in keys:
            if self.objects.pop(key, None) is not None:
                del self._times[key]
                del self._keys[bisect_left(self._keys, key)]

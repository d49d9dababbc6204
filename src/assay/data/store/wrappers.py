"""What can be put around a store, in any order: each is a store again.

Every request passes one place, :meth:`Wrapper.around`, so a wrapper is one method. Listing is asked for in pages of a
thousand keys, as S3 gives it, and each page is a request.

>>> import asyncio
>>> from assay.data.store.memory import MemStore
>>> ledger = Ledger()
>>> store = Metered(MemStore(), ledger, who="me")
>>> _ = asyncio.run(store.put("a", b"bytes"))
>>> ledger.requests("put"), ledger.nbytes("put")
(1, 5)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from assay.data.interface import Buffer, Meta, Span, Store, nbytes
from assay.sim.clock import Clock
from assay.sim.ledger import Ledger

T = TypeVar("T")
PAGE = 1000  # keys to a request


class Op(NamedTuple):
    """A request on its way: what, on which key (a listing: prefix), with how many bytes."""

    name: str
    key: str
    nbytes: int = 0
    if_absent: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes the store."""
        return self.name in ("put", "delete")


class Wrapper(Store):
    """A store around another; subclasses say what happens around each request."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Do the request. Overridden by what has something to do before, after, or instead."""
        return await call()

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Around the inner put."""
        op = Op("put", key, nbytes(data), if_absent)
        return await self.around(op, lambda: self.inner.put(key, data, if_absent=if_absent))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """Around the inner get."""
        return await self.around(Op("get", key, length or 0), lambda: self.inner.get(key, start, length))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Around the inner one: to a meter each span is a request."""
        op = Op("get", key, sum(length for _, length in spans))
        return await self.around(op, lambda: self.inner.get_ranges(key, spans))

    async def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Around the inner one."""
        await self.around(Op("get", key, len(into)), lambda: self.inner.read_into(key, start, into))

    async def head(self, key: str) -> Meta | None:
        """Around the inner head."""
        return await self.around(Op("head", key), lambda: self.inner.head(key))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Around every page of the inner listing."""
        keys = self.inner.list(prefix, start_after)

        async def page() -> list[Meta]:
            found: list[Meta] = []
            async for meta in keys:
                found.append(meta)
                if len(found) == PAGE:
                    break
            return found

        while True:
            metas = await self.around(Op("list", prefix), page)
            for meta in metas:
                yield meta
            if len(metas) < PAGE:
                return

    async def delete(self, *keys: str) -> None:
        """Around the inner delete, a thousand keys at a time."""
        for first in range(0, len(keys), PAGE):
            some = keys[first : first + PAGE]
            await self.around(Op("delete", some[0]), partial(self.inner.delete, *some))


def answered(found: Any, op: Op) -> int:
    """The bytes that a request moved: those of its answer, or those that were put."""
    if isinstance(found, bytes | bytearray | memoryview):
        return nbytes(found)
    return op.nbytes


class Metered(Wrapper):
    """Writes every request into a ledger, with the seconds it took on the clock; a request that failed costs, too."""

    def __init__(self, inner: Store, ledger: Ledger, *, who: str = "", clock: Clock | None = None) -> None:
        super().__init__(inner)
        self.ledger, self.who = ledger, who
        self._now = clock.now if clock else time.perf_counter

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Count it."""
        began = self._now()
        moved = op.nbytes if op.changes else 0
        try:
            found = await call()
            moved = answered(found, op)
            return found
        finally:
            self.ledger.add(op.name, self.who, nbytes=moved, seconds=self._now() - began)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Each span is charged as a request."""
        began = self._now()
        found = await self.inner.get_ranges(key, spans)
        moved, took = sum(nbytes(part) for part in found), self._now() - began
        self.ledger.add("get", self.who, nbytes=moved, seconds=took, requests=len(spans))
        return found


class Zoned(Wrapper):
    """Counts the bytes that cross from one zone to another, by where the client is and where the key's holder is.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> ledger = Ledger()
    >>> store = Zoned(MemStore(), ledger, here="a", zones={"cache/": "b"})
    >>> _ = asyncio.run(store.put("cache/x", b"1234")); _ = asyncio.run(store.put("blob/x", b"1234"))
    >>> {line["zone"]: line["nbytes"] for line in ledger.rows()}
    {'a>b': 4}
    """

    def __init__(self, inner: Store, ledger: Ledger, *, here: str, zones: Mapping[str, str], who: str = "") -> None:
        super().__init__(inner)
        self.ledger, self.here, self.who = ledger, here, who
        self.zones = sorted(zones.items(), key=lambda one: -len(one[0]))  # the longest prefix decides

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Note where the bytes went. What has no zone is the region's own: reaching it is free."""
        found = await call()
        there = next((zone for prefix, zone in self.zones if op.key.startswith(prefix)), self.here)
        moved = answered(found, op)
        if there != self.here and moved:
            way = f"{self.here}>{there}" if op.changes else f"{there}>{self.here}"
            self.ledger.add("transfer", self.who, way, moved)
        return found


class Recorded(Wrapper):
    """Keeps what was asked, in order, whether or not it succeeded.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> store = Recorded(MemStore())
    >>> _ = asyncio.run(store.put("a", b"1")); asyncio.run(store.delete("a"))
    >>> [(op.name, op.key) for op in store.trace]
    [('put', 'a'), ('delete', 'a')]
    """

    def __init__(self, inner: Store, trace: list[Op] | None = None) -> None:
        super().__init__(inner)
        self.trace: list[Op] = [] if trace is None else trace

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Note it, then do it."""
        self.trace.append(op)
        return await call()


class Watched(Wrapper):
    """Tells how many bytes have moved so far, after each request: what a progress bar wants to know.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> told: list[int] = []
    >>> store = Watched(MemStore(), told.append)
    >>> _ = asyncio.run(store.put("a", b"123")); _ = asyncio.run(store.get("a"))
    >>> told
    [3, 6]
    """

    def __init__(self, inner: Store, moved: Callable[[int], None]) -> None:
        super().__init__(inner)
        self.moved, self.so_far = moved, 0

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Do it, then tell."""
        found = await call()
        if moved := answered(found, op):
            self.so_far += moved
            self.moved(self.so_far)
        return found

"""A scenario's life, kept change by change: how the store was at any of them, without living up to it again.

Whoever dies at a change leaves what was durable by then, whatever the process was about to do. So all the deaths of a
scenario take one life of it; only lives that go on, with an answer lost, are lived each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from assay.data.crash.faulty import Crash, Fault, Faulty
from assay.data.interface import AlreadyExists, Buffer, Meta, Store
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op, Wrapper
from assay.sim.clock import Clock, VirtualClock


class Frame(NamedTuple):
    """A change, when it was asked for, and what callers had been promised by then."""

    op: Op
    data: bytes
    when: float
    promised: tuple[Any, ...]

    async def onto(self, store: Store) -> None:
        """Do it again, there."""
        if self.op.name == "delete":
            await store.delete(self.op.key)
        else:
            with suppress(AlreadyExists):
                await store.put(self.op.key, self.data, if_absent=self.op.if_absent)


class Camera(Wrapper):
    """Takes a frame of every change."""

    def __init__(self, inner: Store, promised: Sequence[Any], clock: Clock) -> None:
        super().__init__(inner)
        self.film = Film()
        self._promised, self._clock = promised, clock

    def _take(self, op: Op, data: bytes = b"") -> None:
        self.film.frames.append(Frame(op, data, self._clock.now(), tuple(self._promised)))

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """With its bytes."""
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        self._take(Op("put", key, len(whole), if_absent), whole)
        return await self.inner.put(key, whole, if_absent=if_absent)

    async def delete(self, *keys: str) -> None:
        """One change a key."""
        for key in keys:
            self._take(Op("delete", key))
            await self.inner.delete(key)


class Film:
    """The changes of a life. It is wound on from death to death, so ask for them in their order.

    >>> import asyncio
    >>> from assay.data.crash.faulty import Kind
    >>> camera = Camera(MemStore(), [], VirtualClock())
    >>> async def twice() -> list[str]:
    ...     _ = await camera.put("a", b"1"), await camera.put("b", b"2")
    ...     world, _, _ = await camera.film.death(Fault(1, Kind.BEFORE))
    ...     return list(world.objects)
    >>> asyncio.run(twice())
    ['a']
    """

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._rewind()

    def _rewind(self) -> None:
        self._at, self._moment = 0, 0.0
        self._world = MemStore(self)

    def now(self) -> float:
        """When the change was made that is being done again."""
        return self._moment

    async def sleep(self, seconds: float) -> None:
        """Nothing waits here."""

    async def death(self, fault: Fault) -> tuple[MemStore, Faulty, list[Any]]:
        """What a process leaves that dies so: the store, its own way to it with what may still land, its promises."""
        if fault.at < self._at:
            self._rewind()
        while self._at < fault.at:
            frame = self.frames[self._at]
            self._moment, self._at = frame.when, self._at + 1
            await frame.onto(self._world)
        world = self._world.copy(VirtualClock())
        dead = Faulty(world, fault)
        dead.trace = [frame.op for frame in self.frames[: fault.at]]
        with suppress(Crash):
            await self.frames[fault.at].onto(dead)
        return world, dead, list(self.frames[fault.at].promised)

"""A store that fails once, at a chosen change, in a chosen way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from assay.data.interface import AlreadyExists, Buffer, Meta, Store, Unknown
from assay.data.store.wrappers import Op, Wrapper
from assay.record.errors import BadInput

T = TypeVar("T")


class Crash(BaseException):
    """The process is gone."""


class Kind(StrEnum):
    """What happens to the change."""

    BEFORE = "before"  # the process dies, and the change does not happen
    AFTER = "after"  # the change happens, and the process dies before it hears of it
    LOST = "lost"  # the change happens, its answer is lost, and the process goes on
    REFUSED = "refused"  # the change does not happen, its answer is lost, and the process goes on
    LATE = "late"  # the process dies; the change happens when its successor has recovered
    LAST = "last"  # the process dies; the change happens when its successor has finished


DEATHS = (Kind.BEFORE, Kind.AFTER)


@dataclass(frozen=True, slots=True)
class Fault:
    """Which change (the first is 0), and what happens to it.

    >>> str(Fault(12, Kind.LATE)), Fault.parse("12:late")
    ('12:late', Fault(at=12, kind=<Kind.LATE: 'late'>))
    """

    at: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read it as it is written."""
        at, colon, kind = text.partition(":")
        if not colon or not at.isdecimal() or kind not in list(Kind):
            raise BadInput(f"'{text}' is no fault; a change and one of {', '.join(Kind)} expected, as 12:late")
        return cls(int(at), Kind(kind))


def die() -> None:
    """How a simulated process ends; a real one is ended by `os._exit`."""
    raise Crash


class Faulty(Wrapper):
    """Counts the changes and fails at one. A process that died stays dead: whatever it still tries does not happen.

    Deleting several objects is as many changes, for a crash may come between them.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> store = Faulty(MemStore(), Fault(1, Kind.LOST))
    >>> _ = asyncio.run(store.put("a", b""))
    >>> asyncio.run(store.put("b", b""))
    Traceback (most recent call last):
    assay.data.interface.Unknown: nobody said whether put b happened
    """

    def __init__(self, inner: Store, fault: Fault | None = None, die: Callable[[], None] = die) -> None:
        super().__init__(inner)
        self.fault, self.trace = fault, list[Op]()
        self._die, self._dead = die, False
        self._late: Callable[[], Awaitable[Any]] | None = None

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Fail, if this is the one."""
        if self._dead:
            self._die()
        if not op.changes:
            return await call()
        self.trace.append(op)
        if self.fault is None or len(self.trace) - 1 != self.fault.at:
            return await call()
        kind = self.fault.kind
        if kind in (Kind.AFTER, Kind.LOST):
            await call()
        if kind in (Kind.LATE, Kind.LAST):
            self._late = call
        if kind not in (Kind.LOST, Kind.REFUSED):
            self._dead = True
            self._die()
        raise Unknown(f"nobody said whether {op.name} {op.key} happened")

    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """A late one brings the bytes it set out with, whatever became of the buffers."""
        if self.fault is not None and len(self.trace) == self.fault.at:
            data = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        return await super().put(key, data, if_absent=if_absent)

    async def delete(self, *keys: str) -> None:
        """One change a key."""
        for key in keys:
            await self.around(Op("delete", key), partial(self.inner.delete, key))

    async def land(self) -> None:
        """The change that was on its way when the process died arrives."""
        if self._late is not None:
            late, self._late = self._late, None
            with suppress(AlreadyExists):
                await late()

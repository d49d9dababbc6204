"""A log of numbered records that writers extend by create-only puts: the room's one way to commit.

Record v is the object `<prefix>/{v:020d}`. Whoever creates it has committed; whoever comes second reads it, and tries
v + 1. Nobody holds a lock, and a writer that died while its request was on the way has either taken the next number, or
finds it taken.

A record carries its author's mark, so that a writer whose answer was lost can read back whether the record is its own.
Now and then somebody writes the folded state beside the log (`<prefix>-state/`); readers start there, and what comes
before it can be trimmed. A trimmed number is free again, so a writer that slept meanwhile could take it and believe
that it committed: therefore nothing is trimmed within GRACE seconds, and who took longer than that looks again.

>>> from assay.data.store.memory import MemStore
>>> import asyncio
>>> log = VersionLog(MemStore(), "log", author="me")
>>> asyncio.run(log.append(0, b"first")), asyncio.run(log.append(0, b"again"))
(True, False)
>>> asyncio.run(log.latest())
0
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from assay.data.engine.puts import ATTEMPTS, put_surely
from assay.data.interface import AlreadyExists, Buffer, NotFound, Store, StoreError, Unknown, Violation
from assay.sim.clock import Clock, WallClock

EMPTY = -1
_MAGIC = b"VLOG1\n"
_MARK = 16
_HEAD = len(_MAGIC) + 2 * _MARK
GRACE = 60.0  # seconds


class Damaged(StoreError):  # noqa: N818 - read as a sentence
    """An object's bytes are not those that were written."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that folding the records 0..version gives."""

    version: int
    state: bytes


class VersionLog:
    """Records under a prefix. `author` must differ between any two that ever write; left out, it is random."""

    def __init__(self, store: Store, prefix: str, *, author: str = "", clock: Clock | None = None) -> None:
        self.store, self.prefix, self.clock = store, prefix, clock or WallClock()
        self._mark = blake2b((author or os.urandom(16).hex()).encode(), digest_size=_MARK).digest()
        self._seen = EMPTY  # the newest version known to exist,
        self._looked = self.clock.now()  # and when it was known to be the newest

    @property
    def slept(self) -> bool:
        """Whether the last look is so long ago that what it saw may have been trimmed."""
        return self.clock.now() - self._looked > GRACE

    def key(self, version: int) -> str:
        """Where a record lies."""
        return f"{self.prefix}/{version:020d}"

    def state_key(self, version: int) -> str:
        """Where the state after a record lies, if anybody wrote it."""
        return f"{self.prefix}-state/{version:020d}"

    async def append(self, version: int, record: Buffer) -> bool:
        """Try to make this record the given version. True: it is; False: another's is.

        A lost answer is settled here: by reading back, and by putting the same bytes again where nothing is.
        """
        data = self._sealed(record)
        lost: Unknown | None = None
        for _ in range(ATTEMPTS):
            try:
                await self.store.put(self.key(version), data, if_absent=True)
            except AlreadyExists:
                return await self._is_mine(version, data)
            except Unknown as error:
                lost = error
                if await self.store.head(self.key(version)) is not None:
                    return await self._is_mine(version, data)
                continue  # it may still land: the same bytes under the same name, so trying again is harmless
            await self._not_trimmed(version)
            self._seen, self._looked = max(self._seen, version), self.clock.now()
            return True
        raise Unknown(f"{lost} ({ATTEMPTS} times in a row); run it again") from lost

    async def _not_trimmed(self, version: int) -> None:
        """Whether the number was free because nobody had it, and not because it was trimmed while we slept."""
        if not self.slept:
            return
        async for meta in self.store.list(f"{self.prefix}-state/", self.state_key(version - 1)):
            raise Unknown(f"{self.key(version)} was written so late that {meta.key} may not know of it; read it again")

    async def _is_mine(self, version: int, data: bytes) -> bool:
        self._seen = max(self._seen, version)
        return bytes(await self.store.get(self.key(version))) == data

    async def read(self, version: int) -> bytes:
        """A record; Damaged where its bytes have changed."""
        return _opened(self.key(version), await self.store.get(self.key(version)))

    async def latest(self) -> int:
        """The newest version, EMPTY where there is none. One small request where nothing happened since last time."""
        if self._seen == EMPTY:
            async for meta in self.store.list(f"{self.prefix}-state/"):
                self._seen = _number(meta.key)
            async for meta in self.store.list(f"{self.prefix}/", self.key(self._seen) if self._seen >= 0 else ""):
                self._seen = _number(meta.key)
        while True:
            self._looked = self.clock.now()
            if await self.store.head(self.key(self._seen + 1)) is None:
                return self._seen
            self._seen += 1

    async def newer(self, after: int) -> list[int]:
        """The versions behind one, by a listing: one request for up to a thousand of them."""
        looked = self.clock.now()
        start = self.key(after) if after >= 0 else ""
        found = [_number(meta.key) async for meta in self.store.list(f"{self.prefix}/", start)]
        self._looked = looked
        self._seen = max([self._seen, *found])
        return found

    async def tail(self, after: int) -> AsyncIterator[tuple[int, bytes]]:
        """The records behind a version, in order, up to the newest."""
        version = after + 1
        while True:
            looked = self.clock.now()
            try:
                record = await self.read(version)
            except NotFound:
                self._looked = looked
                return
            self._seen = max(self._seen, version)
            yield version, record
            version += 1

    async def snapshot(self) -> Snapshot:
        """The newest state somebody wrote; version EMPTY and no bytes where nobody did."""
        keys = [meta.key async for meta in self.store.list(f"{self.prefix}-state/")]
        for key in reversed(keys):
            try:
                state = _opened(key, await self.store.get(key))
            except NotFound:  # trimmed meanwhile: a newer one is there, or will be in the next listing
                continue
            return Snapshot(_number(key), state)
        return Snapshot(EMPTY, b"")

    async def save_state(self, version: int, state: Buffer) -> None:
        """Write the state after a version. Folding is deterministic, so whoever comes second has written the same."""
        with suppress(Unknown):  # a convenience: without it, readers begin farther back
            await put_surely(self.store, self.state_key(version), self._sealed(state), if_absent=True)

    async def trim(self, keep: int) -> None:
        """Delete the records and states before version `keep`, if its state is older than GRACE: readers start there.

        A dead writer's record may yet land on a number below. Nobody reads there any more; the next trim removes it.
        """
        state = await self.store.head(self.state_key(keep))
        if state is None or self.clock.now() - state.modified < GRACE:
            return
        last = self.key(keep)
        old = [meta.key async for meta in self.store.list(f"{self.prefix}/") if meta.key < last]
        old += [meta.key async for meta in self.store.list(f"{self.prefix}-state/") if meta.key < self.state_key(keep)]
        if old:
            await self.store.delete(*old)

    async def check(self) -> Sequence[Violation]:
        """Gaps and damage, from the newest state on."""
        wrong: list[Violation] = []
        base = (await self.snapshot()).version
        versions = [_number(meta.key) async for meta in self.store.list(f"{self.prefix}/")]
        expected = base + 1
        for version in versions:
            if version <= base:
                continue
            if version != expected:
                wrong.append(Violation("the log has no gaps", f"{self.key(expected)} is missing before {version}"))
            expected = version + 1
            try:
                await self.read(version)
            except Damaged as error:
                wrong.append(Violation("records are whole", str(error)))
        return wrong

    def _sealed(self, record: Buffer) -> bytes:
        return _MAGIC + self._mark + blake2b(self._mark + bytes(record), digest_size=_MARK).digest() + bytes(record)


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])


def _opened(key: str, data: Buffer) -> bytes:
    whole = bytes(data)
    record, mark = whole[_HEAD:], whole[len(_MAGIC) : len(_MAGIC) + _MARK]
    digest = blake2b(mark + record, digest_size=_MARK).digest()
    if not whole.startswith(_MAGIC) or digest != whole[_HEAD - _MARK : _HEAD]:
        raise Damaged(f"{key} is damaged: its bytes are not those that were written; restore it from a copy")
    return record

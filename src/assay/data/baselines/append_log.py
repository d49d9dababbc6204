"""The smallest component that loses nothing: records go into blobs, and a log says which blobs count.

It is how a component of this room is written: data first, then one create-only record that points to it; recovery is
reading the log. What a crash leaves behind is a blob that no record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from assay.data.engine.segments import SegmentBlob, open_blob
from assay.data.engine.version_log import GRACE, VersionLog
from assay.data.interface import Store, StoreError, Violation
from assay.sim.clock import Clock
from assay.sim.streams import key as key_of

BATCH = 4  # records to a blob
STATE_EVERY = 16  # versions


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A record of the log: a blob, and the numbers of the records in it."""

    blob: str
    first: int
    count: int


class AppendLog:
    """Numbered records, each kept exactly once and in order, by however many writers."""

    key = "append-log"
    roles: tuple[str, ...] = ("writer",)

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Read the newest state and the records behind it."""
        self.store, self.clock = store, clock
        self.author = f"{key_of(seed, 'append-log'):016x}"
        self.log = VersionLog(store, "log", author=self.author, clock=clock)
        state = await self.log.snapshot()
        self.version = state.version
        self.entries = msgspec.msgpack.decode(state.state, type=list[Entry]) if state.state else []
        await self._catch_up()

    async def _catch_up(self) -> None:
        async for version, record in self.log.tail(self.version):
            self.version = version
            self.entries.append(msgspec.msgpack.decode(record, type=Entry))

    @property
    def count(self) -> int:
        """Records that are committed."""
        return self.entries[-1].first + self.entries[-1].count if self.entries else 0

    async def append(self, records: Sequence[bytes], first: int) -> bool:
        """Commit records as numbers `first`, …; False where another writer has those numbers by now."""
        blob = SegmentBlob()
        for number, record in enumerate(records, first):
            blob.add(str(number), record)
        name = f"blob/{first:012d}-{self.author}-{self.version + 1}"
        await self.store.put(name, blob.parts())
        while self.count == first:
            entry = Entry(name, first, len(records))
            if await self.log.append(self.version + 1, msgspec.msgpack.encode(entry)):
                self.version += 1
                self.entries.append(entry)
                return True
            await self._catch_up()
        return False

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Append until there are two records a change; now and then write the state, and trim what it covers."""
        while self.count < 2 * ops:
            first = self.count
            if await self.append([content(first + i) for i in range(BATCH)], first):
                promised.extend(range(first, first + BATCH))
            if self.version % STATE_EVERY == STATE_EVERY - 1:
                await self.log.save_state(self.version, msgspec.msgpack.encode(self.entries))
                await self.clock.sleep(GRACE)
                await self.log.trim(self.version)

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Every promised record is there, every record is there once, and all of them are what was written."""
        wrong = list(await self.log.check())
        expected = 0
        for entry in self.entries:
            if entry.first != expected:
                wrong.append(Violation("each record once, in order", f"{entry.first} follows {expected - 1}"))
            expected = entry.first + entry.count
            try:
                blob = await open_blob(self.store, entry.blob)
                found = {number: bytes(await blob.get(str(number))) for number in range(entry.first, expected)}
                changed = [number for number, data in found.items() if data != content(number)]
                wrong += [Violation("records keep their bytes", f"record {number}") for number in changed]
            except StoreError as error:
                wrong.append(Violation("a committed blob can be read", str(error)))
        if lost := [number for number in promised if number >= expected]:
            wrong.append(Violation("what was promised is there", f"records {lost[:3]} of {expected}"))
        return wrong


def content(number: int) -> bytes:
    """The bytes of a scenario's record.

    >>> content(7)
    b'record 7'
    """
    return b"record %d" % number


offers = {"crashable": AppendLog}

"""A producer: writes whole batches, and commits the written ones by one create-only put of the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import msgspec

from assay.data.engine.puts import put_surely
from assay.data.engine.segments import SegmentBlob
from assay.data.interface import Buffer, Fenced, Store
from assay.data.lakestream.manifest import Batch, Change, Manifest, Row, Slice, data_key
from assay.data.lakestream.pace import Pace
from assay.record.errors import BadInput
from assay.sim.clock import Clock
from assay.sim.streams import stream

PENDING = 512 << 20  # bytes of batches that wait to be committed at most
CHECK = 16  # bytes kept of a slice's digest


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that is durable and not yet visible."""

    batch: Batch
    cursor: Any


class Producer:
    """Publishes batches under a name that survives restarts; its source goes on where the last visible batch ended.

    `background`: commit while the next batch is made, else in between. Whoever starts a name that another process
    still uses takes it over: the other one's next commit raises :class:`~assay.data.interface.Fenced`.
    """

    def __init__(
        self, store: Store, manifest: Manifest, name: str, slices: int, pace: Pace, clock: Clock, *, seed: int = 0,
        background: bool = True, most: int = PENDING,
    ) -> None:  # fmt: skip
        self.store, self.manifest, self.name, self.slices = store, manifest, name, slices
        self.pace, self.clock, self.background, self.most = pace, clock, background, most
        self.commits = self.conflicts = 0
        self.epoch = 0  # not started
        self._random = stream(seed, "producer", name)
        self._pending: dict[int, Pending] = {}
        self._next_seq = self._won_at = 0
        self._due = 0.0
        self._room = self._some_room()
        self._lock = asyncio.Lock()
        self._committer: asyncio.Task[None] | None = None

    async def start(self) -> Any:
        """Take the name; returns the cursor at which its source goes on, None for the beginning."""
        while True:
            state = await self.manifest.refresh()
            row = state.table.get(self.name, Row())
            mine = msgspec.structs.replace(row, epoch=row.epoch + 1)
            if await self.manifest.append(Change(state.next_step, state.base, [], self.name, mine)):
                break
            await self._jitter(0.05)
        self.epoch, self._next_seq, self._won_at = mine.epoch, mine.last_seq + 1, self.manifest.version
        self._due = self.clock.now() + self._pause()
        if self.background:
            self._committer = asyncio.ensure_future(self._committing())
        return mine.cursor

    @property
    def waiting(self) -> int:
        """Bytes of the batches that are not yet visible."""
        return sum(one.batch.nbytes for one in self._pending.values())

    async def publish(self, slices: Sequence[Buffer], cursor: Any = None) -> None:
        """Write a batch, one slice a coordinate; `cursor` is where the source goes on behind it.

        Several may be on their way at once: they become visible in the order of the calls, whichever is written first.
        """
        if len(slices) != self.slices:
            raise BadInput(f"a batch of this plane has {self.slices} slices, not {len(slices)}")
        await self._told()
        blob, seq = SegmentBlob(), self._next_seq
        self._next_seq += 1
        segments = [blob.add(str(i), data) for i, data in enumerate(slices)]
        batch = Batch(
            self.name, self.epoch, seq, [Slice(one.offset, one.length, one.digest[:CHECK]) for one in segments]
        )
        await put_surely(self.store, data_key(self.name, self.epoch, seq), blob.parts())
        self._pending[seq] = Pending(batch, cursor)
        full = self.waiting >= self._room
        if full or (not self.background and self.clock.now() >= self._due):
            await self.commit()

    async def finish(self, *, done: bool = True) -> None:
        """Commit what waits, and that the source has ended, if it has."""
        await self._told()
        async with self._lock:  # a commit in the background ends as it will
            self.stop()
        await self.commit(done=done)

    def stop(self) -> None:
        """No more commits in the background; what waits is left to the next start of this name."""
        if self._committer is not None:
            self._committer.cancel()
            self._committer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # told already
            self._committer = None

    async def commit(self, *, done: bool = False) -> None:
        """Make all that was published visible, at once and in order."""
        async with self._lock:
            while not await self._attempt(done):
                self.conflicts += 1
                await self._jitter(0.5 * self.pace.interval)
            self._due = self.clock.now() + self._pause()
            self._room = self._some_room()

    async def _attempt(self, done: bool) -> bool:
        began = self.clock.now()
        state = await self.manifest.refresh()
        row = state.table.get(self.name, Row())
        if row.epoch != self.epoch:
            raise Fenced(f"another process produces as '{self.name}' now; this one's last batches are not visible")
        # What an earlier commit made visible although its answer was lost goes; what waits for an earlier one stays.
        self._pending = {seq: one for seq, one in self._pending.items() if seq > row.last_seq}
        new = [self._pending[seq] for seq in takewhile(self._pending.__contains__, count(row.last_seq + 1))]
        if not new and row.done >= done:
            return True
        seq, cursor = (new[-1].batch.seq, new[-1].cursor) if new else (row.last_seq, row.cursor)
        encoded = [msgspec.Raw(msgspec.msgpack.encode(one.batch)) for one in new]
        change = Change(state.next_step, state.base, encoded, self.name, Row(self.epoch, seq, cursor, done))
        if not await self.manifest.append(change):
            self.pace.lost(self.clock.now() - began)
            return False
        for one in new:
            del self._pending[one.batch.seq]
        self.commits += 1
        self.pace.committed(self.clock.now() - began, self.manifest.version - self._won_at)
        self._won_at = self.manifest.version
        return True

    async def _committing(self) -> None:
        while True:
            await self.clock.sleep(max(self._due - self.clock.now(), 0.01))
            if self._pending and self.clock.now() >= self._due:
                await self.commit()

    async def _told(self) -> None:
        """Raise what went wrong in the background."""
        if self._committer is not None and self._committer.done() and not self._committer.cancelled():
            committer, self._committer = self._committer, None
            await committer

    def _pause(self) -> float:
        return self.pace.interval * float(self._random.uniform(0.5, 1.5))

    def _some_room(self) -> float:
        """Bytes that may wait, drawn anew for each commit: who started together would fill the same room together."""
        return self.most * float(self._random.uniform(0.5, 1.0))

    async def _jitter(self, most: float) -> None:
        await self.clock.sleep(float(self._random.uniform(0.0, min(max(most, 0.01), 1.0))))

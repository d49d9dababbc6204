"""Which checkpoints there are: a log of what was saved and what was collected.

A save is one record, written when all of its bytes are durable. Collecting is a record, too, written before anything is
deleted: it names what will go. So a save that was prepared before a collection and committed after it finds the record
in its way, reads it, and knows whether its bytes are among those that go. Nobody needs to wait, and a dead process's
save that lands late finds its number taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from assay.data.engine.version_log import VersionLog
from assay.data.interface import Store, StoreError
from assay.sim.clock import Clock

STATE_EVERY = 32  # versions


class Collected(StoreError):  # noqa: N818 - read as a sentence
    """What a save had written was deleted as nobody's before it could commit."""


class StepExists(StoreError):  # noqa: N818
    """The step was saved before."""


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint: its table, and every object that it needs."""

    step: int
    table: str
    digest: bytes
    objects: list[str]
    nbytes: int
    metric: float | None = None


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A save, or a collection."""

    saved: Saved | None = None
    dropped: list[int] = []
    condemned: list[str] = []


class State(msgspec.Struct, frozen=True, array_like=True):
    """The checkpoints there are as they were saved, how many collections there were, and what the last condemned."""

    steps: dict[int, Saved] = {}
    collections: int = 0
    condemned: list[str] = []

    @property
    def newest(self) -> int:
        """The step that was saved last."""
        return next(reversed(self.steps))


def fold(state: State, record: Record) -> State:
    """The state after a record."""
    if record.saved is not None:
        return State(state.steps | {record.saved.step: record.saved}, state.collections, state.condemned)
    kept = {step: saved for step, saved in state.steps.items() if step not in record.dropped}
    return State(kept, state.collections + 1, record.condemned)


class Register:
    """The log, folded as far as it was read."""

    def __init__(self, store: Store, author: str, clock: Clock) -> None:
        self.log = VersionLog(store, "log", author=author, clock=clock)
        self.version, self.state = -1, State()

    async def refresh(self) -> State:
        """Read what came since."""
        if self.version < 0:
            found = await self.log.snapshot()
            if found.state:
                self.version, self.state = found.version, msgspec.msgpack.decode(found.state, type=State)
        before, slept = self.version, self.log.slept
        async for version, record in self.log.tail(self.version):
            self.version = version
            self.state = fold(self.state, msgspec.msgpack.decode(record, type=Record))
        if slept and before >= 0 and before == self.version:  # perhaps the next record was trimmed meanwhile
            newest = await self.log.snapshot()
            if newest.version > self.version:
                self.version, self.state = newest.version, msgspec.msgpack.decode(newest.state, type=State)
                return await self.refresh()
        return self.state

    async def _append(self, record: Record) -> bool:
        if not await self.log.append(self.version + 1, msgspec.msgpack.encode(record)):
            return False
        self.version, self.state = self.version + 1, fold(self.state, record)
        return True

    async def save(self, saved: Saved, since: int) -> None:
        """Commit a checkpoint whose objects were all written or looked up when there were `since` collections."""
        while True:
            state = await self.refresh()
            before = state.steps.get(saved.step)
            if before is not None:
                if before.table == saved.table:
                    return
                raise StepExists(f"step {saved.step} is saved already; save another step, or drop this one first")
            gone = {saved.table, *saved.objects} & set(state.condemned) if state.collections > since else set()
            if gone or state.collections > since + 1:  # what the collections before the last condemned is not known
                raise Collected(f"step {saved.step} took so long that what it wrote was collected; save it again")
            if await self._append(Record(saved=saved)):
                return

    async def collect(self, drop: Iterable[int], condemned: Iterable[str]) -> list[str] | None:
        """Commit that steps go and objects with them; None where somebody else wrote meanwhile: then look again."""
        record = Record(None, sorted(drop), sorted(condemned))
        return record.condemned if await self._append(record) else None

    async def tidy(self) -> None:
        """Now and then write the state, and trim the records it covers."""
        if self.version >= 0 and self.version % STATE_EVERY == STATE_EVERY - 1:
            await self.log.save_state(self.version, msgspec.msgpack.encode(self.state))
            await self.log.trim(self.version // STATE_EVERY * STATE_EVERY - 1)

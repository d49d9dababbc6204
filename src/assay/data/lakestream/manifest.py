"""The manifest: which batch is which step, and how far every producer has come, in a log of create-only versions.

A producer's own place in its source is a row of the same manifest, so a batch becomes visible and its source moves on
by one put: neither can happen without the other. A version is either the change it makes (`delta`), or all there is
(`full`), which costs more the more batches are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from assay.data.engine.version_log import Damaged, VersionLog

STATE_EVERY = 64  # versions
_encode = msgspec.msgpack.encode


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank's part of a batch lies in its object, and the first half of its digest."""

    offset: int
    length: int
    digest: bytes


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A global batch: who made it, the how-manieth of theirs it is, and its slices, one a coordinate."""

    producer: str
    epoch: int
    seq: int
    slices: list[Slice]

    @property
    def key(self) -> str:
        """Where it lies."""
        return data_key(self.producer, self.epoch, self.seq)

    @property
    def nbytes(self) -> int:
        """Bytes of its slices."""
        return sum(one.length for one in self.slices)


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A producer: how often it was started, its last batch, where its source goes on, whether that has ended."""

    epoch: int = 0
    last_seq: int = -1
    cursor: Any = None
    done: bool = False


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What a commit does: batches become the steps from `first` on, a producer's row is replaced, old steps go."""

    first: int
    base: int
    batches: list[msgspec.Raw] = []
    producer: str = ""
    row: Row | None = None


class State(msgspec.Struct, frozen=True, array_like=True):
    """All that is visible: the steps `base`, `base + 1`, … and the table of producers."""

    base: int = 0
    batches: list[msgspec.Raw] = []
    table: dict[str, Row] = {}

    @property
    def next_step(self) -> int:
        """The step that the next batch becomes."""
        return self.base + len(self.batches)

    def batch(self, step: int) -> Batch:
        """The batch of a step that is there."""
        return msgspec.msgpack.decode(self.batches[step - self.base], type=Batch)

    def steps(self) -> dict[int, Batch]:
        """Every step with its batch."""
        return {step: self.batch(step) for step in range(self.base, self.next_step)}


def data_key(producer: str, epoch: int, seq: int) -> str:
    """The name of a batch's object: fixed before the first attempt to write it, and no other attempt's.

    >>> data_key("crawl-3", 2, 17)
    'data/crawl-3/000002-0000000017'
    """
    return f"data/{producer}/{epoch:06d}-{seq:010d}"


def folded(state: State, changes: Sequence[Change]) -> State:
    """The state after some commits."""
    base, batches, table = state.base, list(state.batches), dict(state.table)
    for change in changes:
        if change.first != base + len(batches):
            raise Damaged(f"the manifest goes on with step {change.first} where {base + len(batches)} was expected")
        batches += change.batches
        if change.row is not None:
            table[change.producer] = change.row
        if change.base > base:
            del batches[: change.base - base]
            base = change.base
    return State(base, batches, table)


class Records(Protocol):
    """How versions are written."""

    def record(self, state: State, change: Change) -> bytes:
        """The version that makes this change to the state."""

    async def read(self, log: VersionLog, state: State, versions: Sequence[int]) -> State:
        """The state after these versions."""


class Delta:
    """A version is its change."""

    def record(self, state: State, change: Change) -> bytes:
        """The change."""
        return _encode(change)

    async def read(self, log: VersionLog, state: State, versions: Sequence[int]) -> State:
        """All of them, asked for at once."""
        found = await asyncio.gather(*(log.read(version) for version in versions))
        return folded(state, [msgspec.msgpack.decode(record, type=Change) for record in found])


class Full:
    """A version is the whole manifest."""

    def record(self, state: State, change: Change) -> bytes:
        """Everything, with the change."""
        return _encode(folded(state, [change]))

    async def read(self, log: VersionLog, state: State, versions: Sequence[int]) -> State:
        """The newest is enough."""
        return msgspec.msgpack.decode(await log.read(versions[-1]), type=State)


class Manifest:
    """The log, folded as far as it was read."""

    def __init__(self, log: VersionLog, records: Records) -> None:
        self.log, self.records = log, records
        self.version, self.state = -1, State()

    async def refresh(self) -> State:
        """Read what came since."""
        if self.version < 0:
            await self._from_snapshot()
        slept = self.log.slept
        versions = await self.log.newer(self.version)
        if versions != list(range(self.version + 1, self.version + 1 + len(versions))) or (slept and not versions):
            # Trimmed meanwhile: what follows the version we know is gone, or is a dead writer's on a freed number.
            await self._from_snapshot()
            versions = await self.log.newer(self.version)
        if versions:
            self.state = await self.records.read(self.log, self.state, versions)
            self.version = versions[-1]
        return self.state

    async def poll(self) -> bool:
        """Whether something came since, read; the cheapest request where nothing did."""
        before = self.version
        log = self.log
        # Once in a while by a listing: the next version may have been there, and been trimmed.
        if before < 0 or log.slept or await log.store.head(log.key(before + 1)) is not None:
            await self.refresh()
        return self.version > before

    async def _from_snapshot(self) -> None:
        found = await self.log.snapshot()
        if found.version > self.version:
            self.version, self.state = found.version, msgspec.msgpack.decode(found.state, type=State)

    async def append(self, change: Change) -> bool:
        """Try to make the change the next version; False where somebody else's is: then refresh and decide anew."""
        if not await self.log.append(self.version + 1, self.records.record(self.state, change)):
            return False
        self.version, self.state = self.version + 1, folded(self.state, [change])
        if self.version % STATE_EVERY == STATE_EVERY - 1:
            await self.log.save_state(self.version, _encode(self.state))
        return True

    async def trim(self) -> None:
        """Delete versions that a state covers which has been there for a while."""
        await self.log.trim(self.version // STATE_EVERY * STATE_EVERY - 1)

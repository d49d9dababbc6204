"""What carries a shuffle's messages: ordered partitions, and transactions that hold messages and an input offset.

:class:`LogBroker` keeps both in an object store, by create-only records, so that a shuffle needs no server and the
crash lab can kill it at every request. Messages are durable before the transaction that shows them: what was sent and
never committed stays invisible. `live_brokers` speaks to JetStream, Redis and Kafka with the same four verbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from assay.data.engine.puts import put_surely
from assay.data.engine.version_log import VersionLog
from assay.data.interface import Fenced, NotFound, Store
from assay.sim.clock import Clock
from assay.sim.streams import key as key_of

STATE_EVERY = 32  # versions of the log to a snapshot
_INDEX = 24  # bits of a position that number the messages of one transaction


class Message(NamedTuple):
    """A committed message of a partition; positions grow in the order in which everybody sees them."""

    position: int
    body: bytes


class Broker(Protocol):
    """Ordered partitions with transactions. A producer's name survives restarts; its last holder wins."""

    async def begin(self, producer: str) -> int:
        """Take over a name: whoever had it is fenced off, what it had not committed is gone. The committed offset."""

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """Send messages to partitions; nobody sees them yet."""

    async def commit(self, producer: str, offset: int) -> None:
        """Show all that was appended, and keep the input's offset, in one step; Fenced where the name was taken."""

    async def read(self, partition: int, after: int = -1, *, wait: bool = False) -> list[Message]:
        """The committed messages behind a position; `wait`: until there is one."""

    async def close(self) -> None:
        """Leave; what was not committed is not there."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A record of the log: a name taken over, a transaction, positions that were read, or a collection begun."""

    kind: str
    producer: str = ""
    epoch: int = 0
    offset: int = 0
    sent: tuple[str, ...] = ()  # objects that hold the transaction's messages
    read: dict[int, int] = {}


class State(msgspec.Struct, array_like=True):
    """What folding the log gives: epoch and offset of each producer, what was read, transactions still needed."""

    producers: dict[str, tuple[int, int]] = {}
    read: dict[int, int] = {}
    open: list[tuple[int, tuple[str, ...]]] = []


@dataclass
class _Session:
    epoch: int
    sent: list[str] = field(default_factory=list)
    count: int = 0


class LogBroker:
    """A broker in a store, for as many processes as like. `partitions` must be the same for all of them.

    `poll`: seconds between looks for what other processes committed; None: there are none.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> from assay.sim.clock import WallClock
    >>> async def example() -> list[Message]:
    ...     broker = LogBroker(partitions=2)
    ...     await broker.open(MemStore(), clock=WallClock())
    ...     offset = await broker.begin("task-0")
    ...     await broker.append("task-0", [(1, b"hello")])
    ...     assert await broker.read(1) == []
    ...     await broker.commit("task-0", offset + 1)
    ...     return await broker.read(1)
    >>> [message.body for message in asyncio.run(example())]
    [b'hello']
    """

    def __init__(self, partitions: int, prefix: str = "broker", *, poll: float | None = 0.05) -> None:
        self.partitions, self.prefix, self.poll = partitions, prefix, poll

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Read the newest state and what came behind it."""
        self.store, self.clock = store, clock
        self.log = VersionLog(store, f"{self.prefix}/log", author=f"{key_of(seed, self.prefix):016x}", clock=clock)
        self._sessions: dict[str, _Session] = {}
        self._lock, self._changed = asyncio.Lock(), asyncio.Event()
        await self._reload()

    async def _reload(self) -> None:
        found = await self.log.snapshot()
        self.version = found.version
        self.state = msgspec.msgpack.decode(found.state, type=State) if found.state else State()
        self._messages: dict[int, list[Message]] = {}
        self._loaded = -1  # the newest transaction whose messages are in memory
        await self._catch_up()

    async def begin(self, producer: str) -> int:
        """See :class:`Broker`. The version of this record is the epoch: no other holder of the name has it."""
        async with self._lock:
            version = await self._append(Entry("begin", producer))
            self._sessions[producer] = _Session(version)
        return self.state.producers[producer][1]

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """See :class:`Broker`."""
        session = self._sessions[producer]
        name = f"{self.prefix}/sent/{producer}-{session.epoch}-{session.count}"
        session.count += 1
        await put_surely(self.store, name, msgspec.msgpack.encode(messages))
        session.sent.append(name)

    async def commit(self, producer: str, offset: int) -> None:
        """See :class:`Broker`."""
        session = self._sessions[producer]
        async with self._lock:
            await self._append(Entry("commit", producer, session.epoch, offset, tuple(session.sent)))
        session.sent.clear()

    async def done(self, read: dict[int, int]) -> None:
        """Keep that partitions were read, all of them up to a position; what every one has passed may go."""
        async with self._lock:
            await self._append(Entry("read", read=read))

    async def read(self, partition: int, after: int = -1, *, wait: bool = False) -> list[Message]:
        """See :class:`Broker`."""
        async with self._lock:
            await self._catch_up()
        while not (found := self._behind(partition, after)) and wait:
            if self.poll is None:
                await self._changed.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self.poll):
                    await self._changed.wait()
            async with self._lock:
                await self._catch_up()
        return found

    def _behind(self, partition: int, after: int) -> list[Message]:
        found = self._messages.get(partition, [])
        first = len(found)
        while first and found[first - 1].position > after:
            first -= 1
        return found[first:]

    async def close(self) -> None:
        """See :class:`Broker`: nothing to do."""

    @property
    def horizon(self) -> int:
        """The position behind all that was committed when this process last looked."""
        return (self.version + 1 << _INDEX) - 1

    async def retained(self) -> list[Message]:
        """Every message that is not yet read everywhere, of all partitions."""
        async with self._lock:
            await self._catch_up()
        return [message for found in self._messages.values() for message in found]

    async def collect(self, retention: float) -> None:
        """Claim the next version, then delete sent messages that no transaction needs and that are older than this.

        A dead producer's transaction may be on its way: it is for a version that is taken from now on. One that lives
        commits within half of the retention of its first message.
        """
        async with self._lock:
            await self._append(Entry("collect"))
            needed = {name for _, sent in self.state.open for name in sent}
            old = self.clock.now() - retention
            names = [meta async for meta in self.store.list(f"{self.prefix}/sent/")]
            if gone := [meta.key for meta in names if meta.key not in needed and meta.modified <= old]:
                await self.store.delete(*gone)
            if (await self.log.snapshot()).version + STATE_EVERY <= self.version:
                await self.log.save_state(self.version, msgspec.msgpack.encode(self.state))
            await self.log.trim((await self.log.snapshot()).version)

    async def _append(self, entry: Entry) -> int:
        """Make an entry the next version; Fenced where its producer has another holder by then."""
        while True:
            await self._catch_up()
            if entry.kind == "commit" and self.state.producers[entry.producer][0] != entry.epoch:
                raise Fenced(f"another process works as {entry.producer}; stop one of the two")
            version = self.version + 1
            if await self.log.append(version, msgspec.msgpack.encode(entry)):
                self._fold(version, entry)
                await self._catch_up()
                return version

    async def _catch_up(self) -> None:
        """Fold what is new, then fetch the messages of what is still needed: others' may have been collected."""
        if self.log.slept and (await self.log.snapshot()).version > self.version:
            await self._reload()
        while True:
            async for version, record in self.log.tail(self.version):
                self._fold(version, msgspec.msgpack.decode(record, type=Entry))
            try:
                for version, sent in [one for one in self.state.open if one[0] > self._loaded]:
                    await self._show(version, sent)
                return
            except NotFound:
                if await self.log.latest() == self.version:  # nobody read it meanwhile: it should be there
                    raise

    def _fold(self, version: int, entry: Entry) -> None:
        state = self.state
        epoch, offset = state.producers.get(entry.producer, (-1, 0))
        if entry.kind == "begin":
            state.producers[entry.producer] = (version, offset)
        elif entry.kind == "commit" and entry.epoch == epoch:
            state.producers[entry.producer] = (epoch, entry.offset)
            if entry.sent:
                state.open.append((version, entry.sent))
        elif entry.kind == "read":
            for partition, position in entry.read.items():
                state.read[partition] = max(position, state.read.get(partition, -1))
            self._forget()
        self.version = version

    async def _show(self, version: int, sent: Sequence[str]) -> None:
        bodies = [await self.store.get(name) for name in sent]
        index = 0
        for body in bodies:
            for partition, message in msgspec.msgpack.decode(body, type=list[tuple[int, bytes]]):
                self._messages.setdefault(partition, []).append(Message(version << _INDEX | index, message))
                index += 1
        self._loaded = version
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget(self) -> None:
        """Drop the transactions that every partition has read past."""
        passed = min((self.state.read.get(partition, -1) for partition in range(self.partitions)), default=-1)
        kept = [one for one in self.state.open if (one[0] + 1 << _INDEX) - 1 > passed]
        if len(kept) == len(self.state.open):
            return
        self.state.open = kept
        first = kept[0][0] << _INDEX if kept else (self.version + 1) << _INDEX
        for partition, found in self._messages.items():
            self._messages[partition] = [message for message in found if message.position >= first]

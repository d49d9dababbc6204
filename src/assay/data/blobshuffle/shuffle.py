"""Batches of records in blobs, and through the broker only where they lie.

A :class:`Producer` collects records by destination. When a group of partitions has enough bytes, or at a commit, they
become one blob: a segment a partition. A commit waits for all uploads, then sends a note a segment, in the order of the
flushes, and shows them together with the input's offset in one transaction. Uploads may finish in any order; records
of one producer arrive at a partition in the order they were sent. A crash before the commit leaves blobs that nobody
names.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.blobshuffle.batching import BatchPolicy
from assay.data.blobshuffle.brokers import Broker, LogBroker, Message
from assay.data.blobshuffle.zone_cache import CACHE, Network, ZoneCache
from assay.data.engine.puts import put_surely
from assay.data.engine.segments import SegmentBlob, checked
from assay.data.interface import Buffer, Store, StoreError, Violation, checked_key, nbytes
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock
from assay.sim.streams import key as key_of

UPLOADS = 4  # of a producer at once
AHEAD = 64  # notes whose bytes a reader fetches before it is their turn: notes a second times seconds of a fetch
RETENTION = 3600.0  # seconds a blob that nobody names may lie about
MIB = 1 << 20


@dataclass(frozen=True)
class Placement:
    """Where things are: partitions, their readers' zones and their leaders', and how many readers share a zone."""

    parts: int = 64
    zones: tuple[str, ...] = ("a", "b", "c")
    members: int = 4

    def __post_init__(self) -> None:
        if self.parts < 1 or not self.zones or self.members < 1:
            raise BadInput(f"a shuffle has partitions, zones and readers, not {self.parts}, {self.zones}")

    def zone(self, partition: int) -> str:
        """The zone of who reads a partition."""
        return self.zones[partition % len(self.zones)]

    def leader(self, partition: int) -> str:
        """The zone of the broker that leads it: as Kafka places them, whoever reads them."""
        return self.zones[partition // len(self.zones) % len(self.zones)]

    def member(self, partition: int) -> str:
        """Which of its zone's readers has a partition."""
        return f"{self.zone(partition)}{partition // len(self.zones) % self.members}"

    def of(self, zone: str) -> list[str]:
        """The readers of a zone."""
        return [f"{zone}{number}" for number in range(self.members)]


GROUPS: dict[str, Callable[[Placement, int], Hashable]] = {
    "zone": Placement.zone,  # a blob for each zone: one zone reads it
    "all": lambda placement, partition: 0,  # one blob for everybody: larger, and every zone reads it
    "partition": lambda placement, partition: partition,
}


@dataclass(frozen=True)
class Design:
    """A way to shuffle: what goes into a blob and when, if there are blobs, and who fetches them."""

    name: str
    blobs: bool = True
    cache: bool = True
    group: str = "zone"
    policy: BatchPolicy = field(default_factory=lambda: BatchPolicy(16 * MIB, 0.5))
    write_through: bool = False  # a writer gives its own zone's cache what it wrote
    follower_fetch: bool = False  # readers of the broker ask the replica of their own zone
    ahead: int = AHEAD
    uploads: int = UPLOADS

    def sized(self, size: int | None = None, age: float | None = None) -> Design:
        """The same with other bytes or seconds to a blob; per-record pointers have no such choice."""
        if self.name == "claim check":
            return self
        policy = self.policy
        return replace(self, policy=BatchPolicy(size or policy.size, policy.age if age is None else age))


DESIGNS = {
    design.name: design
    for design in (
        Design("native", blobs=False, policy=BatchPolicy(1 << 40, 0.1)),
        Design("native, follower fetch", blobs=False, policy=BatchPolicy(1 << 40, 0.1), follower_fetch=True),
        Design("claim check", cache=False, group="partition", policy=BatchPolicy(1, 0.5)),
        Design("a blob a partition", cache=False, group="partition", uploads=64),  # they are small: more at once
        Design("blob", cache=False),
        Design("blob + cache"),
        Design("blob + cache, 8 ahead", ahead=8),
        Design("blob + cache, all zones", group="all"),
        Design("blob + cache, all zones, write-through", group="all", write_through=True),
    )
}


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What the broker carries of a segment: where it is, and what its bytes must hash to."""

    blob: str
    size: int  # of the whole blob
    offset: int
    length: int
    rows: int
    digest: bytes


class Batch(NamedTuple):
    """Records of a partition that arrived together; `position` is the broker's."""

    position: int
    records: list[bytes]


def pack(records: Sequence[bytes]) -> bytes:
    """Records as one run of bytes: how many, how long each, then all of them.

    >>> unpack(pack([b"one", b"", b"three"]))
    [b'one', b'', b'three']
    """
    count = len(records)
    return struct.pack(f"<{count + 1}I", count, *map(len, records)) + b"".join(records)


def unpack(data: Buffer) -> list[bytes]:
    """The records of such a run."""
    whole = bytes(data)
    (count,) = struct.unpack_from("<I", whole)
    ends = accumulate(struct.unpack_from(f"<{count}I", whole, 4), initial=4 + 4 * count)
    return [whole[one:other] for one, other in pairwise(ends)]


def _quiet(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """The task; its error is for whoever awaits it, and for nobody where nobody does."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


@dataclass
class _Buffer:
    """Records that wait, by partition."""

    oldest: float
    records: dict[int, list[bytes]] = field(default_factory=dict)
    nbytes: int = 0


class Producer:
    """One upstream task: it has a name, a zone, and an input of which it knows how far it has come."""

    def __init__(self, shuffle: BlobShuffle, name: str, zone: str, offset: int) -> None:
        self.shuffle, self.name, self.zone, self.offset = shuffle, name, zone, offset
        self._design, self._clock = shuffle.design, shuffle.clock
        self._buffers: dict[Hashable, _Buffer] = {}
        self._uploads: list[asyncio.Task[list[tuple[int, bytes]]]] = []
        self._slots = asyncio.Semaphore(shuffle.design.uploads)
        self._since: float | None = None  # when the first upload of this transaction began
        self._broken = False  # a commit failed: what became of it only the broker knows

    async def send(self, partitions: NDArray[np.int64] | Sequence[int], records: Sequence[bytes]) -> None:
        """Hand records over; waits while too many uploads are under way."""
        self._whole()
        now, policy, groups = self._clock.now(), self._design.policy, self.shuffle.group_of
        for partition, record in zip(map(int, partitions), records, strict=True):
            group = groups[partition]
            buffer = self._buffers.get(group)
            if buffer is None:
                buffer = self._buffers[group] = _Buffer(now)
            buffer.records.setdefault(partition, []).append(record)
            buffer.nbytes += len(record)
            if buffer.nbytes >= policy.size:
                await self._flush(group)
        for group in [
            group for group, one in self._buffers.items() if policy.due(one.nbytes or 1, one.oldest, self._clock.now())
        ]:
            await self._flush(group)

    async def commit(self, offset: int) -> None:
        """Show all that was sent, and keep the input's offset, in one step. Where it fails, open the producer again."""
        self._whole()
        self._broken = True
        for group in list(self._buffers):
            await self._flush(group)
        messages = [message for upload in self._uploads for message in await upload]
        late = self._since is not None and self._clock.now() - self._since > self.shuffle.retention / 2
        self._uploads, self._since = [], None
        if late:  # whoever collects may take its blobs for a dead producer's
            raise StoreError(f"{self.name} took too long between an upload and its commit; open it again and go on")
        if messages:
            await self.shuffle.broker.append(self.name, messages)
        await self.shuffle.broker.commit(self.name, offset)
        self.offset, self._broken = offset, False

    def _whole(self) -> None:
        if self._broken:
            raise StoreError(f"a commit of {self.name} failed; open it again: its offset says what was committed")

    async def _flush(self, group: Hashable) -> None:
        buffer = self._buffers.pop(group)
        self._since = self._clock.now() if self._since is None else self._since
        await self._slots.acquire()
        task = asyncio.create_task(self._upload(buffer))
        self._uploads.append(_quiet(task))

    async def _upload(self, buffer: _Buffer) -> list[tuple[int, bytes]]:
        """The messages that say where everything is, once it is there."""
        try:
            packed = {partition: pack(buffer.records[partition]) for partition in sorted(buffer.records)}
            if not self._design.blobs:
                return list(packed.items())
            blob = SegmentBlob()
            for partition, data in packed.items():
                blob.add(str(partition), data, rows=len(buffer.records[partition]), follows=True)
            name, parts = self.shuffle.blob_name(self.name), blob.parts()
            await put_surely(self.shuffle.store, name, parts)
            if self._design.write_through and self._design.cache:
                self.shuffle.caches[self.zone].hand_over(name, b"".join(parts))
            size = nbytes(parts)
            return [
                (int(one.key), msgspec.msgpack.encode(Note(name, size, one.offset, one.length, one.rows, one.digest)))
                for one in blob.segments
            ]
        finally:
            self._slots.release()


class BlobShuffle:
    """Moves records to partitions through a store and a broker, exactly once and in each producer's order.

    Without a broker, a log in the same store is one. `retention`: seconds after which a blob that nobody names is
    somebody's who died.

    >>> from assay.data.store.memory import MemStore
    >>> async def example() -> list[bytes]:
    ...     shuffle = BlobShuffle(Placement(parts=4))
    ...     await shuffle.open(MemStore())
    ...     task = await shuffle.producer("task-0", zone="a")
    ...     await task.send([2, 0, 2], [b"first", b"other", b"second"])
    ...     await task.commit(offset=3)
    ...     return [record async for batch in shuffle.receive(2) for record in batch.records]
    >>> asyncio.run(example())
    [b'first', b'second']
    """

    key = "blobshuffle"

    def __init__(
        self, placement: Placement | None = None, design: Design | None = None, *, broker: Broker | None = None,
        cache: int = CACHE, retention: float = RETENTION, network: Network | None = None,
    ) -> None:  # fmt: skip
        self.placement, self.design = placement or Placement(), design or DESIGNS["blob + cache"]
        self.retention = retention
        self.group_of = [GROUPS[self.design.group](self.placement, part) for part in range(self.placement.parts)]
        self._given, self._cache, self._network = broker, cache, network
        self._blobs = 0

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """Create or recover; a broker that was given is open already. Two that write must not share a seed."""
        seed = secrets.randbits(60) if seed is None else seed
        self.store, self.clock = store, clock or WallClock()
        self._mark = f"{key_of(seed, self.key):016x}"
        self.caches = {
            zone: ZoneCache(store, self.placement.of(zone), self._cache, network=self._network, clock=self.clock)
            for zone in self.placement.zones
        }
        if self._given is None:
            self.log = LogBroker(self.placement.parts)
            await self.log.open(store, clock=self.clock, seed=seed)
        self.broker: Broker = self.log if self._given is None else self._given

    async def producer(self, name: str, zone: str) -> Producer:
        """Take over a producer's name; its `offset` says from where to go on."""
        return Producer(self, checked_key(name), zone, await self.broker.begin(name))

    def blob_name(self, producer: str) -> str:
        """A name that no other process and no other blob has; a prefix a producer, for stores limit each prefix."""
        self._blobs += 1
        return f"blobs/{producer}/{self._mark}-{self._blobs}"

    async def receive(self, partition: int, after: int = -1, *, follow: bool = False) -> AsyncIterator[Batch]:
        """A partition's records behind a position, strictly in order, fetched ahead; `follow`: and what is to come."""
        coming: deque[tuple[int, asyncio.Task[list[bytes]]]] = deque()
        try:
            while True:
                for message in await self.broker.read(partition, after, wait=follow):
                    after = message.position
                    coming.append((after, _quiet(asyncio.create_task(self._fetch(partition, message)))))
                    if len(coming) >= self.design.ahead:
                        yield Batch(coming[0][0], await coming[0][1])
                        coming.popleft()
                while coming:
                    yield Batch(coming[0][0], await coming[0][1])
                    coming.popleft()
                if not follow:
                    return
        finally:
            for _, task in coming:
                task.cancel()

    async def _fetch(self, partition: int, message: Message) -> list[bytes]:
        if not self.design.blobs:
            return unpack(message.body)
        note = msgspec.msgpack.decode(message.body, type=Note)
        where: dict[str, Any] = {"size": note.size, "member": self.placement.member(partition)}
        if self.design.cache:
            zone = self.caches[self.placement.zone(partition)]
            data = await zone.get(note.blob, note.offset, note.length, **where)
        else:
            data = await self.store.get(note.blob, note.offset, note.length)
        return unpack(checked(data, note.digest, f"{note.blob}:{partition}"))

    async def collect(self) -> int:
        """Delete blobs that no retained note names and that are older than the retention; how many.

        A broker of others keeps to itself what was read: there a lifecycle rule of the store does it, no sooner than
        the broker forgets its messages.
        """
        if self._given is not None:
            raise BadInput("only a shuffle with a log of its own knows what was read; give the store a lifecycle rule")
        await self.log.collect(self.retention)
        named = await self._named()
        old = self.clock.now() - self.retention
        blobs = [meta async for meta in self.store.list("blobs/")]
        gone = [meta.key for meta in blobs if meta.key not in named and meta.modified <= old]
        if gone:
            await self.store.delete(*gone)
        return len(gone)

    async def _named(self) -> set[str]:
        if not self.design.blobs:
            return set()
        return {msgspec.msgpack.decode(message.body, type=Note).blob for message in await self.log.retained()}

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """The log is whole, and every visible note's blob is there with the bytes it had."""
        wrong = list(await self.log.log.check()) if self._given is None else []
        for partition in range(self.placement.parts):
            try:
                async for _ in self.receive(partition):
                    pass
            except StoreError as error:
                wrong.append(Violation("a visible note's blob can be read", str(error)))
        return wrong

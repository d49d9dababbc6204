"""Shuffles in memory: all designs on the same records, counted; and a cluster at gigabytes a second in virtual time.

The cluster runs the same objects that a user runs. Bytes, bandwidths and caches are all divided by SCALE, so every
request takes the time it would take, and is made as often; what is not divided (footers of blobs, about 2 %) makes it
slower, not faster. Nothing limits the processors of its tasks.
"""

from __future__ import annotations

import asyncio
import gc
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.blobshuffle.batching import BatchPolicy
from assay.data.blobshuffle.billing import Billed, crossings, per_tib
from assay.data.blobshuffle.brokers import LogBroker, Message
from assay.data.blobshuffle.planning import BROKER
from assay.data.blobshuffle.shuffle import DESIGNS, RETENTION, BlobShuffle, Design, Placement, Producer
from assay.data.blobshuffle.zone_cache import CACHE, Network
from assay.data.store.delayed import PROFILES, Delayed, Latency, Profile
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.sim.clock import Clock, VirtualClock, run_virtual
from assay.sim.ledger import Ledger
from assay.sim.streams import stream

SCALE = 64  # bytes of the cluster to a byte here
TICK = 0.1  # seconds of traffic that a task sends at a time
RECORD = np.dtype([("time", "<f8"), ("task", "<u4"), ("partition", "<u4"), ("number", "<u8")])
HEAD = struct.Struct("<dIIQ")  # the same, for one
GIB = 1 << 30
COMMIT = 64 << 20  # bytes between two commits where nobody waits
Row = dict[str, Any]


class Slow:
    """A broker as slow as a replicated one: a commit waits for the replicas, a reader for the next answer."""

    def __init__(self, inner: Billed, latency: Latency, clock: Clock, seed: int) -> None:
        self.inner, self.latency, self.clock = inner, latency, clock
        self._random = stream(seed, "broker latency")

    async def _pause(self, share: float = 1.0) -> None:
        await self.clock.sleep(
            share * self.latency.median * math.exp(self.latency.sigma * self._random.standard_normal())
        )

    async def close(self) -> None:
        """Passed on."""
        await self.inner.close()

    async def begin(self, producer: str) -> int:
        """Slowly."""
        await self._pause()
        return await self.inner.begin(producer)

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """Sent at once, waited for at the commit."""
        await self.inner.append(producer, messages)

    async def commit(self, producer: str, offset: int) -> None:
        """Slowly."""
        await self._pause()
        await self.inner.commit(producer, offset)

    async def read(self, partition: int, after: int = -1, *, wait: bool = False) -> list[Message]:
        """As soon as there is something, and the way from there."""
        found = await self.inner.read(partition, after, wait=wait)
        await self._pause(0.5)
        return found


def shares_of(parts: int, skew: float, seed: int, keys: int = 10_000) -> NDArray[np.float64]:
    """Each partition's share of the bytes: keys with Zipf's frequencies, put on partitions at random."""
    random = stream(seed, "blobshuffle", "keys", parts)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    found = np.bincount(random.integers(0, parts, keys), weights / weights.sum(), minlength=parts)
    return np.asarray(found, np.float64)


class _Seen:
    """What the readers of a cluster saw: latencies by bytes, and whether anything was lost, doubled or out of order."""

    def __init__(self, tasks: int, parts: int, warm: float, end: float) -> None:
        self.warm, self.end, self.next = warm, end, [[0] * parts for _ in range(tasks)]
        self.latency: list[float] = []
        self.weight: list[int] = []
        self.nbytes = self.disorder = self.steady = 0

    def take(self, records: Sequence[bytes], partition: int, now: float) -> None:
        for record in records:
            born, task, meant, number = HEAD.unpack_from(record)
            self.disorder += int(meant != partition or number != self.next[task][partition])
            self.next[task][partition] = number + 1
            if born >= self.warm:
                self.latency.append(now - born)
                self.weight.append(len(record))
        size = sum(map(len, records))
        self.nbytes += size
        if self.warm <= now < self.end:
            self.steady += size

    @property
    def rate(self) -> float:
        """Bytes/s that arrived while the sources were sending and the first had arrived."""
        return self.steady / (self.end - self.warm)

    def quantile(self, q: float) -> float:
        """Seconds within which so many of the bytes arrived."""
        order = np.argsort(self.latency)
        reached = np.cumsum(np.asarray(self.weight)[order])
        return float(np.asarray(self.latency)[order][np.searchsorted(reached, q * reached[-1])])


def scaled(profile: Profile) -> Profile:
    """The same waits for bytes that are SCALE times fewer."""
    return replace(profile, bandwidth=profile.bandwidth / SCALE)


def cluster(
    design: Design, rate: float, *, tasks: int, parts: int, seconds: float, seed: int,
    profile: Profile = PROFILES["s3-standard"], shares: NDArray[np.float64] | None = None, skew: float = 0.5,
) -> Row:  # fmt: skip
    """Tasks that send `rate` bytes/s for so long, partitions that read it, three zones; what was seen and counted."""
    share = shares_of(parts, skew, seed) if shares is None else shares
    gc.freeze()  # what was loaded before is no garbage: looking through it again and again took a quarter of the time
    try:
        return run_virtual(_cluster(design, rate, tasks, len(share), seconds, seed, profile, share))
    finally:
        gc.unfreeze()


async def _cluster(
    design: Design, rate: float, tasks: int, parts: int, seconds: float, seed: int, profile: Profile,
    share: NDArray[np.float64],
) -> Row:  # fmt: skip
    clock, ledger = VirtualClock(), Ledger()
    zones = Placement().zones
    placement = Placement(parts, zones, members=max(1, math.ceil(tasks / len(zones))))
    policy = design.policy
    small = design.sized(max(1, policy.size // SCALE), policy.age)
    at = {f"task-{number}": zones[number % len(zones)] for number in range(tasks)}
    log = LogBroker(parts, poll=None)
    await log.open(MemStore(clock), clock=clock, seed=seed)
    billed = Billed(log, ledger, placement, at, follower_fetch=design.follower_fetch)
    delayed = Delayed(MemStore(clock), scaled(profile), clock=clock, seed=seed)
    network = Network(bandwidth=Network().bandwidth / SCALE)
    shuffle = BlobShuffle(
        placement, small, broker=Slow(billed, BROKER, clock, seed), cache=CACHE // SCALE, network=network
    )
    await shuffle.open(Metered(delayed, ledger, clock=clock), clock=clock, seed=seed)
    seen = _Seen(tasks, parts, warm=min(3 * policy.age, seconds / 2), end=seconds)
    readers = [asyncio.create_task(_read(shuffle, partition, seen, clock)) for partition in range(parts)]
    sizes = np.maximum(RECORD.itemsize, rate * TICK / tasks / SCALE * share).astype(int)
    sent = await asyncio.gather(*(
        _send(shuffle, number, number / tasks, zone, sizes, seconds, clock) for number, zone in enumerate(at.values())
    ))  # fmt: skip
    payload = sum(sent)
    while seen.nbytes < payload and clock.now() < 10 * seconds + 60:
        await clock.sleep(0.05)
    for reader in readers:
        reader.cancel()
    return _told(design, seen, ledger, payload, delayed.refused)


async def _send(
    shuffle: BlobShuffle, number: int, phase: float, zone: str, sizes: NDArray[np.int64], seconds: float, clock: Clock
) -> int:
    """One task: all that its source has brought since it last looked, then a commit when it is time."""
    producer = await shuffle.producer(f"task-{number}", zone)
    age, parts = shuffle.design.policy.age, len(sizes)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    filler = bytes(int(sizes.max()))
    await clock.sleep(age * phase)  # tasks do not commit at the same moment
    start, ticks, sent, committed = clock.now(), 0, 0, clock.now()
    while ticks * TICK < seconds:
        await clock.sleep(max(0.0, start + (ticks + 1) * TICK - clock.now()))
        heads = np.zeros(parts, RECORD)
        heads["task"], heads["partition"], heads["number"] = number, np.arange(parts), ticks
        heads["time"] = start + ticks * TICK  # the oldest byte of the tick: never younger than it was
        raw = heads.tobytes()
        step = RECORD.itemsize
        records = [raw[i * step : (i + 1) * step] + filler[: int(size) - step] for i, size in enumerate(sizes)]
        await producer.send(range(parts), records)
        ticks, sent = ticks + 1, sent + int(begins[-1])
        if clock.now() - committed >= age or ticks * TICK >= seconds:
            committed = clock.now()
            await producer.commit(ticks)
    return sent


async def _read(shuffle: BlobShuffle, partition: int, seen: _Seen, clock: Clock) -> None:
    async for batch in shuffle.receive(partition, follow=True):
        seen.take(batch.records, partition, clock.now())


def _told(design: Design, seen: _Seen, ledger: Ledger, payload: int, refused: int) -> Row:
    return {
        "p50": seen.quantile(0.5), "p95": seen.quantile(0.95), "p99": seen.quantile(0.99),
        "bytes_per_s": seen.rate * SCALE, "lost": payload - seen.nbytes, "disorder": seen.disorder, "refused": refused,
    } | priced(design, ledger, payload, SCALE)  # fmt: skip


Batches = Iterable[tuple[str, Sequence[int], Sequence[bytes]]]


def counted(design: Design, batches: Batches, placement: Placement, *, scale: int = 1, every: int = COMMIT) -> Row:
    """Shuffle records through memory and count: (producer, partitions, records) at a time, a commit every so often.

    `scale`: a byte stands for so many, in blobs as in records.
    """
    return asyncio.run(_counted(design, batches, placement, scale, every))


async def _counted(design: Design, batches: Batches, placement: Placement, scale: int, every: int) -> Row:
    ledger, clock, zones = Ledger(), VirtualClock(), dict[str, str]()
    store, log = MemStore(clock), LogBroker(placement.parts, poll=None)
    await log.open(MemStore(clock), clock=clock, seed=0)
    billed = Billed(log, ledger, placement, zones, follower_fetch=design.follower_fetch)
    full = replace(design, policy=BatchPolicy(max(1, design.policy.size // scale), math.inf))
    shuffle = BlobShuffle(placement, full, broker=billed)
    await shuffle.open(Metered(store, ledger), clock=clock, seed=0)
    producers, sent = dict[str, Producer](), dict[str, int]()
    payload = waiting = read = 0

    async def drained() -> int:
        """Commit, read everything, and forget it: memory holds no more than what is between two commits."""
        for name, producer in producers.items():
            await producer.commit(sent[name])
        found = 0
        for partition in range(placement.parts):
            async for batch in shuffle.receive(partition, log.state.read.get(partition, -1)):
                found += len(batch.records)
        await log.done(dict.fromkeys(range(placement.parts), log.horizon))
        await store.delete(*list(store.objects))
        return found

    for name, partitions, records in batches:
        if name not in producers:
            zones[name] = placement.zones[len(producers) % len(placement.zones)]
            producers[name] = await shuffle.producer(name, zones[name])
        await producers[name].send(partitions, records)
        sent[name] = sent.get(name, 0) + len(records)
        size = sum(map(len, records))
        payload, waiting = payload + size, waiting + size
        if waiting >= every:
            read, waiting = read + await drained(), 0
    read += await drained()
    told = {"records": sum(sent.values()), "missing": sum(sent.values()) - read, "bytes": payload * scale}
    return told | priced(design, ledger, payload, scale)


def priced(design: Design, ledger: Ledger, payload: int, scale: int) -> Row:
    """Dollars and what they are for. Where bytes stand for more, those of notes do not: a note is a note."""
    if not design.blobs:
        for line in ledger.lines.values():
            line.nbytes *= scale
    real, blobs, gets = payload * scale, ledger.requests("put"), ledger.requests("get")
    return {
        "usd_per_TiB": per_tib(ledger, real, kept=RETENTION if design.blobs else 0.0, stored=real),
        "puts": blobs, "gets": gets, "crossings": crossings(ledger, real),
        "blob_MiB": real / blobs / (1 << 20) if blobs else None, "gets_per_blob": gets / blobs if blobs else None,
    }  # fmt: skip


def records_of(count: int, size: int, parts: int, seed: int) -> list[tuple[str, list[int], list[bytes]]]:
    """Generated records of one task, in batches, with partitions drawn by the shares of skewed keys."""
    random = stream(seed, "blobshuffle", "records", parts)
    share = shares_of(parts, 0.5, seed)
    body, drawn = random.bytes(size + 4096), random.choice(parts, count, p=share / share.sum()).tolist()
    records = [body[one : one + size] for one in random.integers(0, 4096, count).tolist()]
    return [("task-0", drawn[at : at + 4096], records[at : at + 4096]) for at in range(0, count, 4096)]


def named(design: str, size: int | None = None, age: float | None = None) -> Design:
    """A design by name, with other bytes and seconds to a blob."""
    return DESIGNS[design].sized(size, age)

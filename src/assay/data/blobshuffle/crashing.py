"""A stream for the crash lab: two tasks send, partitions are read into a sink, what was read is collected.

What is read goes to create-only objects named by its position, so that a reader that died after writing and before
saying so writes the same again. A dead reader or a second one changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.data.blobshuffle.batching import BatchPolicy
from assay.data.blobshuffle.shuffle import DESIGNS, BlobShuffle, Placement, pack, unpack
from assay.data.interface import AlreadyExists, Store, StoreError, Unknown, Violation
from assay.sim.clock import Clock

TASKS = ("one", "two")
PARTS = 3
EACH = 6  # records to a transaction
CHANGES = 28  # to the store, about, by a transaction of each task, its reading and its collection
PAUSE = 40.0  # virtual seconds between rounds, more than the retention: what the dead left behind goes


def content(task: str, number: int) -> bytes:
    """A task's record.

    >>> content("one", 7)
    b'one 7'
    """
    return b"%s %d" % (task.encode(), number)


def partition_of(task: str, number: int) -> int:
    """Where a record belongs."""
    return (number * number + len(task) + (task == "two")) % PARTS


class Stream(BlobShuffle):
    """Tasks that go on from their committed offsets, and readers that go on from what is in the sink."""

    roles: tuple[str, ...] = ("task", "reader")

    def __init__(self) -> None:
        policy = BatchPolicy(8, 1e9)  # two records to a blob: several blobs of one group to a transaction
        design = replace(DESIGNS["blob + cache"], policy=policy, ahead=2)
        super().__init__(Placement(PARTS, ("a", "b"), members=2), design, retention=30.0)

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int | None = None) -> None:
        """As always."""
        await super().open(store, clock=clock, seed=seed)
        self.log.poll = None

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Send, read and collect in rounds; as a reader, read alone."""
        rounds = max(2, ops // CHANGES)
        if role == "reader":
            for _ in range(rounds):
                await self.clock.sleep(PAUSE / 2)
                await self.drain(promised)
            return
        for turn in range(1, rounds + 1):
            for number, task in enumerate(TASKS):
                await self.advance(task, "ab"[number], turn * EACH, promised)
            await self.drain(promised)
            await self.clock.sleep(PAUSE)
            await self.collect()

    async def advance(self, task: str, zone: str, end: int, promised: list[Any]) -> None:
        """Send a task's records up to a number, from where it stands."""
        producer = await self.producer(task, zone)
        if producer.offset >= end:
            return
        numbers = range(producer.offset, end)
        await producer.send([partition_of(task, one) for one in numbers], [content(task, one) for one in numbers])
        await producer.commit(end)
        promised.append([task, end])

    async def drain(self, promised: list[Any]) -> None:
        """Read what is new in every partition into the sink, then say so."""
        read = {}
        for partition in range(PARTS):
            after = self.log.state.read.get(partition, -1)
            async for batch in self.receive(partition, after):
                after = batch.position
                await self._keep(f"sink/{partition}/{batch.position:020d}", pack(batch.records))
            read[partition] = after
        if read != {partition: self.log.state.read.get(partition, -1) for partition in read}:
            await self.log.done(read)

    async def _keep(self, name: str, data: bytes) -> None:
        for _ in range(8):
            with suppress(AlreadyExists):
                try:
                    await self.store.put(name, data, if_absent=True)
                except Unknown:
                    continue
            return

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Sink and unread messages together hold each task's committed records once, in order, at their partitions."""
        wrong = list(await self.log.log.check())
        await self.log.retained()  # a dead producer's commit may have landed since this process opened
        offsets = {task: self.log.state.producers.get(task, (0, 0))[1] for task in TASKS}
        wrong += [
            Violation("a promised offset is committed", f"{task} at {offsets[task]}, promised {offset}")
            for task, offset in promised
            if offsets[task] < offset
        ]
        if wrong:
            return wrong
        for partition in range(PARTS):
            try:
                found = await self._arrived(partition)
            except StoreError as error:
                wrong.append(Violation("a visible note's blob can be read", str(error)))
                continue
            for task in TASKS:
                mine = [record for record in found if record.startswith(task.encode())]
                due = [content(task, n) for n in range(offsets[task]) if partition_of(task, n) == partition]
                if mine != due:
                    detail = (
                        f"partition {partition} has {mine[:4]}… of {task}, not {due[:4]}… ({len(mine)}, {len(due)})"
                    )
                    wrong.append(Violation("each record once, in order", detail))
        return wrong

    async def _arrived(self, partition: int) -> list[bytes]:
        """The sink's records, and behind them those that no sink has yet."""
        found, last = list[bytes](), -1
        async for meta in self.store.list(f"sink/{partition}/"):
            found += unpack(await self.store.get(meta.key))
            last = int(meta.key.rpartition("/")[2])
        async for batch in self.receive(partition, last):
            found += batch.records
        return found

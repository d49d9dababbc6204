"""Records arrive once, at their partition, in their producer's order; what was not committed does not."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.blobshuffle.batching import BatchPolicy
from assay.data.blobshuffle.shuffle import DESIGNS, BlobShuffle, Design, Placement
from assay.data.blobshuffle.zone_cache import ZoneCache
from assay.data.crash.lab import JITTER
from assay.data.engine.version_log import Damaged
from assay.data.interface import Fenced, Store, StoreError
from assay.data.store.delayed import Delayed
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Recorded
from assay.sim.clock import VirtualClock, run_virtual
from tests.oracles import shuffle_order

PARTS = 6
PLACEMENT = Placement(PARTS, ("a", "b", "c"), members=2)


def small(name: str = "blob + cache", size: int = 20) -> Design:
    return replace(DESIGNS[name], policy=BatchPolicy(size, 1e9))


async def opened(store: Store, design: Design | None = None, **options: Any) -> BlobShuffle:
    shuffle = BlobShuffle(PLACEMENT, design or small(), **options)
    await shuffle.open(store, clock=VirtualClock())
    return shuffle


async def everything(shuffle: BlobShuffle) -> dict[tuple[str, int], list[bytes]]:
    """By producer, whose name each record begins with."""
    found = defaultdict(list)
    for partition in range(PARTS):
        async for batch in shuffle.receive(partition):
            for record in batch.records:
                found[record[:1].decode(), partition].append(record)
    return dict(found)


SENT = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(0, PARTS - 1), st.binary(max_size=12), st.booleans()), max_size=60
)


@given(SENT, st.sampled_from(sorted(DESIGNS)), st.integers(1, 40))
def test_every_design_delivers_what_plain_lists_would(
    sent: Sequence[tuple[str, int, bytes, bool]], design: str, size: int
) -> None:
    async def main() -> None:
        clock = VirtualClock()
        slow = Delayed(MemStore(clock), JITTER, clock=clock, seed=size)  # uploads finish in any order
        shuffle = await opened(slow, small(design, size))
        producers = {name: await shuffle.producer(name, zone) for name, zone in zip("xyz", "abc", strict=True)}
        offsets = dict.fromkeys(producers, 0)
        for name, partition, body, commits in sent:
            await producers[name].send([partition], [name.encode() + body])
            offsets[name] += 1
            if commits:
                await producers[name].commit(offsets[name])
        for name, producer in producers.items():
            await producer.commit(offsets[name])
        told = shuffle_order.arrived((name, partition, name.encode() + body) for name, partition, body, _ in sent)
        assert await everything(shuffle) == told

    run_virtual(main())


def test_what_is_uploaded_and_sent_is_invisible_until_the_transaction_commits() -> None:
    async def main() -> None:
        store = MemStore()
        shuffle = await opened(store)
        producer = await shuffle.producer("x", "a")
        await producer.send([0, 1], [b"x1", b"x2"])
        await producer.commit(2)
        await producer.send([0] * 9, [b"x never committed"] * 9)
        await asyncio.sleep(0.1)
        assert sum(key.startswith("blobs/") for key in store.objects) > 2  # some of it is in the store already
        await shuffle.broker.append("x", [(0, b"sent, and its transaction is never committed")])
        successor = await opened(store)
        heir = await successor.producer("x", "a")
        assert heir.offset == 2
        assert await everything(successor) == {("x", 0): [b"x1"], ("x", 1): [b"x2"]}

    run_virtual(main())


def test_the_last_holder_of_a_name_wins() -> None:
    async def main() -> None:
        store = MemStore()
        one, other = await opened(store), await opened(store)
        old = await one.producer("x", "a")
        await old.send([0], [b"x of the old"])
        new = await other.producer("x", "a")
        with pytest.raises(Fenced, match="another process works as x"):
            await old.commit(1)
        with pytest.raises(StoreError, match="open it again"):  # nothing of it is taken for committed
            await old.commit(1)
        await new.send([0], [b"x of the new"])
        await new.commit(1)
        assert await everything(one) == {("x", 0): [b"x of the new"]}

    run_virtual(main())


def test_reading_again_gives_the_same() -> None:
    async def main() -> None:
        shuffle = await opened(MemStore())
        producer = await shuffle.producer("x", "a")
        for number in range(10):
            await producer.send([number % 2], [b"x%d" % number])
            await producer.commit(number + 1)
        whole = [batch async for batch in shuffle.receive(0)]
        assert [batch async for batch in shuffle.receive(0)] == whole
        assert [batch async for batch in shuffle.receive(0, whole[1].position)] == whole[2:]

    run_virtual(main())


@pytest.mark.parametrize(
    ("design", "gets"), [("blob", 2.0), ("blob + cache", 1.0), ("blob + cache, all zones", 3.0),
                         ("blob + cache, all zones, write-through", 2.0)],
)  # fmt: skip
def test_a_zone_fetches_a_blob_once_and_without_the_cache_each_partition_does(design: str, gets: float) -> None:
    async def main() -> None:
        store = Recorded(MemStore())
        shuffle = await opened(store, small(design, 1 << 20))
        producer = await shuffle.producer("x", "a")
        for turn in range(4):
            await producer.send(range(PARTS), [b"x"] * PARTS)
            await producer.commit(turn)
        await everything(shuffle)
        asked = [op.name for op in store.trace if op.key.startswith("blobs/")]
        assert asked.count("get") / asked.count("put") == gets

    run_virtual(main())


def test_a_cache_of_a_few_bytes_reads_what_it_cannot_hold_in_parts() -> None:
    async def main() -> None:
        shuffle = await opened(MemStore(), small(size=1 << 20), cache=10)
        producer = await shuffle.producer("x", "a")
        await producer.send(range(PARTS), [b"x%d" % one for one in range(PARTS)])
        await producer.commit(1)
        assert await everything(shuffle) == {("x", one): [b"x%d" % one] for one in range(PARTS)}

    run_virtual(main())


def test_a_changed_byte_is_noticed() -> None:
    async def main() -> None:
        store = MemStore()
        shuffle = await opened(store)
        producer = await shuffle.producer("x", "a")
        await producer.send([0], [b"x" * 30])
        await producer.commit(1)
        name = next(key for key in store.objects if key.startswith("blobs/"))
        store.objects[name] = store.objects[name].replace(b"xxx", b"xyx", 1)
        with pytest.raises(Damaged, match="is damaged"):
            await everything(shuffle)
        assert [one.rule for one in await shuffle.check()] == ["a visible note's blob can be read"]

    run_virtual(main())


def test_a_failed_fetch_is_told_to_all_who_wait_and_tried_again_by_the_next() -> None:
    async def main() -> None:
        store = MemStore()
        zone = ZoneCache(store, ["m"])
        answers = await asyncio.gather(*(zone.get("b", 0, 1, size=2) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, StoreError) for answer in answers)
        await store.put("b", b"ok")
        assert bytes(await zone.get("b", 0, 2, size=2)) == b"ok"

    asyncio.run(main())


def test_a_producer_that_slept_past_the_retention_does_not_commit_blobs_that_may_be_gone() -> None:
    async def main() -> None:
        shuffle = await opened(MemStore(VirtualClock()), retention=60.0)
        producer = await shuffle.producer("x", "a")
        await producer.send([0], [b"x" * 30])
        await shuffle.clock.sleep(40)
        with pytest.raises(StoreError, match="took too long"):
            await producer.commit(1)
        again = await shuffle.producer("x", "a")
        assert again.offset == 0

    run_virtual(main())

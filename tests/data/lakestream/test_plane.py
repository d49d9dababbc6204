"""The plane: one order for all ranks, each record once, and nothing deleted that a checkpoint needs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.engine.version_log import GRACE, Damaged
from assay.data.interface import Fenced, Store, Unknown
from assay.data.lakestream.consumer import Consumer, Reclaimed
from assay.data.lakestream.manifest import STATE_EVERY
from assay.data.lakestream.pace import Fixed
from assay.data.lakestream.plane import Plane
from assay.data.lakestream.producer import Producer
from assay.data.store.delayed import PROFILES, Delayed
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.ledger import Ledger

T = TypeVar("T")
MODES = pytest.mark.parametrize("mode", ["delta", "full"])


def virtual(main: Coroutine[Any, Any, T]) -> T:
    return run_virtual(main)


async def plane(store: Store | None = None, **options: Any) -> Plane:
    found = Plane(**options)
    await found.open(store or MemStore(VirtualClock()), clock=VirtualClock(), seed=1)
    return found


async def started(where: Plane, name: str = "p", **options: Any) -> Producer:
    producer = where.producer(name, Fixed(0.0), background=False, **options)
    await producer.start()
    return producer


async def read_all(consumer: Consumer, step: int = 0) -> list[bytes]:
    return [b"|".join(map(bytes, parts)) async for _, parts in consumer.follow(step)]


@MODES
@given(
    worlds=st.sampled_from([1, 2, 4]), batches=st.lists(st.lists(st.binary(max_size=9000), min_size=4, max_size=4)),
)  # fmt: skip
def test_every_world_reads_what_was_published(mode: str, worlds: int, batches: list[list[bytes]]) -> None:
    async def main() -> None:
        where = await plane(slices=4, producers=1, mode=mode)
        producer = await started(where)
        for number, slices in enumerate(batches):
            await producer.publish(slices, cursor=number)
        await producer.finish()
        ranks = [await read_all(where.consumer(rank, worlds)) for rank in range(worlds)]
        assert [b"|".join(parts) for parts in zip(*ranks, strict=True)] == [b"|".join(slices) for slices in batches]
        assert await where.check() == []

    virtual(main())


@MODES
def test_a_source_goes_on_behind_the_last_visible_batch(mode: str) -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1, mode=mode)
        first = where.producer("p", Fixed(1000.0), background=False)
        assert await first.start() is None
        await first.publish([b"zero"], cursor={"line": 1})
        await first.commit()
        await first.publish([b"one, never committed"], cursor={"line": 2})
        second = where.producer("p", Fixed(0.0), background=False)
        assert await second.start() == {"line": 1}
        await second.publish([b"one"], cursor={"line": 2})
        with pytest.raises(Fenced, match="another process produces as 'p' now"):
            await first.commit()
        await second.finish()
        assert await read_all(where.consumer(0, 1)) == [b"zero", b"one"]

    virtual(main())


def test_what_was_committed_although_the_answer_was_lost_is_not_committed_again() -> None:
    class Deaf(MemStore):
        deaf = False

        async def put(self, key: str, *arguments: Any, **options: Any) -> Any:
            meta = await super().put(key, *arguments, **options)
            if self.deaf and key.startswith("manifest/"):
                raise Unknown("no answer")
            return meta

        async def head(self, key: str) -> Any:
            if self.deaf:
                raise Unknown("no answer")
            return await super().head(key)

    async def main() -> None:
        store = Deaf(VirtualClock())
        where = await plane(store, slices=1, producers=1)
        producer = where.producer("p", Fixed(1000.0), background=False)
        await producer.start()
        await producer.publish([b"once"], cursor=1)
        store.deaf = True
        with pytest.raises(Unknown):
            await producer.commit()
        store.deaf = False
        await producer.finish()
        assert await read_all(where.consumer(0, 1)) == [b"once"]

    virtual(main())


def test_batches_become_visible_to_all_ranks_at_once() -> None:
    async def main() -> None:
        where = await plane(slices=2, producers=1)
        producer = where.producer("p", Fixed(1000.0), background=False)
        await producer.start()
        await producer.publish([b"a", b"b"])
        waiting = [asyncio.ensure_future(where.consumer(rank, 2).read(0)) for rank in (0, 1)]
        await where.clock.sleep(10)
        assert not any(task.done() for task in waiting)
        await producer.commit()
        assert [bytes(parts[0]) for parts in await asyncio.gather(*waiting) if parts] == [b"a", b"b"]

    virtual(main())


@given(seed=st.integers(0, 99))
def test_batches_that_are_written_at_once_become_visible_in_order(seed: int) -> None:
    async def main() -> None:
        slow = Delayed(MemStore(VirtualClock()), PROFILES["s3-standard"], seed=seed)
        where = await plane(slow, slices=1, producers=1)
        producer = where.producer("p", Fixed(0.05))
        await producer.start()
        await asyncio.gather(*(producer.publish([b"%d" % number], number) for number in range(20)))
        await producer.finish()
        assert await read_all(where.consumer(0, 1)) == [b"%d" % number for number in range(20)]

    virtual(main())


def test_a_background_producer_commits_by_itself() -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1)
        producer = where.producer("p", Fixed(5.0))
        await producer.start()
        await producer.publish([b"a"], cursor=1)
        assert await where.consumer(0, 1).read(0) == [b"a"]
        assert 4.0 < where.clock.now() < 7.0
        await producer.finish()

    virtual(main())


def test_too_much_that_waits_forces_a_commit() -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1)
        producer = where.producer("p", Fixed(1000.0), background=False, most=2500)
        await producer.start()
        visible = []
        for _ in range(6):
            await producer.publish([bytes(1000)])
            visible.append((await where.manifest.refresh()).next_step)
        assert visible == [0, 0, 3, 3, 3, 6] and producer.waiting == 0

    virtual(main())


def test_taking_turns_the_order_hangs_on_the_sources_alone() -> None:
    async def main(late: str) -> list[bytes]:
        where = await plane(slices=1, producers=2)
        producers = {name: await started(where, name) for name in ("x", "y")}
        early = "y" if late == "x" else "x"
        for name in (early, late):
            for seq in range(3):
                await producers[name].publish([b"%s%d" % (name.encode(), seq)])
            await producers[name].finish()
        consumer = where.consumer(0, 1, turns=("x", "y"))
        found = await read_all(consumer)
        assert consumer.floor(2) == 1
        return found

    assert virtual(main("x")) == virtual(main("y")) == [b"x0", b"y0", b"x1", b"y1", b"x2", b"y2"]


@MODES
def test_only_what_no_checkpoint_needs_is_reclaimed(mode: str) -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1, mode=mode)
        producer = await started(where)
        for number in range(10):
            await producer.publish([b"%d" % number])
        assert await where.reclaim() == []  # no checkpoint: all of it may be needed
        await where.retain([4, 7])
        assert len(await where.reclaim()) == 4
        assert [bytes(parts[0]) for step in range(4, 10) if (parts := await where.consumer(0, 1).read(step))] == [
            b"4", b"5", b"6", b"7", b"8", b"9",
        ]  # fmt: skip
        with pytest.raises(Reclaimed, match="the plane begins with step 4"):
            await where.consumer(0, 1).read(3)
        with pytest.raises(Reclaimed, match="step 2 was reclaimed already"):
            await where.retain([2])
        await where.retain([7])
        assert len(await where.reclaim()) == 3 and await where.check() == []

    virtual(main())


def test_what_a_dead_start_left_goes_and_what_a_living_one_prepares_stays() -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1)
        dead = where.producer("p", Fixed(1000.0), background=False)
        await dead.start()
        await dead.publish([b"orphan"])
        alive = where.producer("p", Fixed(1000.0), background=False)
        await alive.start()
        await alive.publish([b"not yet committed"])
        assert await where.reclaim() == ["data/p/000001-0000000000"]
        await alive.finish()
        assert await read_all(where.consumer(0, 1)) == [b"not yet committed"]

    virtual(main())


@MODES
def test_a_reader_that_slept_while_the_log_was_trimmed_finds_its_way(mode: str) -> None:
    async def main() -> None:
        where = await plane(slices=1, producers=1, mode=mode)
        sleeper, producer = where.consumer(0, 1), await started(where)
        await producer.publish([b"0"])
        assert await sleeper.read(0) == [b"0"]
        for number in range(1, 3 * STATE_EVERY):
            await producer.publish([b"%d" % number])
        await where.clock.sleep(2 * GRACE)
        await where.reclaim()
        kept = [meta.key async for meta in where.store.list("manifest/")]
        assert min(kept) > f"manifest/{STATE_EVERY:020d}"
        assert await sleeper.read(3 * STATE_EVERY - 1) == [b"%d" % (3 * STATE_EVERY - 1)]

    virtual(main())


def test_damage_and_deletion_by_hand_are_told() -> None:
    async def main() -> None:
        store = MemStore(VirtualClock())
        where = await plane(store, slices=1, producers=1)
        producer = await started(where)
        await producer.publish([b"a batch of bytes"])
        await producer.publish([b"another"])
        key = "data/p/000001-0000000000"
        store.objects[key] = b"x" + store.objects[key][1:]
        await store.delete("data/p/000001-0000000001")
        with pytest.raises(Damaged, match="is damaged: its bytes are not those"):
            await where.consumer(0, 1).read(0)
        with pytest.raises(Damaged, match="somebody deleted it by hand"):
            await where.consumer(0, 1).read(1)
        assert {one.rule for one in await where.check()} == {
            "a visible step keeps its bytes", "a visible step can be read",
        }  # fmt: skip

    virtual(main())


def test_a_rank_reads_little_more_than_its_slice() -> None:
    async def main() -> None:
        ledger = Ledger()
        store = MemStore(VirtualClock())
        where = await plane(store, slices=4, producers=1)
        producer = await started(where)
        for _ in range(20):
            await producer.publish([bytes(10_000)] * 4)
        await producer.finish()
        reading = await plane(Metered(store, ledger))
        read = sum(map(len, await read_all(reading.consumer(2, 4))))
        assert read == 200_000 and ledger.nbytes("get") <= 1.05 * read

    virtual(main())


@pytest.mark.parametrize(
    ("options", "told"),
    [({"slices": 3}, "has 2 slices, 1 producers and is delta, not 3"), ({"mode": "full"}, "and is delta, not 2")],
)
def test_a_plane_keeps_its_shape(options: dict[str, Any], told: str) -> None:
    async def main() -> None:
        store = MemStore(VirtualClock())
        await plane(store, slices=2, producers=1)
        with pytest.raises(BadInput, match=told):
            await plane(store, **options)

    virtual(main())


def test_bad_input_is_told_in_a_line() -> None:
    async def main() -> None:
        with pytest.raises(BadInput, match="no plane here yet"):
            await plane()
        where = await plane(slices=4)
        with pytest.raises(BadInput, match="a world that divides them"):
            where.consumer(0, 3)
        with pytest.raises(BadInput, match="is no name of a producer"):
            where.producer("a/b")
        producer = await started(where)
        with pytest.raises(BadInput, match="has 4 slices, not 1"):
            await producer.publish([b""])

    virtual(main())

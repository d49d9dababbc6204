from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.engine.version_log import EMPTY, GRACE, Damaged, VersionLog
from assay.data.interface import AlreadyExists, Buffer, Meta, Unknown
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op, Recorded, Wrapper
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.streams import stream


class Deaf(Wrapper):
    """Loses the answers to some puts, whose effect happens or not."""

    def __init__(self, inner: MemStore, fates: list[str]) -> None:
        super().__init__(inner)
        self.fates = fates

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> Meta:  # type: ignore[override]
        fate = self.fates.pop(0) if self.fates else "fine"
        if fate != "absent":
            done = await self.inner.put(key, data, if_absent=if_absent)
            if fate == "fine":
                return done
        raise Unknown(f"nobody said whether {key} was written")


async def jitter(seed: int, most: float = 1.0) -> None:
    await VirtualClock().sleep(float(stream(seed, "jitter").uniform(0, most)))


class Slow(Wrapper):
    """Every request takes a random time before and behind its effect."""

    def __init__(self, inner: MemStore, seed: int) -> None:
        super().__init__(inner)
        self.random = stream(seed, "slow")

    async def around(self, op: Op, call):  # type: ignore[no-untyped-def]
        await VirtualClock().sleep(float(self.random.uniform(0, 1)))
        found = await call()
        await VirtualClock().sleep(float(self.random.uniform(0, 1)))
        return found


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6))
def test_of_writers_at_once_each_record_is_committed_once_and_without_gaps(seed: int, writers: int, each: int) -> None:
    async def main() -> list[bytes]:
        store = MemStore(VirtualClock())

        async def writer(name: int) -> None:
            log = VersionLog(Slow(store, seed * 7 + name), "log", author=f"w{name}", clock=VirtualClock())
            for i in range(each):
                while not await log.append(await log.latest() + 1, b"%d/%d" % (name, i)):
                    pass

        await asyncio.gather(*map(writer, range(writers)))
        log = VersionLog(store, "log", clock=VirtualClock())
        assert await log.check() == []
        return [record async for _, record in log.tail(EMPTY)]

    records = run_virtual(main())
    assert sorted(records) == sorted(b"%d/%d" % (w, i) for w in range(writers) for i in range(each))
    for name in range(writers):  # a writer's own are in its order
        assert [r for r in records if r.startswith(b"%d/" % name)] == [b"%d/%d" % (name, i) for i in range(each)]


@given(st.lists(st.sampled_from(["fine", "there", "absent"]), max_size=6))
def test_a_lost_answer_is_settled_by_reading_back(fates: list[str]) -> None:
    store = MemStore()
    log = VersionLog(Deaf(store, list(fates)), "log", author="me")
    for version in range(4):
        assert asyncio.run(log.append(version, b"%d" % version))
    assert asyncio.run(log.latest()) == 3


def test_a_lost_answer_to_a_put_that_came_second_is_not_ours() -> None:
    store = MemStore()
    assert asyncio.run(VersionLog(store, "log", author="first").append(0, b"same bytes"))
    deaf = VersionLog(Deaf(store, ["absent"]), "log", author="second")
    assert not asyncio.run(deaf.append(0, b"same bytes"))


def test_a_store_that_never_answers_is_not_assumed_to_have_written() -> None:
    log = VersionLog(Deaf(MemStore(), ["absent"] * 99), "log")
    with pytest.raises(Unknown, match="times in a row"):
        asyncio.run(log.append(0, b"x"))


def test_a_damaged_record_is_told_and_never_returned() -> None:
    store = MemStore()
    log = VersionLog(store, "log")
    asyncio.run(log.append(0, b"precious"))
    store.objects[log.key(0)] = store.objects[log.key(0)][:-1] + b"?"
    with pytest.raises(Damaged, match="restore it from a copy"):
        asyncio.run(log.read(0))
    assert [wrong.rule for wrong in asyncio.run(log.check())] == ["records are whole"]


def test_a_gap_is_a_violation() -> None:
    store = MemStore()
    log = VersionLog(store, "log")
    for version in (0, 1, 3):
        asyncio.run(log.append(version, b"x"))
    assert [wrong.rule for wrong in asyncio.run(log.check())] == ["the log has no gaps"]


async def filled(versions: int, state: int) -> tuple[MemStore, VersionLog]:
    store = MemStore(VirtualClock())
    log = VersionLog(store, "log", author="writer", clock=VirtualClock())
    for version in range(versions):
        await log.append(version, b"%d" % version)
    await log.save_state(state, b"up to %d" % state)
    return store, log


def test_readers_start_at_the_newest_state_and_trimming_waits_for_the_grace() -> None:
    async def main() -> None:
        store, log = await filled(10, state=6)
        await log.trim(6)
        assert len(store.objects) == 11
        await VirtualClock().sleep(GRACE + 1)
        await log.trim(6)
        assert [key for key in store.objects if key.startswith("log/")] == [log.key(v) for v in range(6, 10)]
        reader = VersionLog(store, "log", clock=VirtualClock())
        found = await reader.snapshot()
        assert (found.version, found.state) == (6, b"up to 6")
        assert [version async for version, _ in reader.tail(found.version)] == [7, 8, 9]
        assert await VersionLog(store, "log", clock=VirtualClock()).latest() == 9
        assert await reader.check() == []

    run_virtual(main())


def test_a_dead_writers_record_below_the_trimmed_ones_changes_nothing() -> None:
    async def main() -> None:
        store, log = await filled(10, state=9)
        await VirtualClock().sleep(GRACE + 1)
        await log.trim(9)
        dead = VersionLog(MemStore(), "log", author="dead")
        await store.put(log.key(4), dead._sealed(b"too late"), if_absent=True)
        reader = VersionLog(store, "log", clock=VirtualClock())
        assert await reader.latest() == 9
        assert await reader.check() == []

    run_virtual(main())


def test_a_writer_that_slept_while_its_number_was_trimmed_does_not_believe_it_committed() -> None:
    async def main() -> None:
        store, log = await filled(3, state=2)
        sleeper = VersionLog(store, "log", author="sleeper", clock=VirtualClock())
        assert await sleeper.latest() == 2
        for version in range(3, 8):
            await log.append(version, b"%d" % version)
        await log.save_state(7, b"up to 7")
        await VirtualClock().sleep(GRACE + 1)
        await log.trim(7)
        with pytest.raises(Unknown, match="written so late"):
            await sleeper.append(3, b"mine")

    run_virtual(main())


def test_create_only_is_what_protects_a_record() -> None:
    store = MemStore()
    log = VersionLog(store, "log")
    asyncio.run(log.append(0, b"x"))
    with pytest.raises(AlreadyExists):
        asyncio.run(store.put(log.key(0), b"y", if_absent=True))


def test_what_is_newer_costs_one_request_however_much_there_is() -> None:
    async def main() -> None:
        store = Recorded(MemStore(VirtualClock()))
        writer, reader = (VersionLog(store, "log", author=name, clock=VirtualClock()) for name in "wr")
        for version in range(30):
            assert await writer.append(version, b"%d" % version)
        store.trace.clear()
        assert await reader.newer(EMPTY) == list(range(30)) and await reader.newer(27) == [28, 29]
        assert await reader.newer(29) == [] and not reader.slept
        assert [op.name for op in store.trace] == ["list"] * 3

    run_virtual(main())

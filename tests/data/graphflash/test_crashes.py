"""However functions and coordinators die, the answer is the one that nobody disturbed gives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from assay.data.crash.faulty import Kind
from assay.data.crash.lab import cases, examine, recorded, replay
from assay.data.crash.processes import examine_processes
from assay.data.graphflash import Design, network
from assay.data.graphflash.crashing import Analyst
from assay.data.graphflash.function import serving
from assay.data.graphflash.job import Job
from assay.data.graphflash.run import perform, plan
from assay.data.interface import Store
from assay.data.store.directory import DirStore
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op, Wrapper
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.faas import Modelled, Processes

T = TypeVar("T")
OPS = 12
SOME = 7  # every so manieth case, which no period of theirs divides


def test_nothing_is_lost() -> None:
    changes = recorded(Analyst, OPS, 0)
    tried = cases(Analyst, len(changes), OPS, 0, mixes=5)
    assert [found for case in tried[::SOME] if (found := replay(Analyst, case))] == []
    assert {fault.kind for case in tried[::SOME] for fault in case.faults} == set(Kind), "in every way there is"
    kinds = {line.split("/")[0] + "/" + line.split("/")[2] for line in changes if "jobs/" in line}
    assert kinds == {
        "put jobs/m",
        "put jobs/done",
        "put jobs/log",
        "put jobs/result",
        "delete jobs/m",
        "delete jobs/done",
    }


@pytest.mark.slow
def test_nothing_is_lost_wherever_it_dies() -> None:
    report = examine(Analyst, ops=OPS, mixes=6)
    assert report.findings == [] and report.exhaustive


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Analyst, ops=340, mixes=100)
    assert report.findings == [] and report.changes >= 300


@pytest.mark.slow  # its smaller twin kills real functions, below
def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.graphflash.crashing:Analyst", ops=OPS, points=3) == (3, [])


class Forgets(Analyst):
    """Deletes mail as soon as it was read, though a kept function may have to take it again."""

    async def _job(self, *arguments: Any) -> Job:
        job = await super()._job(*arguments)
        job.__class__ = _Forgets
        return job


class _Forgets(Job):
    async def _collect(self, step: int) -> None:
        needed = {letter.key for group in self.groups for letter in group.mail}
        needed |= {group.state.key for group in self.groups if group.state}
        await self.store.delete(*sorted(self._objects - needed))
        self._objects &= needed


class PointsFirst(Analyst):
    """Creates the record before what it names."""

    async def open(self, store: Store, **options: Any) -> None:
        await super().open(Later(store), **options)


class Later(Wrapper):
    """Keeps mail and state back until their record is there."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.kept: dict[str, Any] = {}

    async def put(self, key: str, data: Any, *, if_absent: bool = False) -> Any:
        """The record, then what it names."""
        if "/m/" in key:
            self.kept[key.split("/")[4]] = key, b"".join(data)
            return None
        found = await self.inner.put(key, data, if_absent=if_absent)
        if "/done/" in key:
            await self.inner.put(*self.kept.pop(key.split("/")[4]))
        return found


@pytest.mark.parametrize("wrong", [Forgets, PointsFirst])
def test_the_lab_would_notice(wrong: type[Analyst]) -> None:
    tried = cases(wrong, len(recorded(wrong, OPS, 0)), OPS, 0, 0)
    rules = (one.rule for case in tried if (found := replay(wrong, case)) for one in found.violations)
    assert next(rules, "") in ("what a log names is there", "recovery works")


# ----------------------------------------------------------------------------------------------- functions that die


class Died(Exception):  # noqa: N818 - what happened to a function, on purpose
    """A function is gone; its coordinator is not."""


class Mortal(Wrapper):
    """Kills the function that makes one request, before or after it."""

    def __init__(self, inner: Store, at: int, after: bool) -> None:
        super().__init__(inner)
        self.at, self.after, self.count = at, after, 0

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Count, and die once."""
        self.count += 1
        if self.count - 1 != self.at:
            return await call()
        if self.after:
            await call()
        raise Died


def by_functions(program: str, mode: str, at: int, after: bool = False) -> tuple[Any, int, int]:
    """The answer where the function that makes the given request dies; how many requests, and how many retries."""
    rng = np.random.default_rng(8)
    graph = network(rng.integers(0, 40, (70, 2)), rng.random(70), 40)

    async def main() -> tuple[Any, int, int]:
        world = MemStore(VirtualClock())
        mortal = Mortal(world, at, after)
        task = plan(program, graph, design=Design(mode, checkpoint=3), workers=2, parts=4, tolerance=1e-2)
        async with Modelled(serving(mortal), slots=2, cold=(0.0, 0.0)) as platform:
            ran = await perform(task, world, platform, clock=VirtualClock())
        return ran.values.tobytes(), mortal.count, ran.bill.retried

    return run_virtual(main())


@pytest.mark.parametrize("mode", ["pinned", "rotating"])
@pytest.mark.parametrize("program", ["pagerank", "components", "sssp", "labels", "triangles"])
def test_a_function_may_die_at_any_request(program: str, mode: str) -> None:
    right, requests, _ = by_functions(program, mode, -1)
    points = range(0, requests, max(1, requests // 3))
    for at in points:
        found, _, retried = by_functions(program, mode, at, after=at % 2 == 1)
        assert found == right and retried == 1, at


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pinned", "rotating"])
@pytest.mark.parametrize("program", ["pagerank", "components", "bfs", "sssp", "labels", "triangles"])
def test_a_function_may_die_at_every_request(program: str, mode: str) -> None:
    right, requests, _ = by_functions(program, mode, -1)
    for at in range(requests):
        for after in (False, True):
            assert by_functions(program, mode, at, after)[0] == right, (at, after)


@pytest.mark.parametrize("mode", ["pinned", "rotating"])
def test_real_functions_are_killed_and_the_answer_stays(mode: str, tmp_path: Path) -> None:
    graph = network([(i, i + 1) for i in range(31)])

    async def main(handler: str, url: Path) -> Any:
        task = plan("bfs", graph, design=Design(mode, checkpoint=2), workers=2, parts=4, how="range")
        # As many retries as there are deaths: all of them may hit the same call.
        async with Processes(handler, slots=2, retries=4, imports=["assay.data.graphflash.image"]) as platform:
            return await perform(task, DirStore(url, fsync=False), platform, url=str(url))

    ran = asyncio.run(main("tests.data.graphflash.killed:handle", tmp_path))
    assert np.array_equal(ran.values, np.arange(32))
    assert ran.bill.retried >= 3, "several were killed on the way"

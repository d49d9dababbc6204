"""After any crash: listed means complete, and what was promised is listed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from assay.data.crash.lab import cases, examine, recorded, replay
from assay.data.crash.processes import examine_processes
from assay.data.orbax.crashing import Job
from assay.data.orbax.register import Register, Saved


def test_nothing_is_lost() -> None:
    report = examine(Job, ops=30, mixes=2)
    assert report.findings == [] and report.exhaustive
    kinds = {line.partition("/")[0] for line in recorded(Job, 30, 0)}
    assert kinds == {"put data", "put table", "put log", "delete data", "delete table"}


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Job, ops=300, mixes=300)
    assert report.findings == [] and report.changes >= 300


def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.orbax.crashing:Job", ops=12, points=1) == (1, [])


class DeletesFirst(Job):
    """Deletes before it says so."""

    async def collect(self, drop: Iterable[int] = ()) -> list[str]:
        state = await self.register.refresh()
        kept = self.keep.kept(state.steps)
        gone = await self._unneeded(state.steps, kept)
        await self.store.delete(*gone)
        await self.register.collect([step for step in state.steps if step not in kept], gone)
        return gone


class Careless(Register):
    """Commits without looking at what was collected meanwhile."""

    async def save(self, saved: Saved, since: int) -> None:
        await super().save(saved, since=(await self.refresh()).collections)


class Races(Job):
    """A collector with no grace, and a trainer that does not look."""

    async def open(self, *arguments: Any, **options: Any) -> None:
        await super().open(*arguments, **options)
        self.grace = 0.0
        self.register.__class__ = Careless


class CommitsFirst(Job):
    """Names a table that is not written yet."""

    async def _attempt(self, *arguments: Any) -> None:
        real, later = self.store, Later(self.store)
        self.store = later  # type: ignore[assignment]
        try:
            await super()._attempt(*arguments)
            await later.now()
        finally:
            self.store = real


class Later:
    """Keeps back what is put under table/."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.kept = inner, dict[str, Any]()

    async def put(self, key: str, data: Any) -> None:
        if key.startswith("table/"):
            self.kept[key] = data
        else:
            await self.inner.put(key, data)

    async def now(self) -> None:
        for key, data in self.kept.items():
            await self.inner.put(key, data)


@pytest.mark.parametrize(("wrong", "mixes"), [(DeletesFirst, 0), (Races, 30), (CommitsFirst, 0)])
def test_the_lab_would_notice(wrong: type[Job], mixes: int) -> None:
    ops = 24
    tried = cases(wrong, len(recorded(wrong, ops, 0)), ops, 0, mixes)
    tried = [case for case in tried if bool(case.mixed) == bool(mixes)]
    found = (one.rule for case in tried if (finding := replay(wrong, case)) for one in finding.violations)
    assert "a listed checkpoint is complete" in found


def test_a_collector_without_grace_costs_a_second_attempt_and_no_checkpoint() -> None:
    class Hasty(Job):
        async def open(self, *arguments: Any, **options: Any) -> None:
            await super().open(*arguments, **options)
            self.grace = 0.0

    report = examine(Hasty, ops=12, mixes=15)
    complete = {one.rule for found in report.findings for one in found.violations}
    assert "a listed checkpoint is complete" not in complete

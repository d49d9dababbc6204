"""After any crash: steps have no gaps and never change, each record is in one of them, checkpoints can be read on."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.crash.lab import cases, examine, recorded, replay
from assay.data.crash.processes import examine_processes
from assay.data.interface import Meta, Store
from assay.data.lakestream.crashing import Plant
from assay.data.lakestream.pace import Pace
from assay.data.lakestream.producer import Producer
from assay.data.store.wrappers import Wrapper


def test_nothing_is_lost() -> None:
    """Every change and every way to fail, every third crash of a recovery, some crowds; all of them are `slow`."""
    tried = cases(Plant, len(recorded(Plant, 24, 0)), 24, 0, mixes=3)
    some = [case for case in tried if len(case.faults) == 1 or case.mixed]
    some += [case for case in tried if len(case.faults) == 2][::3]
    assert len(some) > 200 and [found for case in some if (found := replay(Plant, case))] == []
    kinds = {line.partition("/")[0] for line in recorded(Plant, 60, 0)}
    assert kinds >= {"put shape", "put data", "put manifest", "put ckpt", "delete data", "delete ckpt"}


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Plant, ops=240, mixes=60)
    assert report.findings == [] and report.changes >= 300
    kinds = {line.partition("/")[0] for line in recorded(Plant, 240, 0)}
    assert "put manifest-state" in kinds and "delete manifest" in kinds


def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.lakestream.crashing:Plant", ops=12, points=2) == (2, [])


class Forgetful(Plant):
    """Its producers begin at the beginning whenever they start."""

    def producer(self, pid: str, pace: Pace | None = None, **options: Any) -> Producer:
        found = super().producer(pid, pace, **options)
        found.__class__ = Amnesiac
        return found


class Amnesiac(Producer):
    """Forgets where its source goes on."""

    async def start(self) -> Any:
        await super().start()
        return 0


class DeletesFirst(Plant):
    """Deletes what lies before the oldest checkpoint, and drops it from the manifest afterwards."""

    async def reclaim(self) -> list[str]:
        state = await self.manifest.refresh()
        marks = await self.retained()
        gone = [batch.key for step, batch in state.steps().items() if marks and step < marks[0]]
        await self.store.delete(*gone)
        await super().reclaim()
        return gone


class Overwrites(Plant):
    """A manifest that is put plainly: whoever comes last wins."""

    async def open(self, store: Store, **options: Any) -> None:
        await super().open(Plain(store), **options)


class Plain(Wrapper):
    """Never create-only."""

    async def put(self, key: str, data: Any, *, if_absent: bool = False) -> Meta:
        return await super().put(key, data)


class DropsTooMuch(Plant):
    """Keeps the newest checkpoint only, whatever was retained."""

    async def retained(self) -> list[int]:
        return (await super().retained())[-1:]


@pytest.mark.parametrize(
    ("wrong", "mixes", "rule"),
    [
        (Forgetful, 0, "a step holds its source's records"),
        (DeletesFirst, 0, "a visible step can be read"),
        (Overwrites, 60, "each record is in exactly one step"),
        (DropsTooMuch, 0, "a retained checkpoint can be read on from"),
    ],
)
def test_the_lab_would_notice(wrong: type[Plant], mixes: int, rule: str) -> None:
    ops = 40
    tried = cases(wrong, len(recorded(wrong, ops, 0)), ops, 0, mixes)
    tried = [case for case in tried if bool(case.mixed) == bool(mixes)]
    found = (one.rule for case in tried if (finding := replay(wrong, case)) for one in finding.violations)
    assert rule in found

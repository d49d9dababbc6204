"""After any crash each committed record arrives once, in order; the lab notices streams that do not keep that."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.blobshuffle import shuffle
from assay.data.blobshuffle.crashing import Stream
from assay.data.crash.faulty import Kind
from assay.data.crash.lab import cases, examine, recorded, replay
from assay.data.crash.processes import examine_processes

OPS = 56  # two rounds: what the first left behind is collected in the second


def test_nothing_is_lost_or_doubled() -> None:
    tried = cases(Stream, len(recorded(Stream, OPS, 0)), OPS, 0, mixes=20)
    assert {fault.kind for case in tried[::7] for fault in case.faults} == set(Kind)
    assert [found for case in tried[::7] if (found := replay(Stream, case))] == []
    kinds = {"/".join(line.split("/")[:2]) if "broker" in line else line.partition("/")[0]
             for line in recorded(Stream, OPS, 0)}  # fmt: skip
    assert kinds == {"put blobs", "put broker/sent", "put broker/log", "put sink", "delete broker/sent", "delete blobs"}


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_in_more_than_three_hundred_changes() -> None:
    report = examine(Stream, ops=300, mixes=100)
    assert report.findings == [] and report.changes >= 300


def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.blobshuffle.crashing:Stream", ops=12, points=2) == (2, [])


class NotesFirst(shuffle.Producer):
    """Commits before its uploads have finished."""

    async def commit(self, offset: int) -> None:
        real, self.shuffle.store = self.shuffle.store, Later(self.shuffle.store)  # type: ignore[assignment]
        try:
            await super().commit(offset)
            await self.shuffle.store.now()  # type: ignore[attr-defined]
        finally:
            self.shuffle.store = real


class Later:
    """Keeps blobs back."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.kept = inner, dict[str, Any]()

    async def put(self, key: str, data: Any, *, if_absent: bool = False) -> None:
        self.kept[key] = data

    async def now(self) -> None:
        for key, data in self.kept.items():
            await self.inner.put(key, data)


class OffsetFirst(shuffle.Producer):
    """Acknowledges its input before the records are in the broker."""

    async def commit(self, offset: int) -> None:
        await self.shuffle.broker.commit(self.name, offset)
        await super().commit(offset)


class NoTransaction(shuffle.Producer):
    """Shows the notes, and keeps the offset afterwards."""

    async def commit(self, offset: int) -> None:
        before = self.offset
        await super().commit(before)
        await self.shuffle.broker.commit(self.name, offset)


class Backwards(shuffle.Producer):
    """Sends notes in the order in which uploads happen to be listed last."""

    async def _flush(self, group: Any) -> None:
        await super()._flush(group)
        self._uploads.reverse()


def careless(kind: type[shuffle.Producer]) -> type[Stream]:
    class Careless(Stream):
        async def producer(self, name: str, zone: str) -> shuffle.Producer:
            return kind(self, name, zone, await self.broker.begin(name))

    return Careless


class Collects(Stream):
    """Takes every blob that no note names for a dead producer's, however young."""

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        if role == "reader":
            self.retention = 0.0
            for _ in range(ops):
                await self.clock.sleep(0.05)
                await self.collect()
            return
        await super().work(ops, promised, role)


ONCE, BLOB = "each record once, in order", "a visible note's blob can be read"
ALL = "actors at once finish"  # a reader finds no blob behind a note


@pytest.mark.parametrize(
    ("wrong", "rule", "mixes"),
    [
        (careless(NotesFirst), BLOB, 0), (careless(OffsetFirst), ONCE, 0), (careless(NoTransaction), ONCE, 0),
        (careless(Backwards), ONCE, 0), (Collects, ALL, 40),
    ],
)  # fmt: skip
def test_the_lab_would_notice(wrong: type[Stream], rule: str, mixes: int) -> None:
    tried = cases(wrong, len(recorded(wrong, OPS, 0)), OPS, 0, mixes)
    tried = [case for case in tried if bool(case.mixed) == bool(mixes)]
    assert rule in (one.rule for case in tried if (finding := replay(wrong, case)) for one in finding.violations)

"""After any crash: a graph that counts is whole, and what was finished is used again."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.crash.lab import cases, examine, recorded, replay
from assay.data.crash.processes import examine_processes
from assay.data.solanet.build import Build
from assay.data.solanet.crashing import CHANGES, Job


def test_nothing_is_lost() -> None:
    report = examine(Job, ops=2 * CHANGES, mixes=15)
    assert report.findings == [] and report.exhaustive
    assert report.changes == 2 * CHANGES


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Job, ops=312, mixes=300)
    assert report.findings == [] and report.changes >= 300


def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.solanet.crashing:Job", ops=CHANGES, points=4) == (4, [])


class SaysFirst(Build):
    """Says that the arrays count before they are there."""

    async def _put(self, name: str, data: Any) -> None:
        self.later = [*getattr(self, "later", []), (name, data)]

    async def _clear(self) -> None:
        for name, data in getattr(self, "later", []):
            await super()._put(name, data)
        await super()._clear()


class ClearsFirst(Build):
    """Removes the parts' lists before the graph counts."""

    async def _create(self, name: str, data: Any) -> None:
        if name == "done":
            await self._clear()
        await super()._create(name, data)


@pytest.mark.parametrize("wrong", [SaysFirst, ClearsFirst])
def test_the_lab_would_notice(wrong: type[Build], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.data.solanet.crashing.Build", wrong)
    tried = cases(Job, len(recorded(Job, CHANGES, 0)), CHANGES, 0, 0)
    assert any(replay(Job, case) for case in tried)

"""The crash lab finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import pytest

from assay.data.baselines.append_log import AppendLog
from assay.data.crash.faulty import Fault, Kind
from assay.data.crash.lab import AGAIN, Case, cases, examine, filmed, recorded, replay, smallest
from assay.data.crash.processes import examine_processes
from tests.data.crash import broken

OPS = 8


def kinds(report) -> set[Kind]:  # type: ignore[no-untyped-def]
    return {found.case.faults[0].kind for found in report.findings if len(found.case.faults) == 1}


def test_nothing_is_found_in_what_is_right() -> None:
    report = examine(AppendLog, ops=40, mixes=30)
    assert report.findings == []
    changes = report.changes
    assert report.exhaustive and report.crashes == changes * len(Kind) and report.crashes_twice == changes * 2 * AGAIN
    assert {"blob", "log", "log-state"} == {line.split()[1].split("/")[0] for line in recorded(AppendLog, 40, 0)}
    assert any(line.startswith("delete log/") for line in recorded(AppendLog, 40, 0))  # trimming is tried, too


@pytest.mark.parametrize(
    ("wrong", "by", "rule"),
    [
        (broken.PointerFirst, Kind.AFTER, "a committed blob can be read"),
        (broken.PromisesEarly, Kind.BEFORE, "what was promised is there"),
        (broken.Plain, Kind.LAST, "what was promised is there"),
        (broken.Assuming, Kind.LOST, "each item once"),
        (broken.Stumbles, Kind.LOST, "only the store's errors reach the caller"),
        (broken.Hangs, Kind.AFTER, "recovery works"),
    ],
)
def test_what_is_wrong_is_found_by_the_fault_that_shows_it(wrong: type, by: Kind, rule: str) -> None:
    report = examine(wrong, ops=OPS, mixes=0)
    assert by in kinds(report)
    assert rule in {one.rule for found in report.findings for one in found.violations}


def test_a_recovery_that_may_not_crash_is_found_by_crashing_it() -> None:
    report = examine(broken.FragileRecovery, ops=OPS, mixes=0)
    assert not kinds(report) & {Kind.BEFORE, Kind.AFTER}
    assert any(len(found.case.faults) == 2 for found in report.findings)


def test_two_writers_that_overwrite_each_other_are_found_by_mixing_them() -> None:
    class Apart(broken.Plain):
        """Each of two writers promises what is its own."""

        async def open(self, store, *, clock, seed=0):  # type: ignore[no-untyped-def]
            await super().open(store, clock=clock, seed=seed)
            self.name = seed % 1000

        async def work(self, ops, promised, role):  # type: ignore[no-untyped-def]
            for i in range(ops):
                self.items = [*await self._read(), self.name * 1000 + i]
                await self.store.put("items", " ".join(map(str, self.items)).encode())
                promised.append(self.items[-1])

    report = examine(Apart, ops=4, mixes=20)
    assert any(found.case.mixed for found in report.findings)


def test_the_smallest_reproducer_is_small_and_reproduces() -> None:
    report = examine(broken.Plain, ops=30, mixes=0)
    found = smallest(broken.Plain, report.findings[0])
    assert found.case.ops < 5
    assert replay(broken.Plain, found.case) == found
    assert found.trace[-1].endswith(str(found.case.faults[0].kind))
    assert f"--at {found.case.faults[0]}" in str(found.case)


def test_a_case_always_goes_the_same_way() -> None:
    case = Case(OPS, 3, (Fault(4, Kind.LAST),))
    assert replay(broken.Plain, case) == replay(broken.Plain, case)
    mixed = Case(OPS, 5, mixed=2)
    assert replay(broken.Plain, mixed) == replay(broken.Plain, mixed)


@pytest.mark.parametrize(
    "made", [AppendLog, broken.PointerFirst, broken.Plain, broken.Assuming, broken.FragileRecovery, broken.Hangs]
)
def test_a_death_off_the_film_ends_as_one_that_is_lived(made: type) -> None:
    film = filmed(made, OPS, 0)
    every = cases(made, len(film.frames), OPS, 0, mixes=0)
    assert [replay(made, case, film) for case in every] == [replay(made, case) for case in every]


def test_real_processes_that_exit_at_the_point_lose_nothing() -> None:
    tried, findings = examine_processes("assay.data.baselines.append_log:AppendLog", ops=6, points=16)
    assert (tried, findings) == (16, [])


def test_real_processes_show_what_is_wrong() -> None:
    tried, findings = examine_processes("tests.data.crash.broken:PromisesEarly", ops=6, points=12)
    assert tried == 12
    assert {one.rule for found in findings for one in found.violations} == {"what was promised is there"}

"""However a run dies, nothing that was told is lost, and what was not told comes out the same."""

from __future__ import annotations

import pytest

from assay.data.crash.lab import examine
from assay.data.crash.processes import examine_processes
from assay.data.fold.crashing import Job
from assay.data.fold.decide import Settings


def test_every_change_fails_in_every_way_and_recovery_too() -> None:
    report = examine(Job, ops=10, mixes=4)
    assert report.findings == []
    assert report.changes >= 7 and report.crashes_twice > 0


class Bands(Job):
    settings = Settings(by="bands", near=4)


def test_candidates_by_bands_are_as_durable() -> None:
    assert examine(Bands, ops=6, mixes=2).findings == []


@pytest.mark.slow
def test_three_hundred_changes_fail_in_every_way() -> None:
    report = examine(Job, ops=260, mixes=60)
    assert report.changes >= 300
    assert report.findings == []


@pytest.mark.slow
def test_real_processes_die_at_real_files() -> None:
    done, findings = examine_processes("assay.data.fold.crashing:Job", 60, 60)
    assert done >= 60
    assert findings == []

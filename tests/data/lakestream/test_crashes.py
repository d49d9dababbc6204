"""After any crash: steps have no gaps and never change, each record is in one of them, checkpoints can be read on."""

from __future__ import annotations

import pytest

from assay.data.crash.lab import examine, recorded
from assay.data.crash.processes import examine_processes
from assay.data.lakestream.crashing import Plant


def test_nothing_is_lost() -> None:
    report = examine(Plant, ops=30, mixes=6)
    assert report.findings == [] and report.exhaustive
    kinds = {line.partition("/")[0] for line in recorded(Plant, 60, 0)}
    assert kinds >= {"put shape", "put data", "put manifest", "put ckpt", "delete data", "delete ckpt"}


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Plant, ops=260, mixes=100)
    assert report.findings == [] and report.changes >= 300
    kinds = {line.partition("/")[0] for line in recorded(Plant, 260, 0)}
    assert "put manifest-state" in kinds and "delete manifest" in kinds


def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.lakestream.crashing:Plant", ops=12, points=3) == (3, [])

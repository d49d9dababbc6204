"""Killed at any change to its store, training goes on to the same parameters: the crash lab on real epochs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from assay.data.crash.lab import examine
from assay.data.grinnder import crashing
from assay.data.grinnder.crashing import Job


def test_no_crash_changes_the_parameters() -> None:
    report = examine(Job, 6, mixes=1)
    assert report.findings == []
    assert report.crashes > 20 and report.crashes_twice > 20


@pytest.mark.slow  # the same with over a hundred changes; the cost grows with their square
def test_no_crash_among_a_hundred_and_twenty_changes_does() -> None:
    report = examine(Job, 120, mixes=20)
    assert report.changes >= 115 and report.findings == []


@pytest.mark.slow  # as many cases again, of a job that is wrong
def test_the_lab_would_notice_parameters_of_another_training() -> None:
    """A job that trains from its first weights after a restart, instead of those saved."""

    class Forgetful(Job):
        async def work(self, ops: int, promised: list[int], role: str) -> None:
            done = max(await self.saved.steps(), default=0)
            weights = crashing.first()
            for epoch in range(done + 1, 4):
                weights = crashing.after(weights)
                await self.saved.save_tree(epoch, weights)
                promised.append(epoch)

    found = examine(Forgetful, 9, mixes=0).findings
    assert any("nobody disturbed" in violation.rule for one in found for violation in one.violations)


def test_an_epoch_is_a_function_of_the_weights() -> None:
    one = crashing.after(crashing.first())
    crashing._known.clear()
    again = crashing.after(crashing.first())
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert any(not np.array_equal(one[name], crashing.first()[name]) for name in one)

"""Steps as Chakra traces, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.training.engine import chakra as steps
from assay.training.engine.step import Unequal, simulate
from assay.training.interface import Job, Layout, Plan
from assay.workloads import chakra
from assay.workloads.chakra import COMP, Graph

JOB = Job(16, 2048)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(Layout(tp=2, pp=4, dp=1)),
        Plan(Layout(pp=2, dp=4, vpp=2), "interleaved"),
        Plan(Layout(pp=4, dp=2), "zb-h1"),
        Plan(Layout(pp=4, dp=2), "dualpipe"),
    ],
    ids=lambda plan: plan.schedule,
)
def test_what_is_written_and_read_again_ends_at_the_same_instant(plan: Plan, tmp_path: Path) -> None:
    outcome = simulate("llama-3-8b", "8xh100", plan, JOB)
    paths = steps.write(outcome, tmp_path)
    assert steps.end([chakra.read(path) for path in paths]) == outcome.step
    assert [path.name for path in paths] == [f"step.{s * 8 // plan.layout.pp}.et" for s in range(plan.layout.pp)]


def test_sends_and_receives_are_pairs(tmp_path: Path) -> None:
    traces = steps.traces_of(simulate("llama-3-8b", "8xh100", Plan(Layout(pp=4, dp=2)), JOB))
    ends = {5: set(), 6: set()}  # type: dict[int, set[tuple[int, int, int]]]
    for trace in traces:
        for i in np.flatnonzero(np.isin(trace.type, (5, 6))).tolist():
            said = trace.attributes(i)
            ends[int(trace.type[i])].add((said["comm_src"], said["comm_dst"], said["comm_tag"]))
    assert ends[5] == ends[6]
    assert len(ends[5]) == 2 * 3 * 8  # both ways over three borders, for every microbatch


def test_ranks_that_differ_are_refused() -> None:
    slow = np.ones(8)
    slow[3] = 2.0
    outcome = simulate("llama-3-8b", "8xh100", Plan(Layout(pp=2, dp=4)), JOB, unequal=Unequal(slow))
    with pytest.raises(BadInput, match="ranks of this step differ"):
        steps.traces_of(outcome)


def test_traces_of_others_are_refused() -> None:
    with pytest.raises(BadInput, match="has no seconds"):
        steps.end([Graph.of([1], ["mm"], COMP, data_deps=[[]])])

"""The fault lab: a real job whose faults only the lab knows, and which never outlives its caller."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from assay.observe.frontier.collector import SYNC_STAGES
from assay.observe.frontier.diagnosis import diagnose
from assay.observe.stagefrontier import StageFrontier
from assay.observe.stagefrontier.ddp import FATAL, Fault, Job, Recording, Stretch, parse, read, record
from assay.observe.stagefrontier.incidents import rank_of
from assay.record.errors import BadInput

SMALL = Job(ranks=2, data=0.002, forward=0.002, backward=0.002, optimizer=0.002, checkpoint=0.002, warm_up=3)


def test_a_schedule_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("ranks = 3\ndata = 0.01\n[[stretch]]\nsteps = 5\n[[stretch]]\nsteps = 6\n"
                    "faults = [{kind = 'data', rank = 2, delay = 0.5}, {kind = 'kill', rank = 0}]\n")  # fmt: skip
    job, schedule = read(path)
    assert (job.ranks, job.data, job.forward) == (3, 0.01, Job().forward)
    assert schedule == (Stretch(5), Stretch(6, (Fault("data", 2, 0.5), Fault("kill", 0))))


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "no .*stretch"), ("stretch = 3", "no .*stretch"), ("ranks = [", "ddp: "), ("[[stretch]]\nsteps = 0", "steps"),
     ("[[stretch]]\nsteps = 1\nfault = 3", "no field 'fault'"),
     ("speed = 3\n[[stretch]]\nsteps = 1", "no field 'speed'"),
     ("[[stretch]]\nsteps = 1\nfaults = [{kind = 'odd', rank = 0}]", "no fault 'odd'"),
     ("[[stretch]]\nsteps = 1\nfaults = [3]", "not a table"), ("[[stretch]]\nsteps = 1\nfaults = 3", "not a table"),
     ("[[stretch]]\nsteps = 1\nfaults = [{kind = 'data', rank = -1}]", "rank"), ("stretch = [3]", "not a table"),
     ("ranks = 'four'\n[[stretch]]\nsteps = 1", "Expected `int`"), ("data = nan\n[[stretch]]\nsteps = 1", "seconds")],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.toml"):
        read(tmp_path / "nothing.toml")


def test_a_fault_on_a_rank_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(BadInput, match="0 … 1"):
        record(SMALL, [Stretch(1, (Fault("data", 2, 0.1),))])


def test_what_was_not_reported_is_marked_in_a_window() -> None:
    durations = np.ones((5, 2, len(SYNC_STAGES)), np.int64)
    recording = Recording((Stretch(2), Stretch(3)), durations, np.array([5, 3]), np.zeros((2, 3), np.int64))
    assert recording.window(1).valid.tolist() == [[True, True], [True, False], [True, False]]
    assert recording.incident(0).truth is None


@pytest.fixture(scope="module")
def recording() -> Recording:
    pytest.importorskip("torch")
    slow = [Stretch(12, (Fault(kind, 1, 0.04),)) for kind in ("data", "forward", "backward", "optimizer", "checkpoint")]
    return record(SMALL, [Stretch(12), *slow], timeout=120)


def test_all_ranks_report_all_steps(recording: Recording) -> None:
    assert recording.failure == ""
    assert recording.reported.tolist() == [72, 72]
    assert (recording.durations.sum(2) > 0).all()


@pytest.mark.timed
@pytest.mark.parametrize("number", range(1, 6))
def test_a_fault_is_where_the_schedule_put_it(recording: Recording, number: int) -> None:
    incident = recording.incident(number)
    assert incident.truth is not None
    found = StageFrontier(recording.incident(0).frame).explain(incident.frame)
    place = rank_of(incident.truth, found)
    assert place is not None
    assert place <= 2
    assert sum(found.accounting.values()) == found.total


def test_clocks_that_are_hours_apart_change_nothing(recording: Recording) -> None:
    healthy, incident = recording.incident(0).frame, recording.incident(1)
    offsets = {clock: 3600 * 10**9 * i - 17 for i, clock in enumerate(incident.frame.clocks)}
    straight = StageFrontier(healthy).explain(incident.frame)
    skewed = StageFrontier(healthy.shifted(offsets)).explain(incident.frame.shifted(offsets))
    assert skewed == straight


@pytest.mark.timed
def test_a_rank_waits_where_the_other_is_late(recording: Recording) -> None:
    usual, stalled = recording.window(0).durations, recording.window(1).durations
    sync = SYNC_STAGES.index("sync")
    waited = np.median(stalled[:, 0, sync]) - np.median(usual[:, 0, sync])
    assert waited > 0.02 * 1e9  # the truth is 0.04; the host may have lost some of it elsewhere


def died_or_hung(kind: str, patience: float) -> Recording:
    """A job whose second rank has such a fault after 25 steps."""
    pytest.importorskip("torch")
    job = Job(ranks=2, data=0, forward=0.001, backward=0.001, optimizer=0, checkpoint=0, warm_up=2, patience=patience)
    return record(job, [Stretch(25), Stretch(5, (Fault(kind, 1),))], timeout=120)


def test_a_job_that_dies_leaves_its_recording_and_no_process() -> None:
    before = _children()
    found = died_or_hung("kill", patience=60)
    assert found.failure
    assert "\n" not in found.failure
    assert (found.reported >= 18).all()  # whole windows of ten steps, two of warm-up
    assert found.where[1, 0] < 32
    assert not _children() - before


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FATAL if kind != "kill"])
def test_a_job_that_hangs_says_so_and_where_its_ranks_were(kind: str) -> None:
    before = _children()
    found = died_or_hung(kind, patience=5)
    assert found.failure
    assert (found.reported >= 18).all()
    # The healthy rank waits; at a size that does not fit gloo ends it at once, and its last sign is one beat old.
    assert SYNC_STAGES[found.where[0, 1]] in ("backward", "sync", *(["forward"] if kind == "mismatch" else []))
    assert not _children() - before


def _children() -> set[str]:
    """The ranks below this process, not multiprocessing's own helpers: what tracks shared memory, and what forks."""
    found = _below(os.getpid())
    server = {child for child, said in found.items() if "forkserver" in said}
    own = {child for child, said in found.items() if "resource_tracker" not in said} - server
    return own.union(*(_below(child) for child in server))


def _below(pid: int | str) -> dict[str, str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {child: Path(f"/proc/{child}/cmdline").read_text() for child in children}


@pytest.mark.slow
def test_fifty_hidden_faults_are_among_the_first_two_suspects() -> None:
    pytest.importorskip("torch")
    from assay.observe.stagefrontier.trials import APART, DELTAS, hidden_faults

    rows = [
        row for row in hidden_faults(2, DELTAS, steps=20, profiled=(), seed=7).values() if row["recording"] == APART
    ]
    ours = [row for row in rows if row["experiment"] == "faults" and row["method"] == "frontier"]
    assert len(ours) == 50
    assert all(row["exact"] for row in ours)
    missed = [row for row in ours if row["delta"] >= 0.1 and not row["top2"]]
    assert len(missed) <= 2  # of forty


def test_a_diagnosis_needs_no_torch() -> None:
    assert diagnose(np.ones((3, 2, 7), np.int64), SYNC_STAGES).total == 14.0

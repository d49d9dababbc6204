"""Progress is what counts as alive: who hangs or is stopped is put out, who is slow or deaf for a while is not."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from assay.training.recover import launch  # noqa: E402
from assay.training.recover.keeper import Keeper  # noqa: E402
from assay.training.recover.seat import PutOut, Seat  # noqa: E402

LONG = 120.0
JOB = """
import ctypes, os, signal, subprocess, sys, time
import torch
from assay.training.recover import join

rank, odd = int(os.environ["RANK"]), {odd!r}
mine = odd.get(rank, "")
if mine == "dies before it joins":
    os.kill(os.getpid(), signal.SIGKILL)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = join(model, batch=8, optimizer=optimizer)
for step in range(4):
    for one in job.step():
        if step == 1 and mine == "hangs":
            while True:
                time.sleep(0.5)
        if step == 1 and mine == "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if step == 1 and mine == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and mine == "is deaf":
            ctypes.PyDLL(None).usleep(5_000_000)  # keeps the interpreter's lock
            mine = ""
        if step == 2 and mine == "is woken":
            subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {{os.getpid()}}"])
            os.kill(os.getpid(), signal.SIGSTOP)
            mine = ""
        model(torch.full((2, 3), float(one))).square().mean().backward()
    assert job.counted == 8
    optimizer.step(); optimizer.zero_grad()
open(os.path.join({folder!r}, f"ended-{{rank}}"), "w").write(str([p.tolist() for p in model.parameters()]))
job.leave()
sys.exit(3 if mine == "fails afterwards" else 0)
"""

# The same without weights: who sits at the keeper is a replica to the launcher, and torch takes seconds to import.
SEATS = """
import os, sys, time
from assay.training.recover.seat import Seat

rank, odd = int(os.environ["RANK"]), {odd!r}
host, _, port = os.environ["ASSAY_KEEPER"].rpartition(":")
seat = Seat((host, int(port)), rank, float(os.environ["ASSAY_TIMEOUT"]))
for step in range(4):
    while step == 1 and odd.get(rank) == "hangs":
        time.sleep(0.5)
    seat.agree(step)
seat.leave()
sys.exit(3 if odd.get(rank) == "fails afterwards" else 0)
"""


def job(
    folder: Path, n: int, odd: dict[int, str], hang_after: float, timeout: float = 1.0, text: str = JOB
) -> tuple[Any, list[str]]:
    script = folder / "job.py"
    script.write_text(text.format(odd=odd, folder=str(folder)))
    said: list[str] = []
    try:
        return launch([str(script)], n, timeout, said.append, hang_after), said
    finally:
        print(*said, sep="\n")


def ended(folder: Path) -> dict[int, str]:
    return {int(path.name.removeprefix("ended-")): path.read_text() for path in folder.glob("ended-*")}


@pytest.mark.slow
@pytest.mark.alone
def test_who_hangs_or_is_stopped_is_put_out_and_who_is_deaf_or_woken_stays(tmp_path: Path) -> None:
    odd = {1: "hangs", 2: "is stopped", 3: "is deaf", 4: "dies before it joins", 5: "is woken"}
    found, said = job(tmp_path, 6, odd, hang_after=40.0)  # a first backward pass on a busy machine takes long, too
    assert found["survivors"] == found["finished"] == [0, 3, 5]
    assert set(found["codes"].values()) == {0, -signal.SIGKILL}
    assert len(set(ended(tmp_path).values())) == 1
    assert sorted(ended(tmp_path)) == [0, 3, 5]
    assert sum("put out (hung)" in line for line in said) == 2


def test_who_hangs_with_a_beating_heart_is_put_out_and_who_failed_after_it_finished_is_told_from_who_died(
    tmp_path: Path,
) -> None:
    found, said = job(tmp_path, 3, {0: "fails afterwards", 1: "hangs"}, hang_after=6.0, text=SEATS)
    assert (found["survivors"], found["finished"]) == ([2], [0, 2])
    assert found["codes"] == {0: 3, 1: -signal.SIGKILL, 2: 0}
    assert any("replica 1 is put out (hung) and killed" in line for line in said)
    assert any("replica 0 had finished; its script ended with code 3" in line for line in said)


@pytest.mark.slow
def test_one_that_hangs_with_a_beating_heart_is_put_out_and_the_others_end_cleanly(tmp_path: Path) -> None:
    found, said = job(tmp_path, 2, {1: "hangs"}, hang_after=6.0)
    assert found["survivors"] == found["finished"] == [0]
    assert any("replica 1 is put out (hung) and killed" in line for line in said)


@pytest.mark.slow
def test_the_launcher_tells_one_that_finished_and_failed_later_from_one_that_died(tmp_path: Path) -> None:
    found, said = job(tmp_path, 2, {0: "fails afterwards"}, hang_after=LONG, timeout=60.0)
    assert (found["survivors"], found["finished"], found["codes"]) == ([1], [0, 1], {0: 3, 1: 0})
    assert any("replica 0 had finished; its script ended with code 3" in line for line in said)


@pytest.mark.slow
@pytest.mark.alone
def test_survivors_end_cleanly_time_after_time(tmp_path: Path, record_property: Any) -> None:
    jobs = int(os.environ.get("ASSAY_JOBS", "20"))
    for _ in range(jobs):
        found, _said = job(tmp_path, 4, {1: "dies", 2: "dies"}, hang_after=LONG, timeout=60.0)
        assert found["codes"] == {0: 0, 1: -9, 2: -9, 3: 0}
    record_property("jobs", jobs)


# --------------------------------------------------------------------------------------------------- the keeper alone


def test_silence_of_a_process_that_runs_is_no_death() -> None:
    with Keeper(2, timeout=0.4, watched=True) as keeper:
        seats = [Seat(keeper.address, rank, 1e9) for rank in range(2)]  # no heartbeat
        time.sleep(1.5)
        assert keeper.lost == []
        for seat in seats:
            seat.leave()


def test_who_works_in_silence_is_put_out_only_if_somebody_waits_for_it() -> None:
    with Keeper(2, LONG, hang_after=1.0) as keeper:
        waits, hangs = Seat(keeper.address, 0, LONG), Seat(keeper.address, 1, LONG)
        time.sleep(2.5)
        assert keeper.lost == []
        assert waits.agree("here") == {0: "here"}
        assert [(rank, why) for rank, why, _ in keeper.lost] == [(1, "hung")]
        with pytest.raises(PutOut):
            hangs.agree("late")


def test_words_of_progress_keep_a_slow_one_in() -> None:
    with Keeper(2, LONG, hang_after=2.0) as keeper:
        waits, slow = Seat(keeper.address, 0, LONG), Seat(keeper.address, 1, LONG)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(waits.agree("a")), daemon=True)
        thread.start()
        for _ in range(20):
            time.sleep(0.25)
            slow.works()
        assert slow.agree("b") == {0: "a", 1: "b"}
        thread.join(LONG)
        assert keeper.lost == []


def test_one_that_does_not_come_is_waited_for_no_longer_than_one_that_hangs() -> None:
    with Keeper(2, LONG, hang_after=1.0) as keeper:
        seat = Seat(keeper.address, 0, LONG)
        assert seat.agree("here") == {0: "here"}
        assert [(rank, why) for rank, why, _ in keeper.lost] == [(1, "never came")]

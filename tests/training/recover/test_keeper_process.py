"""The keeper may be killed, stopped or end: the next one goes on from what the replicas know."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from assay.training.recover import keeper_process
from assay.training.recover.keeper_process import KeeperLost, KeeperProcess
from assay.training.recover.seat import Broken, Seat
from tests.training.recover.voting import LONG, votes


@contextmanager
def watched(size: int) -> Iterator[tuple[KeeperProcess, list[Seat], list[str]]]:
    """A keeper that a launcher looks after, and the seats of its replicas."""
    why: list[str] = []
    over = threading.Event()
    with KeeperProcess(size, lambda pid, reason: why.append(reason), timeout=LONG) as keeper:

        def look() -> None:
            while not over.wait(0.02):
                keeper.poll(range(size))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield keeper, [Seat(keeper.address, rank, LONG) for rank in range(size)], why
        finally:
            over.set()
            thread.join()


def until(done: Any) -> None:
    end = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_keeper_is_replaced_and_the_epoch_goes_on() -> None:
    with watched(3) as (keeper, seats, why):
        assert votes(seats, ["a", "b", "c"]) == [{0: "a", 1: "b", 2: "c"}] * 3
        for turn in range(3):
            os.kill(keeper.pid, signal.SIGKILL)
            assert votes(seats, [turn] * 3) == [dict.fromkeys(range(3), turn)] * 3
        until(lambda: len(why) >= 3)
        assert [seat.epoch for seat in seats] == [0, 0, 0]
        assert not any(seat.broken for seat in seats)
        assert "ended with code -9" in why
        assert keeper.lost == []


def test_a_vote_that_was_under_way_is_counted_once() -> None:
    with watched(2) as (keeper, seats, why):
        found: list[Any] = []
        early = threading.Thread(target=lambda: found.append(seats[0].agree("early")))
        early.start()
        until(lambda: seats[0]._vote)
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: why)
        assert seats[1].agree("late") == {0: "early", 1: "late"}
        early.join(LONG)
        assert found == [{0: "early", 1: "late"}]
        assert votes(seats, [1, 2]) == [{0: 1, 1: 2}] * 2


def test_a_death_that_one_keeper_told_of_is_not_forgotten_by_the_next() -> None:
    with watched(3) as (keeper, seats, why):
        votes(seats, [0, 0, 0])
        keeper.exited(2)
        for seat in seats[:2]:
            with pytest.raises(Broken):
                seat.wait(threading.Event(), LONG)
        until(lambda: keeper.lost)
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: why)
        assert votes(seats[:2], ["x", "y"]) == [{0: "x", 1: "y"}] * 2
        assert seats[0].epoch == seats[1].epoch == 1


def test_a_stopped_keeper_is_replaced_once_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(2) as (keeper, seats, why):
        votes(seats, [0, 0])
        os.kill(keeper.pid, signal.SIGSTOP)
        monkeypatch.setattr(keeper_process, "SILENT", 1.0)
        until(lambda: why)
        monkeypatch.setattr(keeper_process, "SILENT", LONG)
        assert votes(seats, [1, 2]) == [{0: 1, 1: 2}] * 2
        assert why[0] == "did not answer"


def test_keepers_that_end_as_soon_as_they_begin_are_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    broken = tmp_path / "keeper.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(keeper_process.keeper, "__file__", str(broken))
    with KeeperProcess(1) as keeper, pytest.raises(KeeperLost, match="in a row ended at once, the last with code 3"):
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            keeper.poll([0])
            time.sleep(0.01)

"""The keeper: a death is known at once, a slow member is never taken for a dead one, and all hear the same."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from assay.training.recover.keeper import Keeper
from assay.training.recover.seat import Broken, PutOut, Seat
from tests.training.recover.voting import LONG, votes


def test_everybody_gets_the_same_values_and_without_a_death_the_epoch_stays() -> None:
    with Keeper(3, LONG) as keeper:
        seats = [Seat(keeper.address, rank, LONG) for rank in range(3)]
        assert votes(seats, ["a", [1], None]) == [{0: "a", 1: [1], 2: None}] * 3
        assert [seat.epoch for seat in seats] == [0, 0, 0]
        for seat in seats:
            seat.leave()


def test_a_closed_connection_is_a_death_and_ends_the_epoch_for_whoever_waits() -> None:
    with Keeper(3, LONG) as keeper:
        seats = [Seat(keeper.address, rank, LONG) for rank in range(3)]
        votes(seats, [0, 0, 0])
        seats[1]._connection.shutdown(socket.SHUT_RDWR)  # what the system does for a killed process
        with pytest.raises(Broken):
            seats[0].wait(threading.Event(), LONG)
        assert votes([seats[0], seats[2]], ["x", "y"]) == [{0: "x", 2: "y"}] * 2
        assert seats[0].epoch == seats[2].epoch == 1
        assert not seats[0].broken
        assert [(rank, why) for rank, why, _ in keeper.lost] == [(1, "died")]


def test_a_vote_of_a_member_that_then_dies_is_in_no_answer() -> None:
    with Keeper(2, LONG) as keeper:
        stays, dies = Seat(keeper.address, 0, LONG), Seat(keeper.address, 1, LONG)
        votes([stays, dies], [0, 0])
        dies._say({"vote": "mine", "broken": False})
        dies._connection.shutdown(socket.SHUT_RDWR)
        assert stays.agree("only") in ({0: "only"}, {0: "only", 1: "mine"})
        assert stays.agree("again") == {0: "again"}


def test_a_broken_connection_between_two_that_live_ends_the_epoch_without_a_death() -> None:
    with Keeper(2, LONG) as keeper:
        seats = [Seat(keeper.address, rank, LONG) for rank in range(2)]
        votes(seats, [0, 0])
        seats[0].complain()
        with pytest.raises(Broken):
            seats[1].wait(threading.Event(), LONG)
        assert votes(seats, ["x", "y"]) == [{0: "x", 1: "y"}] * 2
        assert (seats[0].epoch, keeper.lost) == (1, [])


def test_one_that_sends_nothing_is_put_out_after_the_time_out_and_finds_itself_so() -> None:
    with Keeper(2, timeout=4.0) as keeper:
        lively = Seat(keeper.address, 0, 1.0)  # beats four times a second
        frozen = Seat(keeper.address, 1, 1e9)
        assert votes([lively, frozen], [0, 0]) == [{0: 0, 1: 0}] * 2
        assert lively.agree("on") == {0: "on"}
        assert [(rank, why) for rank, why, _ in keeper.lost] == [(1, "silent")]
        with pytest.raises(PutOut, match="the others go on without it"):
            frozen.agree("late")
        lively.leave()


def test_one_that_never_comes_is_not_waited_for() -> None:
    with Keeper(2, LONG) as keeper:
        seat = Seat(keeper.address, 0, LONG)
        threading.Timer(0.05, keeper.exited, [1]).start()
        assert seat.agree("here") == {0: "here"}


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"join": 7}\n', b"[]\n", b'{"vote": 1}\n', b'{"join": 0}\n{"join": 0}\n']
)
def test_nonsense_costs_only_who_speaks_it_the_connection(line: bytes) -> None:
    with Keeper(2, LONG) as keeper:
        seat = Seat(keeper.address, 1, LONG)
        with socket.create_connection(keeper.address, LONG) as stranger:
            stranger.settimeout(LONG)
            stranger.sendall(line)
            while stranger.recv(1000):
                pass
        if keeper.lost:  # it had a seat before it spoke nonsense
            assert seat.agree("here") == {1: "here"}
        else:
            other = Seat(keeper.address, 0, LONG)
            assert votes([seat, other], [1, 0]) == [{0: 0, 1: 1}] * 2


def test_no_thread_and_no_socket_is_left() -> None:
    before = threading.active_count()
    with Keeper(1, LONG) as keeper:
        seat = Seat(keeper.address, 0, 0.4)
        assert seat.agree(json.loads("[1, 2]")) == {0: [1, 2]}
        seat.leave()
    end = time.monotonic() + LONG
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before

"""The watcher: who is shown as what, that nobody is waited for, and that a hang is told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from assay.live.watch import gather
from assay.live.watch.gather import LAG, Gathering, process_state
from assay.live.watch.rounds import Watch, at_the_end
from assay.live.watch.sources import Port
from assay.live.watch.summary import Summary, summarise
from assay.live.watch.wire import Report
from tests.live.watched import drawn, job, report, states, times

# ------------------------------------------------------------------------------------------------ who fares how


def test_a_rank_that_never_reports_is_missing_and_holds_nobody_up() -> None:
    watched = Gathering()
    for rank in (0, 1, 3):
        watched.take(report(rank, 0, times(60)), now=0.0)
    assert states(watched, 1.0) == {0: "reports", 1: "reports", 2: "missing", 3: "reports"}
    seen = summarise(watched, 1.0)
    assert (seen.expected, seen.reporting, seen.last_step) == (4, 3, 59)


def test_a_rank_that_falls_silent_is_left_out_and_the_others_go_on() -> None:
    watched = job(steps=60)
    for rank in (0, 1, 3):
        watched.take(report(rank, 60, times(60)), now=8.0)
    assert states(watched, 9.0)[2] == "silent"
    seen = summarise(watched, 9.0)
    assert (seen.first_step, seen.last_step, seen.label) == (70, 119, "")
    assert [row.rank for row in seen.ranks if row.stages] == [0, 1, 3]


def test_a_dead_process_of_this_machine_is_gone_before_it_counts_as_silent() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    watched, here = Gathering(), socket.gethostname()[:64]
    watched.take(report(0, 0, times(9), size=2, host=here, pid=dead.pid), now=0.0)
    watched.take(report(1, 0, times(9), size=2, host=here, pid=os.getpid()), now=0.0)
    assert states(watched, 3.0) == {0: "gone", 1: "reports"}


def test_a_stopped_process_of_this_machine_is_told_from_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "process_state", {7: "T", 8: "S"}.__getitem__)
    watched, here = Gathering(), socket.gethostname()[:64]
    for rank, pid in ((0, 7), (1, 8)):
        watched.take(report(rank, 0, times(9), size=2, host=here, pid=pid), now=0.0)
    assert states(watched, 3.0) == {0: "stopped", 1: "reports"}
    assert states(watched, 6.0) == {0: "stopped", 1: "silent"}


def test_processes_are_asked_by_their_number() -> None:
    assert process_state(os.getpid()) in "RS"
    assert process_state(2**31 - 1) == ""


def test_a_rank_that_said_goodbye_has_ended_however_long_ago() -> None:
    watched = job(steps=20, size=1)
    watched.take(report(0, size=1, last=True, steps=20), now=1.0)
    assert states(watched, 1000.0) == {0: "ended"}
    assert summarise(watched, 1000.0).over


def test_when_one_rank_fails_and_the_launcher_kills_the_others_all_of_them_are_judged() -> None:
    watched = job(steps=60, stall=30 * 10**6, culprit=2)
    watched.take(report(0, last=True, steps=60), now=1.0)
    seen = summarise(watched, 1000.0)
    assert {row.rank: row.state for row in seen.ranks} == {0: "ended", 1: "silent", 2: "silent", 3: "silent"}
    assert (seen.suspects[0].rank, seen.suspects[0].stage, seen.label) == (2, "data", "confirmed")


def test_while_a_rank_never_reported_nobody_is_confirmed() -> None:
    watched = Gathering()
    for rank in range(3):
        watched.take(report(rank, 0, times(60, rank, 30 * 10**6, culprit=1)), now=0.0)
    seen = summarise(watched, 1.0)
    assert (seen.suspects[0].rank, seen.suspects[0].stage, seen.label) == (1, "data", "incomplete")


def test_a_lone_rank_is_compared_with_nobody_and_that_is_said() -> None:
    assert "nothing was compared" in summarise(job(size=1), 1.0).why


def test_a_job_is_not_over_while_ranks_may_still_come() -> None:
    watched = Gathering()
    watched.take(report(0, 0, times(5), last=True), now=0.0)
    assert not summarise(watched, 1.0).over
    assert summarise(watched, 10.0).over


def test_a_restarted_rank_begins_anew_and_is_counted() -> None:
    watched = job(steps=200)
    watched.take(report(2, 0, times(5), start=2), now=1.0)
    state = watched.ranks(1.0)[2]
    assert (state.state, state.restarts, state.last_step) == ("behind", 1, 4)
    assert summarise(watched, 1.0).last_step == 199  # the others are judged without it


def test_a_job_that_restarts_as_a_whole_is_judged_by_its_new_steps() -> None:
    watched = job(steps=200)
    for rank in range(4):
        watched.take(report(rank, 0, times(60, rank, 30 * 10**6, culprit=1), start=2), now=2.0)
    seen = summarise(watched, 2.0)
    assert (seen.last_step, seen.suspects[0].rank, seen.suspects[0].stage) == (59, 1, "data")
    assert {row.restarts for row in seen.ranks} == {1}


def test_the_last_words_of_an_older_process_do_not_return() -> None:
    watched = job(steps=20)
    watched.take(report(0, 0, times(5), start=9), now=1.0)
    watched.take(report(0, 20, times(5), start=1), now=1.1)
    assert watched.ranks(1.2)[0].last_step == 4
    assert watched.refused == {"an older process of the same rank": 1}


def test_a_rank_claimed_for_ever_is_given_back_once_its_claimant_is_silent() -> None:
    watched = Gathering()
    watched.take(report(0, 0, times(5), start=2**61), now=0.0)
    watched.take(report(0, 0, times(7)), now=1.0)
    assert watched.ranks(1.0)[0].last_step == 4
    watched.take(report(0, 0, times(7)), now=10.0)
    assert watched.ranks(10.0)[0].last_step == 6


def test_a_rank_far_behind_is_shown_and_not_waited_for() -> None:
    watched = job(steps=10)
    for rank in (0, 1, 2):
        watched.take(report(rank, 10, times(LAG + 50)), now=0.5)
    watched.take(report(3), now=0.5)
    assert states(watched, 1.0)[3] == "behind"
    assert summarise(watched, 1.0).last_step == LAG + 59


def test_where_a_hung_job_sits_is_told_by_its_heartbeats() -> None:
    watched = job(steps=60)
    for rank in range(4):
        stage = "data" if rank == 2 else "backward"
        watched.take(report(rank, steps=60, stage=stage, since=29.0), now=30.0)
    seen = summarise(watched, 30.5)
    assert seen.stuck and not seen.over
    assert "rank 2 in data; ranks 0–1, 3 in backward" in drawn(seen)


def hung(*places: str) -> Summary:
    """Ranks that reported where they sit, half a minute after their last step."""
    watched = job(steps=60)
    for rank, stage in enumerate(places):
        watched.take(report(rank, steps=60, stage=stage, since=29.0), now=30.0)
    return summarise(watched, 30.5)


@pytest.mark.parametrize(
    ("places", "blamed"),
    [
        (("backward", "backward", "data", "backward"), [2]),
        (("sync", "sync", "sync", "optimizer"), [3]),
        (("forward", "data", "forward", "forward"), [1]),  # a loop that names no stage for its waiting
        (("backward",) * 4, []),  # all are in the collective, or say so
    ],
)
def test_a_hang_names_who_is_waited_for_and_nobody_else(places: tuple[str, ...], blamed: list[int]) -> None:
    seen = hung(*places)
    assert (seen.hang, seen.label, [one.rank for one in seen.suspects]) == (True, "hang", blamed)
    assert all(one.label == "hang" and one.score > 10 for one in seen.suspects)
    assert "nobody stands out" not in drawn(seen)
    assert f"rank {blamed[0]}" in drawn(seen) if blamed else "the job hangs" in drawn(seen)


@pytest.mark.parametrize("stage", ["other", "checkpoint"])
def test_ranks_that_all_do_the_same_for_long_do_not_hang(stage: str) -> None:
    seen = hung(*[stage] * 4)
    assert (seen.stuck, seen.hang, seen.given_up) == (True, False, False)


def test_a_job_that_hangs_before_its_first_step_is_seen_to() -> None:
    watched = Gathering()
    for now in (0.0, 80.0):
        for rank in range(3):
            watched.take(report(rank, size=3, stage="data" if rank == 1 else "backward"), now=now)
    seen = summarise(watched, 80.5)
    assert (seen.hang, [one.rank for one in seen.suspects]) == (True, [1])
    assert "rank 1" in drawn(seen)


class Played:
    """A source of reports that come at set times, by a clock that only it moves."""

    place = "nowhere"
    refused: ClassVar[dict[str, int]] = {}

    def __init__(self, told: dict[float, list[Report]]) -> None:
        self.told, self.now = dict(sorted(told.items())), 0.0

    def read(self) -> Iterator[tuple[float, Report]]:
        for at in [at for at in self.told if at <= self.now]:
            yield from ((self.now - at, one) for one in self.told.pop(at))

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def close(self) -> None:
        """Nothing is open."""


def played(monkeypatch: pytest.MonkeyPatch, last: float, steps: int = 20) -> Watch:
    """Four ranks that do some steps; then rank 1 sits in data until `last`, and all end."""
    told = {0.1: [report(rank, 0, times(steps)) for rank in range(4)]}
    for second in range(1, int(last)):
        told[float(second)] = [
            report(rank, steps=steps, stage="data" if rank == 1 else "backward") for rank in range(4)
        ]
    told[last] = [replace(report(rank, steps=steps), last=True) for rank in range(4)]
    source = Played(told)
    monkeypatch.setattr("assay.live.watch.rounds.monotonic", lambda: source.now)
    return Watch(source, Gathering(window=10))


def test_a_hang_is_a_line_as_soon_as_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = played(monkeypatch, last=60.0)
    lines = [(watch.source.now, due) for seen in watch.polls(lambda seen: seen.over, every=0.5) for due in watch.due()]
    (first, line), *_ = [(at, due) for at, due in lines if due.hang]
    assert 10.0 < first < 12.0
    assert [(one.rank, one.stage, one.label) for one in line.suspects] == [(1, "data", "hang")]


def test_one_summary_of_a_job_that_hangs_does_not_wait_for_ever_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = played(monkeypatch, last=600.0)
    list(watch.polls(at_the_end, every=0.5))
    assert 30.0 < watch.source.now < 35.0
    assert (watch.whole().hang, watch.whole().suspects[0].rank) == (True, 1)


def test_a_job_that_was_ended_while_it_hung_is_still_said_to_have_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a collective library does, or a launcher: by then nobody reports any more."""
    watch = played(monkeypatch, last=20.0)
    list(watch.polls(lambda seen: seen.over, every=0.5))
    assert watch.latest.over and not watch.latest.hang
    assert (watch.whole().hang, watch.whole().label, watch.whole().suspects[0].rank) == (True, "hang", 1)


def test_a_job_that_went_on_did_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = played(monkeypatch, last=40.0)
    watch.source.told[25.0] = [report(rank, 20, times(30)) for rank in range(4)]  # type: ignore[attr-defined]
    del watch.source.told[40.0]  # type: ignore[attr-defined]
    watch.source.told[26.0] = [replace(report(rank, steps=50), last=True) for rank in range(4)]  # type: ignore[attr-defined]
    for at in range(27, 40):
        watch.source.told.pop(float(at))  # type: ignore[attr-defined]
    watch.source.told = dict(sorted(watch.source.told.items()))  # type: ignore[attr-defined]
    hangs = [seen.hang for seen in watch.polls(lambda seen: seen.over, every=0.5)]
    assert any(hangs) and not watch.whole().hang


# ------------------------------------------------------------------------------------------------ windows as they come


class Given(Port):
    """A source that holds what a test puts into it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.held: list[Report] = []

    def read(self) -> Any:
        yield from ((0.0, said) for said in self.held)
        self.held = []


def test_every_window_is_told_once_and_a_change_of_state_at_once() -> None:
    source = Given()
    watch = Watch(source, Gathering(window=10))
    told: list[tuple[int, int]] = []
    for first in range(0, 60, 5):
        source.held = [report(rank, first, times(5)) for rank in range(4)]
        watch.poll(0.0)
        told += [(one.first_step, one.last_step) for one in watch.due() if one is not watch.latest]
    assert told == [(1, 9), (10, 19), (20, 29), (30, 39), (40, 49), (50, 59)]
    source.held = [report(1, last=True)]
    watch.poll(0.0)
    assert [one.ranks[1].state for one in watch.due()] == ["ended"]
    watch.poll(0.0)
    assert list(watch.due()) == []
    source.close()

"""The watcher: what it takes, what it leaves aside, who is shown as what, and that nobody is waited for."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from assay.live.watch import gather
from assay.live.watch.gather import KEPT, LAG, Gathering, process_state
from assay.live.watch.metrics import MetricsPage, page
from assay.live.watch.picture import frame
from assay.live.watch.rounds import Watch, at_the_end
from assay.live.watch.sources import Folder, Port
from assay.live.watch.summary import MOST_SUSPECTS, Named, RankRow, Summary, summarise
from assay.live.watch.wire import LARGEST, MOST_RANKS, Report, decode, encode, records
from assay.observe.frontier.collector import STAGES, Vectors
from assay.observe.frontier.diagnosis import diagnose
from assay.record.errors import AssayError, BadInput

HEALTHY = np.array([4, 10, 20, 3, 0, 1]) * 10**6  # of a step, by stage, ns
ELSEWHERE = "another-machine"


def times(steps: int, rank: int = 0, stall: int = 0, culprit: int = -1) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Stage times of a rank; where `culprit` stalls in its data, the others wait in their backward pass."""
    rows = np.tile(HEALTHY, (steps, 1))
    rows[:, 0 if rank == culprit else 2] += stall
    return rows


def report(rank: int = 0, first: int = 0, rows: Any = None, size: int = 4, start: int = 1, **more: Any) -> Report:
    block = b"" if rows is None else Vectors(rank, first, more.pop("stages", STAGES), rows, size).to_bytes()
    told: dict[str, Any] = {"host": ELSEWHERE, "pid": 7, "steps": first + (0 if rows is None else len(rows))}
    return Report(rank=rank, size=size, start=start, vectors=block, **(told | more))


def job(steps: int = 60, size: int = 4, stall: int = 0, culprit: int = -1, **settings: Any) -> Gathering:
    """A job all of whose ranks reported at time 0."""
    watched = Gathering(**settings)
    for rank in range(size):
        watched.take(report(rank, 0, times(steps, rank, stall, culprit), size), now=0.0)
    return watched


def states(watched: Gathering, now: float) -> dict[int, str]:
    return {one.rank: one.state for one in watched.ranks(now)}


# ------------------------------------------------------------------------------------------------ records

REPORTS = st.builds(
    Report,
    rank=st.integers(0, 99), size=st.integers(100, 120), start=st.integers(0, 2**61),
    host=st.sampled_from(["", "node", "ü" * 64]), pid=st.integers(0, 2**31 - 1),
    steps=st.integers(0, 2**53), stage=st.sampled_from(["", *STAGES]), since=st.floats(0, 1e9), last=st.booleans(),
    deferred=st.booleans(), vectors=st.binary(max_size=100),
)  # fmt: skip


@given(REPORTS)
def test_a_record_brings_back_what_was_said(said: Report) -> None:
    assert decode(encode(said)) == said


@given(st.lists(REPORTS, max_size=5), st.integers(0, 2000))
def test_a_file_that_is_still_being_written_yields_the_whole_records_and_no_more(
    said: list[Report], missing: int
) -> None:
    whole = b"".join(map(encode, said))
    cut = whole[: max(len(whole) - missing, 0)]
    found = [(end, record) for end, record in records(cut)]
    assert all(record is not None for _, record in found)
    assert [decode(record) for _, record in found if record] == said[: len(found)]
    rest = cut[found[-1][0] if found else 0 :] + whole[len(cut) :]
    assert [decode(record) for _, record in records(rest) if record] == said[len(found) :]


@given(st.lists(REPORTS, min_size=1, max_size=3), st.data())
def test_changed_bytes_are_refused_or_read_and_never_lose_what_comes_after(said: list[Report], data: Any) -> None:
    bad = bytearray(encode(said[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(bad))
    except BadInput as error:
        assert "\n" not in str(error)
    after = [decode(record) for _, record in records(bytes(bad) + b"".join(map(encode, said))) if record]
    assert after[-len(said) :] == said


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_bad_input(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode(data)
    places = [end for end, _ in records(data)]
    assert places == sorted(set(places)) and all(0 < end <= len(data) for end in places)


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 4}, {"rank": -1}, {"size": MOST_RANKS + 1}, {"host": "a\x1b[2J"}, {"stage": "x\n"}, {"host": "x" * 65},
     {"since": float("nan")}, {"since": -1.0}, {"steps": -5}, {"vectors": b"x" * LARGEST}, {"start": -1}],
)  # fmt: skip
def test_what_no_rank_can_be_is_refused(wrong: dict[str, Any]) -> None:
    fields = {"rank": 0, "size": 4, "start": 1, "host": "a", "pid": 1, "steps": 0} | wrong
    with pytest.raises(BadInput):
        decode(encode(Report(**fields)))


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


# ------------------------------------------------------------------------------------------------ what is judged


def test_the_rank_that_stalls_is_named_not_those_that_wait_for_it() -> None:
    seen = summarise(job(stall=30 * 10**6, culprit=2), 1.0)
    first = seen.suspects[0]
    assert (first.rank, first.stage, first.label, round(first.score, 9)) == (2, "data", "confirmed", 0.03)
    assert "rank 2" in first.next and (first.host, first.pid) == (ELSEWHERE, 7)


def test_a_healthy_job_has_no_suspect_and_says_why() -> None:
    seen = summarise(job(), 1.0)
    assert (seen.suspects, seen.label) == ([], "") and "no rank takes longer" in seen.why


def test_the_summary_is_the_frontiers_own_answer_on_the_same_steps() -> None:
    rng = np.random.default_rng(3)
    watched, blocks = Gathering(window=40), []
    for rank in range(5):
        rows = rng.integers(10**6, 9 * 10**6, (90, 6))
        rows[:, 1] += 5 * 10**6 * (rank == 3)
        blocks.append(rows)
        for first in range(0, 90, 7):
            watched.take(report(rank, first, rows[first : first + 7], size=5), now=0.0)
    seen = summarise(watched, 1.0)
    found = diagnose(np.stack(blocks, 1)[50:90], STAGES)
    assert (seen.first_step, seen.last_step, seen.label) == (50, 89, found.label)
    assert [(str(one.rank), one.stage, one.score) for one in seen.suspects] == [
        (one.entity, one.indicator, one.score) for one in found.suspects[:MOST_SUSPECTS]
    ]
    assert seen.accounting == {name: spent / 1e9 for name, spent in found.accounting.items()}


@given(st.integers(2, 5), st.integers(2, 40), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_accounting_adds_up_to_the_total_exactly(size: int, steps: int, seed: int) -> None:
    rng, watched = np.random.default_rng(seed), Gathering(window=20)
    for rank in range(size):
        watched.take(report(rank, 0, rng.integers(0, 10**9, (steps, 6)), size), now=0.0)
    seen = summarise(watched, 0.0)
    assert sum(seen.accounting.values()) == seen.total


def test_lost_reports_leave_gaps_that_are_marked_and_not_zero() -> None:
    watched = Gathering(window=40)
    for rank in range(4):
        for first in range(0, 60, 10):
            if (rank, first) != (1, 40):
                watched.take(report(rank, first, times(10)), now=0.0)
    seen = summarise(watched, 0.5)
    assert seen.label == "incomplete"
    assert seen.ranks[1].stages["forward"] == pytest.approx(0.010)


def test_a_reference_finds_what_all_ranks_lose_which_comparing_ranks_cannot() -> None:
    def slowed(**settings: Any) -> Summary:
        watched = Gathering(window=20, **settings)
        for rank in range(4):
            rows = times(60)
            rows[40:, 1] += 10 * 10**6
            watched.take(report(rank, 0, rows), now=0.0)
        return summarise(watched, 0.5)

    assert slowed().suspects == []
    seen = slowed(reference=20)
    assert (seen.compared, seen.label, seen.suspects[0].stage) == ("reference", "shared", "forward")


def test_a_reference_outlives_the_steps_that_are_kept() -> None:
    watched = Gathering(window=20, reference=10)
    for first in range(0, 3 * KEPT, 64):
        for rank in range(2):
            slow = 15 * 10**6 if first >= KEPT else 0
            watched.take(report(rank, first, times(64, rank, slow, culprit=1), size=2), now=0.0)
    seen = summarise(watched, 0.5)
    assert (seen.compared, seen.suspects[0].rank, seen.suspects[0].stage) == ("reference", 1, "data")


def test_work_that_a_device_was_given_is_labelled() -> None:
    watched = Gathering()
    for rank in range(4):
        rows = np.tile(HEALTHY, (60, 1))
        rows[:, 1 if rank == 2 else 2] += 30 * 10**6
        watched.take(report(rank, 0, rows, deferred=True), now=0.0)
    assert summarise(watched, 0.5).label == "device-deferred"


@pytest.mark.parametrize("wrong", [{"window": 1}, {"window": KEPT}, {"reference": -1}, {"reference": 10**6}])
def test_settings_that_cannot_be_are_bad_input(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=r"would be right|or 0 for none"):
        Gathering(**wrong)


# ------------------------------------------------------------------------------------------------ what strangers send


def test_other_stages_than_the_jobs_are_left_aside_until_the_job_is_silent() -> None:
    watched = job(steps=20)
    odd = report(1, 0, np.ones((3, 2), np.int64), stages=("a", "b"))
    watched.take(odd, now=1.0)
    assert watched.stages == STAGES and watched.refused == {"other stages than the first rank": 1}
    watched.take(odd, now=20.0)
    assert watched.stages == ("a", "b") and list(states(watched, 20.0).values()).count("missing") == 3


def test_stage_times_of_another_rank_than_the_speaker_are_left_aside() -> None:
    watched = Gathering()
    block = Vectors(3, 0, STAGES, times(5), 4).to_bytes()
    watched.take(report(0).__class__(0, 4, 1, "a", 1, 5, vectors=block), now=0.0)
    assert watched.ranks(0.0) == [] and watched.refused == {"malformed": 1}


def test_a_liar_about_the_size_is_outvoted() -> None:
    watched = job(steps=20)
    watched.take(report(9, 0, times(20), size=MOST_RANKS), now=0.0)
    assert watched.size == 4


def test_memory_is_bounded_by_the_ranks_whatever_they_claim() -> None:
    watched = Gathering()
    for start in range(1, 50):
        for rank in range(8):
            watched.take(report(rank, start * 10**9, times(300), 8, start), now=float(start))
    assert len(watched._logs) == 8
    assert all(log.rows.shape == (KEPT, 6) and not log.head for log in watched._logs.values())
    assert len(watched.refused) < 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(REPORTS, st.integers(0, 2**53), st.integers(0, 40)), max_size=8), st.data())
def test_no_sequence_of_reports_breaks_the_summary_the_view_or_the_metrics(said: list[Any], data: Any) -> None:
    watched, now = Gathering(window=10), 0.0
    for one, first, steps in said:
        now += data.draw(st.sampled_from([0.0, 0.1, 7.0]))
        rows = np.full((steps, 6), data.draw(st.integers(0, 2**40)), np.int64)
        block = Vectors(one.rank, first, STAGES, rows, one.size).to_bytes()
        watched.take(Report(one.rank, one.size, one.start, one.host, one.pid, one.steps, vectors=block), now)
    seen = summarise(watched, now)
    assert seen.reporting <= len(seen.ranks) and sum(seen.accounting.values()) == seen.total
    assert page(seen) and all(len(line) <= 80 for line in drawn(seen, 80).splitlines())


# ------------------------------------------------------------------------------------------------ sources


def test_a_port_takes_reports_and_counts_what_is_none() -> None:
    source = Port(0)
    host, _, number = source.place.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        good = encode(report(0, 0, times(5)))
        for data in (good, b"", b"GET / HTTP/1.1\r\n\r\n", good[:-1], os.urandom(20_000), good):
            sender.sendto(data, (host, int(number)))
    source.wait(5.0)
    assert [said.rank for _, said in source.read()] == [0, 0]
    assert source.refused == {"malformed": 4}
    source.close()


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    taken = Port(0)
    with pytest.raises(AssayError, match="address already in use; choose another with --port"):
        Port(int(taken.place.rpartition(":")[2]))
    taken.close()


def test_a_folder_is_read_as_it_grows_past_torn_records_and_things_that_are_no_files(tmp_path: Path) -> None:
    source = Folder(tmp_path)
    file = tmp_path / "node-1-a.0.stages"
    good = encode(report(0, 0, times(5)))
    file.write_bytes(good + good[:40])
    os.mkfifo(tmp_path / "pipe-1-a.0.stages")
    (tmp_path / "link-1-a.0.stages").symlink_to(file)
    (tmp_path / "folder-1-a.0.stages").mkdir()
    (tmp_path / "README").write_text("not ours")
    assert len(list(source.read())) == 1
    with file.open("ab") as more:
        more.write(good[40:] + b"torn" + good)
    assert len(list(source.read())) == 2 and list(source.read()) == []
    assert source.refused == {"malformed": 1}


def test_a_folder_that_is_a_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is no folder"):
        Folder(tmp_path / "file")


def test_files_of_yesterdays_job_are_yesterdays_news(tmp_path: Path) -> None:
    file = tmp_path / "node-1-a.0.stages"
    file.write_bytes(b"".join(encode(report(rank, 0, times(60))) for rank in range(4)))
    os.utime(file, (1e9, 1e9))
    watch = Watch(Folder(tmp_path), Gathering())
    seen = watch.poll(0.0)
    assert seen.over and {row.state for row in seen.ranks} == {"silent"} and seen.last_step == 59


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


# ------------------------------------------------------------------------------------------------ the view


def drawn(seen: Summary, width: int = 120, height: int = 40) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(frame(seen, width, height, "127.0.0.1:9099"))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_view_fits_its_terminal_and_says_who_and_where(width: int) -> None:
    text = drawn(summarise(job(stall=30 * 10**6, culprit=2), 1.0), width)
    assert all(len(line) <= width for line in text.splitlines())
    for said in ("4 of 4 ranks report", "68 ms a step", "rank 2 · data  +30 ms a step (44%)  confirmed", "process 7"):
        assert said in text
    assert len([line for line in text.splitlines() if "●" in line]) == 4  # a sign alone where room is scarce


def test_where_not_all_stages_have_room_the_suspects_is_among_those_shown() -> None:
    stages = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")
    row = RankRow(0, "reports", 9, "vm", 1, 0, 0, 0.0, "", 0.0, dict.fromkeys(stages, 0.001) | {"other": 0.05})
    suspect = Named(0, "other", 0.05, 0.9, "confirmed", "look")
    accounting = {"other": 0.05} | dict.fromkeys(stages[:-1], 0.001)
    seen = Summary(2, 2, [row], 0, 9, 1, 0.056, stages, accounting, 0.056, "confirmed", suspects=[suspect])
    header = next(line for line in drawn(seen, 60).splitlines() if line.lstrip().startswith("rank  "))
    assert "other" in header and "data" in header


def test_the_view_of_a_thousand_ranks_shows_the_one_that_matters() -> None:
    text = drawn(summarise(job(size=1000, stall=30 * 10**6, culprit=777), 1.0), height=30)
    assert len(text.splitlines()) <= 30
    assert any(line.split()[0] == "777" for line in text.splitlines() if line.strip())
    assert "more ranks" in text


def test_every_trouble_of_a_rank_has_its_line() -> None:
    watched = job(steps=60)
    for rank in (0, 3):
        watched.take(report(rank, 60, times(30), start=2 if rank == 3 else 1, dropped=5), now=8.0)
    text = drawn(summarise(watched, 9.0, {"malformed": 3}))
    for said in ("rank 1 silent for 9.0 s, last at step 59: another-machine, process 7",
                 "rank 3: restarted once", "10 steps could not be sent", "left aside: 3 malformed"):  # fmt: skip
        assert said in text


# ------------------------------------------------------------------------------------------------ metrics


def test_the_metrics_page_is_what_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    watched = job(stall=30 * 10**6, culprit=2)
    watched.take(report(5, 0, times(9), host='a"\\b'), now=0.0)
    seen = summarise(watched, 1.0)
    found = {family.name: family.samples for family in parser.text_string_to_metric_families(page(seen))}
    advances = {one.labels["stage"]: one.value for one in found["assay_stage_advance_seconds"]}
    assert sum(advances.values()) == pytest.approx(seen.step) and advances["data"] == pytest.approx(0.034)
    blamed = found["assay_suspect_score"][0]
    assert (blamed.labels, blamed.value) == ({"rank": "2", "stage": "data"}, pytest.approx(0.03))
    assert {one.labels["rank"]: one.value for one in found["assay_rank_last_step"]}["0"] == 59


def test_metrics_are_served_on_loopback_and_nothing_else_is() -> None:
    served = MetricsPage(0, lambda: summarise(job(), 1.0))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
            assert b"assay_ranks_reporting 4\n" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=10)
        with pytest.raises(AssayError, match="choose another port"):
            MetricsPage(served.port, lambda: summarise(job(), 1.0))
    finally:
        served.close()

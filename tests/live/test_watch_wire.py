"""What reaches the watcher: records, whatever strangers send, ports and folders that bring them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live.watch.gather import KEPT, Gathering
from assay.live.watch.metrics import page
from assay.live.watch.rounds import Watch
from assay.live.watch.sources import Folder, Port
from assay.live.watch.summary import summarise
from assay.live.watch.wire import LARGEST, MOST_RANKS, Report, decode, encode, records
from assay.observe.frontier.collector import STAGES, Vectors
from assay.record.errors import AssayError, BadInput
from tests.live.watched import REPORTS, drawn, job, report, states, times

# ------------------------------------------------------------------------------------------------ records


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

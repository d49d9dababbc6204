"""Critical path and what-ifs of jobs without a GPU: threads, gloo's collectives, and who came to them last."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.chakra.record import Job, Late, record
from assay.observe.traces import breakdown
from assay.observe.traces.kernel_path import critical_path, links
from assay.observe.traces.picture import plot
from assay.observe.traces.report import only_step, report
from assay.observe.traces.what_if import what_if
from assay.sim.telemetry import Frame
from assay.workloads import kineto

US, MS = 1_000, 1_000_000
MAIN, GLOO = 1, 2  # lanes of a rank
Span = tuple[int, str, int, int]  # lane, name, start, end


def run_of(*of_ranks: list[Span], steps: tuple[int, int] | None = None) -> Frame:
    """Ranks with a main thread and one of gloo; the n-th collective of one rank is that of all."""
    entities: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for rank, given_spans in enumerate(of_ranks):
        top = 3 * rank
        entities += [{"id": top, "kind": "rank", "name": str(rank), "parent": None}]
        entities += [{"id": top + i, "kind": "thread", "name": f"{rank}/{i}", "parent": top} for i in (MAIN, GLOO)]
        if steps is not None:
            spans.append({"entity": top + MAIN, "name": "ProfilerStep#0", "cat": "step", "start": steps[0],
                          "dur": steps[1] - steps[0], "seq": 0})  # fmt: skip
        for lane, name, start, end in given_spans:
            nth = sum(span["cat"] == "comm" and span["entity"] == top + GLOO for span in spans)
            comm = {"cat": "comm", "seq": nth} if lane == GLOO else {"cat": "cpu_op", "seq": None}
            spans.append({"entity": top + lane, "name": name, "start": start, "dur": end - start} | comm)
    return Frame.of(entities, spans=[span | {"span": i} for i, span in enumerate(spans, 1)])


def late_run(ends: tuple[int, int] = (41_000, 41_000), *, calls: bool = True, name: str = "gloo:all_reduce") -> Frame:
    """Both ranks compute for 10 ms, rank 1 after 20 ms of Python; 10.9 ms of transfer, read 50 µs behind it."""
    ranks = []
    for wait, end, last in ((0, ends[0], 45_000), (20_000, ends[1], 44_000)):
        spans = [
            (MAIN, "aten::mm", wait, wait + 10_000),
            (GLOO, name, wait + 10_100, end),
            (MAIN, "aten::add_", 41_050, last),
        ]
        if calls:
            spans.append((MAIN, "c10d::allreduce_", wait + 10_000, wait + 10_020))
        ranks.append([(lane, word, start * US, stop * US) for lane, word, start, stop in spans])
    return run_of(*ranks, steps=(0, 46 * MS))


def pieces(frame: Frame) -> list[tuple[Any, ...]]:
    path = critical_path(links(frame))
    return path.select("kind", "rank", pl.col("start", "end") // US).rows()


LATE = [
    ("host", "1", 0, 20_000), ("kernel", "1", 20_000, 30_000), ("launch", "1", 30_000, 30_100),
    ("comm", "1", 30_100, 41_000), ("sync", "0", 41_000, 41_050), ("kernel", "0", 41_050, 45_000),
    ("host", "0", 45_000, 46_000),
]  # fmt: skip


def test_the_path_goes_through_the_rank_that_came_last() -> None:
    assert pieces(late_run()) == LATE


def test_without_calls_a_collective_follows_what_its_rank_did_last() -> None:
    assert pieces(late_run(calls=False)) == LATE


def test_a_collective_follows_what_came_before_its_call_not_what_ran_while_its_thread_woke_up() -> None:
    spans = [(MAIN, "aten::mm", 0, 10_000), (MAIN, "c10d::allreduce_", 10_000, 10_020),
             (MAIN, "aten::relu", 10_050, 12_000), (GLOO, "gloo:all_reduce", 12_100, 20_000)]  # fmt: skip
    joined = links(run_of([(lane, name, start * US, end * US) for lane, name, start, end in spans]))
    (at,) = joined.ops.with_row_index("at").filter(pl.col("cat") == "comm")["at"]
    assert joined.ops["name"][int(joined.other[at])] == "aten::mm"


@pytest.mark.parametrize("ends", [(44_000, 41_000), (41_000, 43_500)])
def test_an_end_that_one_rank_noted_late_changes_nothing(ends: tuple[int, int]) -> None:
    assert pieces(late_run(ends)) == LATE


def test_an_end_that_all_noted_late_is_where_it_was_read() -> None:
    found = pieces(late_run((44_000, 43_500)))
    assert ("comm", "1", 30_100, 41_050) in found
    assert sum(end - start for _, _, start, end in found) == 46_000


def test_a_root_that_ends_early_does_not_end_it_for_the_others() -> None:
    ops = links(late_run((41_000, 44_000), name="gloo:broadcast")).ops.filter(pl.col("cat") == "comm")
    assert dict(ops.select("rank", "end").iter_rows()) == {"0": 41 * MS, "1": 44 * MS}


def test_a_pause_before_all_have_come_is_no_read() -> None:
    """Rank 0 computes on while it waits for rank 1, with a pause of a millisecond: what it reads comes later."""
    one = [(MAIN, "aten::mm", 0, 5), (GLOO, "gloo:all_reduce", 5, 40), (MAIN, "aten::mm", 6, 20)]
    other = [(MAIN, "aten::mm", 0, 30), (GLOO, "gloo:all_reduce", 30, 40)]
    scaled = [[(lane, name, start * MS, end * MS) for lane, name, start, end in some] for some in (one, other)]
    ops = links(run_of(*scaled)).ops.filter(pl.col("cat") == "comm")
    assert ops["end"].to_list() == [40 * MS, 40 * MS]


def test_a_pause_of_the_last_to_come_is_no_read() -> None:
    """Rank 1 asks for the collective, pauses while the library's thread takes it, and computes on."""
    one = [(MAIN, "aten::mm", 0, 5), (GLOO, "gloo:all_reduce", 5, 40), (MAIN, "aten::add_", 41, 42)]
    other = [(MAIN, "aten::mm", 0, 30), (GLOO, "gloo:all_reduce", 31, 40), (MAIN, "aten::mm", 32, 39)]
    scaled = [[(lane, name, start * MS, end * MS) for lane, name, start, end in some] for some in (one, other)]
    ops = links(run_of(*scaled)).ops.filter(pl.col("cat") == "comm")
    assert ops["end"].to_list() == [40 * MS, 40 * MS]


def test_twice_the_bandwidth_halves_the_transfer_and_no_stragglers_takes_the_delay_away() -> None:
    joined = links(late_run())
    assert what_if(joined, bandwidth=2.0).recorded == 46 * MS
    assert what_if(joined, bandwidth=2.0).changed == 46 * MS - 10_900 * US // 2
    assert what_if(joined, stragglers=False).changed == 26 * MS


def two_threads(main_of_rank_1: int) -> Frame:
    """Two operators on the main thread, a collective that waits for rank 1, one operator on autograd's thread."""
    entities: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for rank, (main, wait) in enumerate(((1, 0), (main_of_rank_1, 20))):
        top = 4 * rank
        entities += [{"id": top, "kind": "rank", "name": str(rank), "parent": None}]
        entities += [{"id": top + i, "kind": "thread", "name": f"{rank}/{i}", "parent": top} for i in (1, 2, 3)]
        ran = [(main, "aten::mm", wait, wait + 5), (main, "aten::mul", wait + 5, wait + 10),
               (2, "gloo:all_reduce", wait + 10, 40), (4 - main, "aten::add_", 40, 45)]  # fmt: skip
        for lane, name, start, end in ran:
            kind = {"cat": "comm", "seq": 0} if lane == 2 else {"cat": "cpu_op", "seq": None}
            begun = 10**6 + start  # the clock runs for long
            spans.append({"entity": top + lane, "name": name, "start": begun * MS, "dur": (end - start) * MS} | kind)
    return Frame.of(entities, spans=[span | {"span": i} for i, span in enumerate(spans, 1)])


def test_threads_that_are_numbered_otherwise_on_another_rank_run_the_same_program() -> None:
    answers = [what_if(links(two_threads(main)), stragglers=False) for main in (1, 3)]
    assert answers[0] == answers[1]
    assert answers[0].changed == 25 * MS


def test_a_transfer_beside_compute_is_not_on_the_path_and_its_bandwidth_wins_nothing() -> None:
    """Operators 20 µs apart while a collective ends: Python, no wait."""
    busy = [(MAIN, "aten::mm", (i * 1_020) * US, (i * 1_020 + 1_000) * US) for i in range(20)]
    ended = busy[9][3] + 10 * US  # in a gap
    ranks = [[*busy, (GLOO, "gloo:all_reduce", 2 * MS, ended)] for _ in range(2)]
    frame = run_of(*ranks)
    assert {row[0] for row in pieces(frame)} == {"kernel", "host"}
    answer = what_if(links(frame), bandwidth=2.0)
    assert answer.changed == answer.recorded


def test_a_thread_that_waits_for_another_puts_it_on_the_path() -> None:
    """As the main thread does while the autograd thread runs the backward pass."""
    entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "a", "parent": 0},
                {"id": 2, "kind": "thread", "name": "b", "parent": 0}]  # fmt: skip
    rows = [(1, "forward", 0, 10), (2, "backward", 11, 30), (1, "step", 31, 40)]
    spans = [
        {"span": i, "entity": lane, "name": name, "cat": "cpu_op", "start": start * MS, "dur": (end - start) * MS}
        for i, (lane, name, start, end) in enumerate(rows, 1)
    ]
    path = critical_path(links(Frame.of(entities, spans=spans)))
    assert path.filter(pl.col("kind") == "kernel")["name"].to_list() == ["forward", "backward", "step"]


# ------------------------------------------------------------------------------------------------- whatever the run

lanes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7)  # a pause, then an operator


def placed(lane: int, name: str, given_lane: list[tuple[int, int]]) -> list[Span]:
    """Spans one after the other; units of 30 µs, so that pauses fall on either side of what counts as a wait."""
    now, made = 0, []
    for pause, length in given_lane:
        made.append((lane, name, (now + pause) * 30 * US, (now + pause + length) * 30 * US))
        now += pause + length
    return made


def random_run(some: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]) -> Frame | None:
    ranks = [placed(MAIN, "aten::mm", ops) + placed(GLOO, "gloo:all_reduce", comm) for ops, comm in some]
    return run_of(*ranks) if any(ranks) else None


@settings(deadline=None)
@given(st.lists(st.tuples(lanes, lanes), min_size=1, max_size=3))
def test_the_path_of_any_host_run_fills_it(some: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]) -> None:
    frame = random_run(some)
    if frame is None:
        return
    joined = links(frame)
    rows = critical_path(joined).select("start", "end").rows()
    assert sum(end - start for start, end in rows) == joined.last - joined.first
    assert all(before[1] == after[0] for before, after in pairwise(rows))


@settings(deadline=None)
@given(st.lists(st.tuples(lanes, lanes), min_size=1, max_size=3))
def test_any_host_run_plays_as_recorded_and_never_longer_on_a_faster_network(
    some: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]],
) -> None:
    frame = random_run(some)
    if frame is None:
        return
    joined = links(frame)
    times = [what_if(joined, bandwidth=factor).changed for factor in (1.0, 1.5, 2.0, 8.0)]
    assert times[0] == joined.last - joined.first
    told = [time for time in times if time is not None]
    assert told == sorted(told, reverse=True)
    assert len(told) in (1, 4)  # all of them can be told, or none but what was recorded


# ------------------------------------------------------------------------------------------------- what cannot be said


def test_a_gpu_whose_collectives_the_host_carries_gets_one_line_instead() -> None:
    entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0},
                {"id": 2, "kind": "thread", "name": "9", "parent": 0}]  # fmt: skip
    spans = [
        {"span": 1, "entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 40},
        {"span": 2, "entity": 2, "name": "gloo:all_reduce", "cat": "comm", "start": 30, "dur": 50, "seq": 0},
    ]
    frame = Frame.of(entities, spans=spans)
    found = report(frame)
    assert (found["critical_path"], found["what_if"]) == (None, [])
    assert any(line.startswith("no critical path and no what-ifs: collectives run on the host")
               for line in found["notes"])  # fmt: skip
    assert len(plot(frame).vconcat) == 2  # drawn without a path


def test_of_a_job_without_communication_nobody_can_tell_what_bandwidth_wins() -> None:
    answer = what_if(links(run_of([(MAIN, "aten::mm", 0, MS)])), bandwidth=2.0)
    assert (answer.changed, answer.note) == (None, "no communication is recorded")


# ------------------------------------------------------------------------------------------------- a real job

DELAY = 0.3  # seconds; far more than a busy machine takes away from a rank


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Frame]:
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("recorded")
    record(Job(steps=3), [None, Late((1,) * 3, (DELAY,) * 3)], keep=folder)
    return [kineto.read([folder / f"device.{window}.{rank}.json" for rank in (0, 1)]) for window in (0, 1)]


def test_the_path_of_a_recording_is_as_long_as_its_steps(recorded: list[Frame]) -> None:
    for frame in (*recorded, only_step(recorded[1], 2)):
        begun = breakdown.steps(frame.aligned())
        path = critical_path(links(frame))
        span = max(begun["end"].to_list()) - min(begun["start"].to_list())
        assert (path["end"] - path["start"]).sum() == span
        assert what_if(links(frame)).changed == what_if(links(frame)).recorded


def test_every_sleep_of_the_late_rank_is_on_the_path_of_a_recording(recorded: list[Frame]) -> None:
    path = critical_path(links(recorded[1]))
    slept = path.filter((pl.col("kind") == "host") & (pl.col("end") - pl.col("start") >= DELAY * 1e9))
    assert slept["rank"].to_list() == ["1"] * 3


def test_without_its_late_rank_a_recording_loses_its_sleeps_but_not_its_compute(recorded: list[Frame]) -> None:
    joined = links(recorded[1])
    answer = what_if(joined, stragglers=False)
    assert answer.recorded - answer.changed > 2 * DELAY * 1e9
    on_time = joined.ops.filter((pl.col("rank") == "0") & (pl.col("cat") == "kernel"))
    assert answer.changed > (on_time["end"] - on_time["start"]).sum()
    times = [what_if(joined, bandwidth=factor).changed for factor in (1.0, 2.0, 8.0)]
    assert times == sorted(times, reverse=True)


def test_a_collective_that_its_library_notes_on_the_callers_thread_does_not_hold_that_thread_up() -> None:
    """As gloo notes an asynchronous all-gather: the thread computes on beside it, then waits for it."""
    spans = [(MAIN, "aten::cat", 0, 10), (MAIN, "gloo:all_gather", 10, 60), (MAIN, "aten::mm", 11, 30),
             (MAIN, "aten::add_", 61, 70)]  # fmt: skip
    ranks = [[(lane, name, start * MS, end * MS) for lane, name, start, end in spans]] * 2
    frame = run_of(*ranks)
    comm = pl.col("name").cast(pl.String) == "gloo:all_gather"
    frame = replace(frame, spans=frame.spans.with_columns(
        cat=pl.when(comm).then(pl.lit("comm")).otherwise(pl.col("cat").cast(pl.String)).cast(frame.spans.schema["cat"]),
        seq=pl.when(comm).then(0).otherwise(None),
    ))  # fmt: skip
    joined = links(frame)
    row = {(rank, name): i for i, (rank, name) in enumerate(joined.ops.select("rank", "name").iter_rows())}
    assert joined.before[row["0", "aten::mm"]] == row["0", "aten::cat"]
    same = what_if(joined, bandwidth=1.0)
    assert same.changed == same.recorded
    assert what_if(joined, bandwidth=2.0).recorded - what_if(joined, bandwidth=2.0).changed == 25 * MS
    assert [kind for kind, rank, *_ in pieces(frame)] == ["kernel", "comm", "sync", "kernel"]

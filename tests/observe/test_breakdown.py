"""Breakdown, stragglers, critical path and what-ifs: against a slow oracle and runs whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.traces import breakdown
from assay.observe.traces.kernel_path import critical_path, links
from assay.observe.traces.report import only_step, report
from assay.observe.traces.what_if import what_if
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import kineto
from assay.workloads.kineto_generate import Job, Op, schedule, write
from tests.oracles.breakdown import parts

JOB = Job(ranks=3, steps=3, layers=5, slow_rank=1, slow_by=1.5)

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=8)


def frame_of(*streams: tuple[str, list[tuple[int, int]]], steps: list[tuple[int, int]] | None = None) -> Frame:
    """A rank whose streams each hold spans (start, duration) of one category."""
    entities = [{"id": 0, "kind": "rank", "name": "0", "parent": None}]
    spans = [
        {"entity": 0, "name": f"ProfilerStep#{i}", "cat": "step", "start": start, "dur": dur, "seq": i}
        for i, (start, dur) in enumerate(steps or [])
    ]
    for i, (cat, some) in enumerate(streams, 1):
        entities.append({"id": i, "kind": "stream", "name": str(i), "parent": 0})
        spans += [
            {"entity": i, "name": cat, "cat": cat, "start": start, "dur": dur, "seq": None} for start, dur in some
        ]
    numbered = [span | {"span": i} for i, span in enumerate(spans, 1)]
    return Frame.of(entities, spans=numbered)


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> Frame:
    return kineto.read(write(JOB, tmp_path_factory.mktemp("job")))


def ends(given: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(start, start + dur) for start, dur in given]


@settings(deadline=None)
@given(intervals, intervals, intervals, st.tuples(st.integers(0, 40), st.integers(1, 40)))
def test_every_instant_of_a_step_counts_once(
    compute: list[tuple[int, int]], comm: list[tuple[int, int]], copies: list[tuple[int, int]], step: tuple[int, int]
) -> None:
    made = frame_of(("kernel", compute), ("comm", comm), ("memcpy", copies), steps=[step])
    if not compute + comm + copies:
        with pytest.raises(BadInput):
            breakdown.split(made)
        return
    row = breakdown.split(made).filter(pl.col("step") == 0).to_dicts()[0]
    wanted = parts(ends(compute), ends(comm), ends(copies), (step[0], sum(step)))
    assert {name: row[name] for name in wanted} == wanted
    assert row["total"] == sum(row[part] for part in breakdown.PARTS) == step[1]


def test_the_breakdown_of_a_run_is_that_of_its_schedule(frame: Frame) -> None:
    rows = {(row["rank"], row["step"]): row for row in breakdown.split(frame).iter_rows(named=True)}
    ops: list[Op] = list(schedule(replace(JOB, resolution=1)))
    for rank in range(JOB.ranks):
        for step in range(JOB.steps):
            own = next(op for op in ops if op.rank == rank and op.kind == "step" and op.step == step)
            row = rows[(str(rank), step)]
            assert (row["start"], row["end"]) == (own.start, own.end)
            assert row["total"] == sum(row[part] for part in breakdown.PARTS)
            # microseconds are few enough for the oracle; each of the edges may move a unit
            scaled = {
                kind: [(op.start // 1000, op.end // 1000) for op in ops if op.rank == rank and op.kind == kind]
                for kind in ("kernel", "comm", "memcpy")
            }
            wanted = parts(scaled["kernel"], scaled["comm"], scaled["memcpy"], (own.start // 1000, own.end // 1000))
            for name, count in wanted.items():
                assert row[name] / 1000 == pytest.approx(count, abs=60)


def test_a_cpu_job_is_broken_down_by_its_innermost_operators() -> None:
    entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "t", "parent": 0}]
    spans = [
        {"entity": 1, "name": "outer", "cat": "cpu_op", "start": 0, "dur": 100},
        {"entity": 1, "name": "inner", "cat": "cpu_op", "start": 10, "dur": 30},
        {"entity": 1, "name": "gloo:all_reduce", "cat": "comm", "start": 60, "dur": 20},
    ]
    row = breakdown.split(Frame.of(entities, spans=spans)).to_dicts()[0]
    assert (row["compute"], row["exposed"], row["idle"], row["total"]) == (30, 20, 20, 70)


def test_a_pause_before_a_processors_first_operator_is_its_steps_time() -> None:
    entities = [
        {"id": 0, "kind": "rank", "name": "0", "parent": None},
        {"id": 1, "kind": "thread", "name": "main", "parent": 0},
    ]
    spans = [
        {"span": 1, "entity": 0, "name": "ProfilerStep#1", "cat": "step", "start": 0, "dur": 100, "seq": 1},
        {"span": 2, "entity": 1, "name": "aten::mm", "cat": "cpu_op", "start": 30, "dur": 50, "seq": None},
    ]  # fmt: skip
    whole, step = breakdown.split(Frame.of(entities, spans=spans)).to_dicts()
    assert (whole["total"], whole["compute"], whole["idle"]) == (100, 50, 50)
    assert {part: whole[part] for part in breakdown.PARTS} == {part: step[part] for part in breakdown.PARTS}


def test_the_slow_rank_comes_last_whatever_its_clock_says(frame: Frame) -> None:
    assert len(frame.clocks) == 3  # and they differ by up to a second
    rows = breakdown.stragglers(breakdown.device_spans(frame)).to_dicts()
    assert rows[0]["rank"] == "1"
    assert rows[0]["cost"] > 10 * max(row["cost"] for row in rows[1:])
    assert rows[0]["waited"] < min(row["waited"] for row in rows[1:])


def test_waiting_is_the_time_beyond_the_last_to_come(frame: Frame) -> None:
    rows = breakdown.collectives(breakdown.device_spans(frame))
    first = {op.seq: {} for op in schedule(JOB) if op.kind == "comm"}
    for op in schedule(JOB):
        if op.kind == "comm":
            first[op.seq][str(op.rank)] = op.end - op.start
    for seq, rank, wait in rows.select("seq", "rank", "wait").iter_rows():
        assert wait == first[seq][rank] - min(first[seq].values())


def test_a_rank_alone_has_no_stragglers_and_says_so() -> None:
    found = report(frame_of(("comm", [(0, 5)]), ("kernel", [(0, 3)])))
    assert found["stragglers"] == []
    assert "stragglers need the files of several ranks" in found["notes"]


def test_what_was_launched_before_the_last_step_excludes_its_kernels(frame: Frame) -> None:
    device = breakdown.device_spans(frame)
    early = breakdown.before_last_step(frame, device)
    wanted = [op for op in schedule(JOB) if op.kind in ("kernel", "comm", "memcpy") and op.step < JOB.steps - 1]
    assert len(early) == len(wanted)


# ------------------------------------------------------------------------------------------------- critical path


@settings(deadline=None)
@given(intervals, intervals, st.integers(0, 30), st.integers(1, 60))
def test_the_path_fills_its_window_without_gap_or_overlap(
    one: list[tuple[int, int]], other: list[tuple[int, int]], first: int, length: int
) -> None:
    if not one + other:
        return
    joined = links(frame_of(("kernel", one), ("comm", other)))
    path = critical_path(joined, first, first + length)
    if path.is_empty():
        assert (joined.end > first + length).all()
        return
    rows = path.select("start", "end").rows()
    assert rows[0][0] == first
    assert rows[-1][1] == first + length
    assert all(before[1] == after[0] for before, after in pairwise(rows))


def test_the_path_of_a_run_adds_up_and_goes_through_the_slow_rank(frame: Frame) -> None:
    joined = links(frame)
    path = critical_path(joined).with_columns(length=pl.col("end") - pl.col("start"))
    assert path["length"].sum() == joined.end.max() - joined.start.min()
    on = dict(path.group_by("rank").agg(pl.col("length").sum()).iter_rows())
    assert max(on, key=lambda rank: on[rank]) == "1"


def test_a_kernel_that_was_launched_late_puts_the_host_on_the_path() -> None:
    entities = [
        {"id": 0, "kind": "rank", "name": "0", "parent": None},
        {"id": 1, "kind": "stream", "name": "7", "parent": 0},
        {"id": 2, "kind": "thread", "name": "t", "parent": 0},
    ]
    us = 1000
    spans = [
        {"span": 1, "entity": 1, "name": "a", "cat": "kernel", "start": 0, "dur": 10 * us},
        {"span": 2, "entity": 2, "name": "cudaDeviceSynchronize", "cat": "other", "start": 1 * us, "dur": 11 * us},
        {"span": 3, "entity": 2, "name": "cudaLaunchKernel", "cat": "other", "start": 50 * us, "dur": 4 * us},
        {"span": 4, "entity": 1, "name": "b", "cat": "kernel", "start": 56 * us, "dur": 10 * us},
    ]
    edges = [{"src": 3, "dst": 4, "kind": "calls"}]
    path = critical_path(links(Frame.of(entities, spans=spans, edges=edges)))
    assert path.select("kind", "start", "end").rows() == [
        ("kernel", 0, 10 * us), ("sync", 10 * us, 12 * us), ("host", 12 * us, 50 * us), ("launch", 50 * us, 56 * us),
        ("kernel", 56 * us, 66 * us),
    ]  # fmt: skip


def test_a_device_without_room_puts_the_kernel_that_filled_it_on_the_path() -> None:
    us = 1000
    entities = [
        {"id": 0, "kind": "rank", "name": "0", "parent": None},
        {"id": 1, "kind": "stream", "name": "7", "parent": 0},
        {"id": 2, "kind": "stream", "name": "8", "parent": 0},
        {"id": 3, "kind": "thread", "name": "t", "parent": 0},
    ]
    calls = [{"span": 10 + i, "entity": 3, "name": "cudaLaunchKernel", "cat": "other", "start": 2 * i * us, "dur": us}
             for i in range(3)]  # fmt: skip
    spans = [
        {"span": 1, "entity": 1, "name": "large", "cat": "kernel", "start": 3 * us, "dur": 100 * us},
        {"span": 2, "entity": 1, "name": "larger", "cat": "kernel", "start": 103 * us, "dur": 200 * us},
        {"span": 3, "entity": 2, "name": "small", "cat": "kernel", "start": 280 * us, "dur": 30 * us},
    ]
    edges = [{"src": 10 + i, "dst": 1 + i, "kind": "calls"} for i in range(3)]
    path = critical_path(links(Frame.of(entities, spans=calls + spans, edges=edges)))
    assert path.select("name", "start", "end").rows() == [
        ("large", 3 * us, 103 * us), ("larger", 103 * us, 280 * us), ("small", 280 * us, 310 * us),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- what-ifs


@settings(deadline=None)
@given(intervals, intervals)
def test_nothing_changed_gives_the_recorded_time(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    if one + other:
        answer = what_if(links(frame_of(("kernel", one), ("comm", other))))
        assert answer.changed == answer.recorded


def test_nothing_changed_gives_every_recorded_time_of_a_run(frame: Frame) -> None:
    answer = what_if(links(frame))
    assert answer.changed == answer.recorded


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
def test_another_bandwidth_is_foretold_as_it_then_runs(tmp_path: Path, factor: float) -> None:
    """The generator draws the same kernels under either network, so the second run is the truth for the first."""
    job = Job(ranks=3, steps=3, layers=8, slow_rank=2, slow_by=1.2)
    told = what_if(links(kineto.read(write(job, tmp_path / "one"))), bandwidth=factor)
    faster = links(kineto.read(write(replace(job, bandwidth=job.bandwidth * factor), tmp_path / "two")))
    truth = int(faster.end.max()) - int(faster.start.min())
    assert told.changed / truth == pytest.approx(1.0, abs=0.05)


def test_without_stragglers_the_run_is_nearly_that_of_equal_ranks(tmp_path: Path) -> None:
    job = Job(ranks=5, steps=3, layers=8, slow_rank=2, slow_by=1.5)
    told = what_if(links(kineto.read(write(job, tmp_path / "one"))), stragglers=False)
    equal = links(kineto.read(write(replace(job, slow_rank=None), tmp_path / "two")))
    truth = int(equal.end.max()) - int(equal.start.min())
    assert told.recorded > 1.1 * truth
    assert told.changed / truth == pytest.approx(1.0, abs=0.05)


def test_a_faster_network_never_makes_the_run_longer(frame: Frame) -> None:
    joined = links(frame)
    times = [what_if(joined, bandwidth=factor).changed for factor in (1.0, 1.5, 2.0, 8.0)]
    assert times == sorted(times, reverse=True)


# ------------------------------------------------------------------------------------------------- one step


def test_one_step_alone_has_the_breakdown_it_has_among_others(frame: Frame) -> None:
    among = breakdown.split(frame).filter(pl.col("step") == 1)
    alone = breakdown.split(only_step(frame, 1)).filter(pl.col("step").is_not_null())
    assert alone.equals(among)


def test_a_step_that_is_not_there_is_refused(frame: Frame) -> None:
    with pytest.raises(BadInput, match="no step 9; there are 0 to 2"):
        only_step(frame, 9)


def test_collectives_of_the_host_count_where_the_gpu_runs_none() -> None:
    """As gloo does beside a GPU: the collective is a span of a thread, while the stream sees copies only."""
    entities = [
        {"id": 0, "kind": "rank", "name": "0"},
        {"id": 1, "kind": "stream", "name": "0/stream 7", "parent": 0},
        {"id": 2, "kind": "thread", "name": "0/thread 9", "parent": 0},
    ]
    spans = [
        {"entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 40},
        {"entity": 2, "name": "gloo:all_reduce", "cat": "comm", "start": 30, "dur": 50, "seq": 0},
        {"entity": 1, "name": "Memcpy HtoD", "cat": "memcpy", "start": 80, "dur": 20},
    ]
    row = breakdown.split(Frame.of(entities, spans=spans)).row(0, named=True)
    assert [row[name] for name in ("total", "compute", "exposed", "memcpy", "idle", "overlapped")] == [
        100, 40, 40, 20, 0, 10,
    ]  # fmt: skip
    nccl = {"entity": 1, "name": "ncclDevKernel_AllReduce", "cat": "comm", "start": 40, "dur": 10, "seq": 0}
    row = breakdown.split(Frame.of(entities, spans=[*spans, nccl])).row(0, named=True)
    assert row["comm"] == 10


def test_handing_a_collective_over_is_no_compute() -> None:
    """On a processor operators are the kernels; the one that calls gloo would pass for overlap with it."""
    entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "0/a", "parent": 0},
                {"id": 2, "kind": "thread", "name": "0/b", "parent": 0}]  # fmt: skip
    spans = [
        {"entity": 1, "name": "aten::mm", "cat": "cpu_op", "start": 0, "dur": 50},
        {"entity": 1, "name": "c10d::allreduce_", "cat": "cpu_op", "start": 50, "dur": 40},
        {"entity": 2, "name": "gloo:all_reduce", "cat": "comm", "start": 50, "dur": 50},
    ]
    row = breakdown.split(Frame.of(entities, spans=spans)).row(0, named=True)
    assert (row["compute"], row["exposed"], row["overlapped"]) == (50, 50, 0)

"""The own time of operators: instant by instant, against the innermost that runs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.traces import breakdown
from assay.observe.traces.own_time import pieces
from assay.sim.telemetry import Frame

spans = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 20), st.booleans()), max_size=8, unique=True
)


def innermost(given_spans: list[tuple[int, int, int, bool]]) -> Counter[int]:
    """How many instants each span is the last that began, and is not over, on its thread."""
    order = sorted(range(len(given_spans)), key=lambda i: (given_spans[i][1], -given_spans[i][2], i))
    found: Counter[int] = Counter()
    for thread in (0, 1):
        for now in range(60):
            open_now = [i for i in order if given_spans[i][0] == thread and given_spans[i][1] <= now]
            open_now = [i for i in open_now if now < given_spans[i][1] + given_spans[i][2]]
            found.update(open_now[-1:])
    return found


def nested(given_spans: list[tuple[int, int, int, bool]]) -> bool:
    """Whether no span of a thread ends within another that began before it ended."""
    return not any(
        a[0] == b[0] and a[1] < b[1] < a[1] + a[2] < b[1] + b[2] for a in given_spans for b in given_spans
    )  # fmt: skip


@settings(deadline=None)
@given(spans.filter(nested))
def test_an_operator_counts_while_it_is_the_innermost(some: list[tuple[int, int, int, bool]]) -> None:
    table = pl.DataFrame([row[:3] for row in some], schema=["entity", "start", "dur"], orient="row")
    table = table.cast({"entity": pl.UInt32, "start": pl.Int64, "dur": pl.Int64})
    found = pieces(table, np.zeros(len(some), bool))
    assert (found["dur"] >= 0).all()
    own = dict(found.group_by("at").agg(pl.col("dur").sum()).iter_rows())
    assert {at: dur for at, dur in own.items() if dur} == dict(innermost(some))


@settings(deadline=None)
@given(spans)
def test_pieces_never_overlap_on_a_thread_whatever_was_recorded(some: list[tuple[int, int, int, bool]]) -> None:
    table = pl.DataFrame([row[:3] for row in some], schema=["entity", "start", "dur"], orient="row")
    table = table.cast({"entity": pl.UInt32, "start": pl.Int64, "dur": pl.Int64})
    found = pieces(table, np.array([row[3] for row in some], bool))
    placed = found.with_columns(entity=table["entity"].gather(found["at"]))
    for _, rows in placed.group_by("entity"):
        ends = (rows["start"] + rows["dur"]).to_list()
        assert all(end <= start for end, start in zip(ends, rows["start"].to_list()[1:], strict=False))


def processor(*given_spans: tuple[str, str, int, int]) -> Frame:
    """A rank with one thread of operators and one of gloo."""
    entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "0/a", "parent": 0},
                {"id": 2, "kind": "thread", "name": "0/gloo", "parent": 0}]  # fmt: skip
    return Frame.of(entities, spans=[
        {"span": i, "entity": 2 if cat == "comm" else 1, "name": name, "cat": cat, "start": start, "dur": end - start}
        for i, (name, cat, start, end) in enumerate(given_spans, 1)
    ])  # fmt: skip


def test_a_product_of_matrices_is_compute_though_it_calls_another_operator() -> None:
    frame = processor(
        ("aten::mm", "cpu_op", 0, 100), ("aten::resolve_conj", "cpu_op", 2, 3), ("aten::resolve_conj", "cpu_op", 4, 5)
    )
    row = breakdown.split(frame).row(0, named=True)
    assert (row["compute"], row["idle"]) == (100, 0)
    product, view = breakdown.top_kernels(breakdown.device_spans(frame)).to_dicts()
    assert (product["name"], product["calls"], product["total"], product["longest"]) == ("aten::mm", 1, 98, 98)
    assert (view["calls"], view["total"]) == (2, 2)


def test_an_operator_that_asks_for_a_collective_may_wait_for_it_and_is_no_compute() -> None:
    """A function of the user's, run by autograd, that sums its input over the ranks and waits."""
    frame = processor(
        ("SumOverRanks", "cpu_op", 0, 100), ("aten::clone", "cpu_op", 5, 15), ("c10d::allreduce_", "cpu_op", 20, 25),
        ("gloo:all_reduce", "comm", 25, 90),
    )  # fmt: skip
    row = breakdown.split(frame).row(0, named=True)
    assert (row["compute"], row["exposed"], row["overlapped"]) == (10, 65, 0)

"""The rules of a frame: clocks are not mixed, missing is not zero, what was mended is said."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame, chunks

NODES = [{"id": i, "kind": "node", "name": f"n{i}"} for i in range(3)]
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "t": st.integers(0, 5),
            "entity": st.integers(0, 2),
            "metric": st.sampled_from("xy"),
            "value": st.floats(-9, 9) | st.just(math.nan),
        }
    ),
    max_size=30,
)


@given(SAMPLES)
def test_the_last_number_given_for_a_time_is_what_a_block_holds(rows: list[dict[str, object]]) -> None:
    frame = Frame.of(NODES, rows)
    want = {
        (row["t"], f"n{row['entity']}", row["metric"]): row["value"] for row in rows if row["value"] == row["value"]
    }
    block = frame.block()
    got = {
        (int(t), *column): block.values[i, j]
        for i, t in enumerate(block.times)
        for j, column in enumerate(block.columns)
        if block.valid[i, j]
    }
    assert got == want
    assert np.isnan(block.values[~block.valid]).all()
    mended = sum(n for what, n in frame.repairs.items() if "order put" not in what)
    assert len(frame.samples) == len(want) == len(rows) - mended
    assert frame.samples["t"].is_sorted()


def test_a_block_may_hold_the_last_value_of_each_interval() -> None:
    rows = [{"t": t, "entity": 0, "metric": "x", "value": float(t)} for t in (0, 3, 9, 10, 25)]
    block = Frame.of(NODES, rows).block(every=10)
    assert block.times.tolist() == [0, 10, 20]
    assert block.values[:, 0].tolist() == [9.0, 10.0, 25.0]
    assert Frame.of(NODES, rows).block(3, 10).times.tolist() == [3, 9]


def test_clocks_are_set_by_what_ended_together() -> None:
    """Three hosts, hours apart; the third shares collectives with the second only."""
    ranks = [{"id": i, "kind": "rank", "name": str(i), "clock": f"host{i}"} for i in range(3)]
    skew = [0, 7_000_000_000, -90_000]
    spans = [
        {"entity": i, "name": "all_reduce", "cat": "comm", "start": 100 * n - i + skew[i], "dur": i + 50 + noise,
         "group": group, "seq": n}
        for group, members in (("a", (0, 1)), ("b", (1, 2)))
        for n in range(9)
        for i in members
        for noise in [(n == 4) * 30 * i]
    ]  # fmt: skip
    frame = Frame.of(ranks, spans=spans)
    with pytest.raises(BadInput, match="3 clocks"):
        frame.comparable("this")
    aligned = frame.aligned()
    assert aligned.clocks == ["one"]
    ends = aligned.spans.filter(pl.col("seq") != 4).group_by("group", "seq").agg(
        (pl.col("start") + pl.col("dur")).n_unique().alias("different")
    )  # fmt: skip
    assert ends["different"].to_list() == [1] * len(ends)


def test_clocks_that_share_nothing_are_not_aligned() -> None:
    ranks = [{"id": i, "kind": "rank", "name": str(i), "clock": str(i)} for i in range(2)]
    with pytest.raises(BadInput, match="1 shares no collective"):
        Frame.of(ranks).aligned()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"samples": [{"t": 0, "entity": 7, "metric": "x", "value": 1.0}]},
            "names an entity that is not in 'entities'",
        ),
        ({"samples": [{"t": 0, "entity": 0}]}, "lacks the column metric, value"),
        ({"events": [{"t": 0, "entity": 0, "name": "x", "mood": 1}]}, "no column mood"),
    ],
)
def test_what_is_no_frame_is_refused(tables: dict[str, list[dict[str, object]]], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Frame.of(NODES, **tables)  # type: ignore[arg-type]


def test_pieces_make_up_the_whole() -> None:
    rows = [{"t": t, "entity": t % 3, "metric": "x", "value": float(t)} for t in range(100)]
    frame = Frame.of(NODES, rows)
    assert pl.concat([part.samples for part in chunks(frame, 7)]).equals(frame.samples)

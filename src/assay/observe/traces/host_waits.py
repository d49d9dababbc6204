"""Where the host waited for the device, known by what its calls did and not only by what they are called.

A vendor's runtime has a dozen calls that wait, under names of its own: synchronisations, copies to pageable memory
(`cudaMemcpyAsync` waits there, whatever its name says), frees, and in a debugging mode every launch. What they have in
common is that the call ends when the device's work has:

1. the call launched something, and that was over when the call returned; or
2. it launched nothing, lasted longer than `SHORT`, and returned within `RETURN` of the moment at which a stream had run
   out of all that it had been given before the call; or
3. its name says that it synchronises (`cudaStreamSynchronize`, `aclrtSynchronizeStream`, `synchronizeStream`): then
   whatever ended last during the call is what it waited for. Of `urEventWait` or `clFinish` the name is believed where
   the call also behaves so: an event may lie in the middle of a stream, which goes on.

A long call in which the device happened to run dry (a `cudaMalloc`) returns at any time, and is no wait by rule 2.

>>> from assay.sim.telemetry import Frame
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0},
...             {"id": 2, "kind": "thread", "name": "t", "parent": 0}]
>>> spans = [{"span": 1, "entity": 1, "name": "Memcpy DtoH", "cat": "memcpy", "start": 40_000, "dur": 9_000},
...          {"span": 2, "entity": 2, "name": "cudaMemcpyAsync", "cat": "other", "start": 0, "dur": 55_000}]
>>> frame = Frame.of(entities, spans=spans, edges=[{"src": 2, "dst": 1, "kind": "calls"}])
>>> from assay.observe.traces.breakdown import device_spans
>>> host_waits(frame, device_spans(frame).with_columns(called=pl.lit(0), host=False)).rows()
[('0', 0, 55000, 0)]
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.observe.traces.breakdown import ranks
from assay.sim.telemetry import Frame

SHORT = 10_000  # ns: a call that is over as soon waited for nothing worth telling
RETURN = 50_000  # ns from the end of what was waited for to the call's own; in public traces 4 to 40 µs
_SAYS = r"(?i)synchroni[sz]e"
_MAY_SAY = r"(?i)wait|finish|sync"
Ints = NDArray[np.int64]


def host_waits(frame: Frame, ops: pl.DataFrame) -> pl.DataFrame:
    """Calls that waited: `rank`, `start`, `end`, and `op`, the row of `ops` that each waited for; by rank and end.

    `ops` are what ran on the devices (`rank`, `span`, `entity`, `start`, `end`, `called`, `host`).
    """
    rows = ops.with_row_index("op").with_columns(pl.col("op").cast(pl.Int64)).filter(~pl.col("host"))
    calls = _calls(frame).filter(pl.col("rank").is_in(rows["rank"].unique().implode()))
    found = [_own(frame, calls, rows)]
    for (rank,), some in rows.group_by("rank", maintain_order=True):
        silent = calls.filter((pl.col("rank") == rank) & pl.col("leaf") & ~pl.col("launches"))
        found.append(_silent(silent, some))
    return pl.concat(found).sort("rank", "end", "start", maintain_order=True)


def _calls(frame: Frame) -> pl.DataFrame:
    """The runtime's calls: `rank`, `span`, `name`, `start`, `end`; whether they hold no other, and launch anything."""
    placed = ranks(frame).filter(pl.col("kind") != "stream").select("entity", "rank")
    host = frame.spans.filter(
        pl.col("cat").is_in(["other", "cpu_op"]) & pl.col("start").is_not_null() & pl.col("dur").is_not_null()
    ).join(placed, on="entity")
    host = host.with_columns(end=pl.col("start") + pl.col("dur")).sort(
        "entity", "start", "end", descending=[False, False, True]
    )
    inside = (pl.col("start").shift(-1) < pl.col("end")).over("entity").fill_null(False)
    launching = frame.edges.filter(pl.col("kind") == "calls")["src"].unique()
    return host.with_columns(leaf=~inside, launches=pl.col("span").is_in(launching.implode())).filter(
        pl.col("cat") == "other"
    )


def _own(frame: Frame, calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Calls that returned when all that they had launched was over."""
    launched = frame.edges.filter(pl.col("kind") == "calls").select(call="src", span="dst")
    last = (
        launched.join(rows.select("span", "op", over="end"), on="span").sort("over", "op").unique("call", keep="last")
    )
    both = calls.join(last, left_on="span", right_on="call")
    return both.filter((pl.col("over") <= pl.col("end")) & (pl.col("over") > pl.col("start"))).select(
        "rank", "start", "end", "op"
    )


def _silent(calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Calls of one rank that launched nothing and ended with the device's work."""
    start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
    named = calls["name"].cast(pl.String)
    says, may_say = named.str.contains(_SAYS).to_numpy(), named.str.contains(_MAY_SAY).to_numpy()
    op, over = _drained(start, end, rows)
    near = (end - start > SHORT) & (end - over <= RETURN)
    other, ended = _last(end, rows)
    waited = np.where((op >= 0) & (near | says), op, -1)
    anyhow = (waited < 0) & (ended > start) & (says | (may_say & (end - start > SHORT) & (end - ended <= RETURN)))
    waited = np.where(anyhow, other, waited)
    return (
        calls.select("rank", "start", "end")
        .with_columns(op=pl.Series(waited, dtype=pl.Int64))
        .filter(pl.col("op") >= 0)
    )


def _drained(start: Ints, end: Ints, rows: pl.DataFrame) -> tuple[Ints, Ints]:
    """For each call the last op of a stream that ran out during it, and when; -1 where none did."""
    op, over = np.full(len(start), -1, np.int64), np.full(len(start), np.iinfo(np.int64).min)
    for _, stream in rows.sort("start", "end").group_by("entity", maintain_order=True):
        began, called = stream["start"].to_numpy(), stream["called"].fill_null(-1).to_numpy()
        given = np.maximum.accumulate(np.where(called >= 0, np.minimum(called, began), began))  # a stream is a queue
        ends = stream["end"].to_numpy()
        latest = np.maximum.accumulate(ends)
        holder = np.maximum.accumulate(np.where(ends == latest, np.arange(len(ends)), 0))
        at = np.searchsorted(given, start, side="right") - 1
        last = np.where(at >= 0, latest[at], np.iinfo(np.int64).min)
        better = (last > start) & (last <= end) & (last > over)
        op = np.where(better, stream["op"].to_numpy()[holder[at]], op)
        over = np.where(better, last, over)
    return op, over


def _last(end: Ints, rows: pl.DataFrame) -> tuple[Ints, Ints]:
    """For each call the op that ended last before it did, and when; -1 where there is none."""
    done = rows.sort("end", "op")
    ends = done["end"].to_numpy()
    at = np.searchsorted(ends, end, side="right") - 1
    return np.where(at >= 0, done["op"].to_numpy()[at], -1), np.where(at >= 0, ends[at], np.iinfo(np.int64).min)

"""What each kernel waited for, and the longest chain of such waits: the critical path of a recorded run.

A kernel begins when the last of these is over: what ran before it on its stream, the call that launched it, or work on
another stream that it waited for. The last is not recorded; it is inferred where a kernel sat ready for longer than
`SLACK` and something else ended meanwhile. Where a kernel of another stream was still running, the device had no room:
the path follows that one while the other sat ready. A collective waits for the kernel launched just before it, and for
the rank that comes to it last. The host runs at its own pace from one synchronisation to the next; a synchronisation
ends when the last kernel before it has.

Where the work runs on the host, operators are the kernels and threads the streams. An operator follows the one before
it on its thread at the host's own pace, unless that paused for longer than `host_lanes.PAUSE` and something else ended
meanwhile; collectives are those of the host (:mod:`assay.observe.traces.host_lanes`).

:func:`critical_path` walks these back from the end; its pieces follow one another without a gap and add up to the
window. :mod:`assay.observe.traces.what_if` runs them forward with other durations.

>>> from assay.sim.telemetry import Frame
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0}]
>>> spans = [{"span": 1, "entity": 1, "name": "a", "cat": "kernel", "start": 0, "dur": 60},
...          {"span": 2, "entity": 1, "name": "b", "cat": "kernel", "start": 65, "dur": 35}]
>>> path = critical_path(links(Frame.of(entities, spans=spans)))
>>> path.select("kind", "start", "end").rows()
[('kernel', 0, 60), ('gap', 60, 65), ('kernel', 65, 100)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.observe.graphs.path import COMM, KERNEL, KINDS, MEMCPY, SLACK, arrivals, walk_back
from assay.observe.traces import host_lanes
from assay.observe.traces.breakdown import device_spans, steps
from assay.observe.traces.host_waits import host_waits
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """What ran on the devices, by start, and what each waited for; -1 where there is nothing.

    `called` is when the launching call began. Synchronisations are numbered by rank and end. `first` and `last` bound
    the run: all that ran on a GPU; where steps are marked on the host, those, for Python runs before the first operator
    too.
    """

    frame: Frame
    """What they are of, its clocks set."""
    ops: pl.DataFrame
    first: int
    last: int
    rank: Ints
    host: NDArray[np.bool_]
    """Whether it ran on the host itself."""
    kind: Ints
    start: Ints
    end: Ints
    called: Ints
    before: Ints
    """The op before it on the stream."""
    other: Ints
    """The op on another stream that it waited for."""
    crowd: Ints
    """The kernel that left it no room: of those running on the device when it began, the one that ends last."""
    after_sync: Ints
    """The last synchronisation of its rank before its call."""
    collective: Ints
    sync_start: Ints
    sync_end: Ints
    sync_op: Ints
    """The op whose end a synchronisation waited for."""
    sync_before: Ints
    """The synchronisation of the same rank before it."""

    def __len__(self) -> int:
        return len(self.start)


def links(frame: Frame) -> Links:
    """What each op of a run waited for. The clocks of several ranks are set by their collectives.

    Raises:
        BadInput: the clocks cannot be aligned, or the host carries the collectives of a GPU.
    """
    frame = frame.aligned() if len(frame.clocks) > 1 else frame
    calls = frame.edges.filter(pl.col("kind") == "calls").select(span=pl.col("dst"), call=pl.col("src"))
    began = frame.spans.select(call=pl.col("span"), called=pl.col("start"), caller=pl.col("entity"), by="name")
    ops = device_spans(frame).join(
        calls.join(began, on="call").select("span", "called", "caller", "by").unique("span"), on="span", how="left"
    )
    streams = frame.entities.filter(pl.col("kind") == "stream")["id"]
    ops = ops.with_columns(host=~pl.col("entity").is_in(streams.implode()))
    if not ops["host"].all() and not ops.filter(pl.col("host") & (pl.col("cat") == "comm")).is_empty():
        raise BadInput("collectives run on the host (gloo, MPI): a trace does not tell which kernels waited for them")
    ops = host_lanes.ended_together(ops).sort("start", "end", "span", maintain_order=True)
    rank, host = ops["rank"].rank("dense").to_numpy().astype(np.int64) - 1, ops["host"].to_numpy()
    start, end = ops["start"].to_numpy(), ops["end"].to_numpy()
    called = np.minimum(ops["called"].fill_null(np.iinfo(np.int64).max).to_numpy(), start)
    called[ops["called"].is_null().to_numpy()] = -1
    kind = ops["cat"].cast(pl.String).replace_strict({"kernel": KERNEL, "comm": COMM, "memcpy": MEMCPY}).to_numpy()
    before = _before(ops["entity"].to_numpy().astype(np.int64), host & (kind == COMM), start, end)
    by_end = np.lexsort((end, rank))
    producer = np.where(host, host_lanes.producers(frame, ops), _producers(rank, called, kind, start, end))
    slack = np.where(host, host_lanes.PAUSE, SLACK)
    slack[host & (producer >= 0)] = np.iinfo(np.int64).max  # who asked for a collective of the host is known
    crowd = _crowds(rank, host, kind, start, end)
    other = _others(rank, start, end, called, before, producer, by_end, slack, crowd)
    sync = _syncs(frame, ops, rank)
    keyed = ops.select(key=pl.struct(pl.col("group").cast(pl.String).fill_null(""), "seq").rank("dense"), seq="seq")
    collective = np.where(
        (kind == COMM) & keyed["seq"].is_not_null().to_numpy(), keyed["key"].to_numpy().astype(np.int64), -1
    )
    return Links(frame, ops, *_bounds(frame, ops), rank, host, kind.astype(np.int64), start, end, called, before, other,
                 crowd, _after(sync, rank, called), collective, *sync[1:])  # fmt: skip


def _bounds(frame: Frame, ops: pl.DataFrame) -> tuple[int, int]:
    """When the run began and ended."""
    if ops.is_empty():
        return 0, 0
    begun = steps(frame) if ops["host"].all() else ops
    begun = ops if begun.is_empty() else begun
    return int(begun["start"].min()), int(begun["end"].max())  # type: ignore[arg-type]


def _previous(group: Ints) -> Ints:
    """For each row the row before it of the same group."""
    order = np.argsort(group, kind="stable")
    found = np.full(len(group), -1, np.int64)
    same = group[order][1:] == group[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _before(lane: Ints, aside: NDArray[np.bool_], start: Ints, end: Ints) -> Ints:
    """The op before each on its stream or thread.

    A library may note a collective of the host on the thread that asked for it, which goes on meanwhile (`aside`): what
    begins before that ends follows the operator before it.
    """
    found = _previous(lane)
    running = (found >= 0) & aside[found] & (end[found] > start)
    if not running.any():
        return found
    rows = pl.DataFrame({"lane": lane, "row": np.arange(len(lane)), "aside": aside})
    last = pl.when(~pl.col("aside")).then("row").forward_fill().shift(1).over("lane").fill_null(-1)
    return np.where(running, rows.select(last)["row"].to_numpy(), found)


def _producers(rank: Ints, called: Ints, kind: NDArray[Any], start: Ints, end: Ints) -> Ints:
    """For each collective the kernel that its rank launched last before it, unless that was still running."""
    order = np.lexsort((called, rank))
    launched = (called[order] >= 0) & (kind[order] == KERNEL)
    last = np.maximum.accumulate(np.where(launched, np.arange(len(order)), -1))
    found = np.full(len(order), -1, np.int64)
    found[order] = np.where(last >= 0, order[last], -1)
    wrong = (found < 0) | (kind != COMM) | (called < 0) | (rank[found] != rank) | (end[found] > start)
    return np.where(wrong, -1, found)


def _crowds(rank: Ints, host: NDArray[np.bool_], kind: NDArray[Any], start: Ints, end: Ints) -> Ints:
    """For each kernel the one that was running on the same device when it began; collectives take little room."""
    found = np.full(len(start), -1, np.int64)
    for code in np.unique(rank):
        rows = np.flatnonzero((rank == code) & ~host & (kind == KERNEL))
        latest = np.maximum.accumulate(end[rows])
        holder = np.maximum.accumulate(np.where(end[rows] == latest, np.arange(len(rows)), 0))
        there = rows[holder[:-1]]
        running = (end[there] > start[rows[1:]]) & (start[there] < start[rows[1:]])
        found[rows[1:]] = np.where(running, there, -1)
    return found


def _others(
    rank: Ints, start: Ints, end: Ints, called: Ints, before: Ints, producer: Ints, by_end: Ints, slack: Ints,
    crowd: Ints,
) -> Ints:  # fmt: skip
    """The op of another stream that each op waited for: its producer, or what ended last while it sat ready."""
    ready = np.maximum(called, np.where(before >= 0, end[before], -1))
    ready = np.maximum(ready, np.where(producer >= 0, end[producer], -1))
    ended = np.full(len(start), -1, np.int64)
    for code in np.unique(rank):
        own, rows = by_end[rank[by_end] == code], np.flatnonzero(rank == code)
        at = np.searchsorted(end[own], start[rows], side="right") - 1
        ended[rows] = np.where(at >= 0, own[at], -1)
    waited = (start - ready > slack) & (ended >= 0) & (ended < np.arange(len(start))) & (end[ended] > ready)
    waited &= (crowd < 0) | (start - end[ended] <= slack)
    return np.where(waited, ended, producer)


def _syncs(frame: Frame, ops: pl.DataFrame, rank: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Calls that waited for the device: rank, start, end, the op that each waited for, the sync before."""
    codes = ops.select("rank", code=pl.Series(rank)).unique("rank")
    waits = host_waits(frame, ops).join(codes, on="rank").sort("code", "end", maintain_order=True)
    of, start, end, op = (waits[name].to_numpy().astype(np.int64) for name in ("code", "start", "end", "op"))
    return of, start, end, op, _previous(of)


def _after(sync: tuple[Ints, ...], rank: Ints, when: Ints) -> Ints:
    """The last synchronisation of the same rank that had ended by then."""
    of, _, stop = sync[:3]
    found = np.full(len(rank), -1, np.int64)
    for code in np.unique(of):
        own = np.flatnonzero(of == code)
        rows = np.flatnonzero((rank == code) & (when >= 0))
        at = np.searchsorted(stop[own], when[rows], side="right") - 1
        found[rows] = np.where(at >= 0, own[at], -1)
    return found


def critical_path(links: Links, start: int | None = None, end: int | None = None) -> pl.DataFrame:
    """The chain of waits that ends last in a window (else in the whole run), first piece first.

    Columns: `kind` (one of `KINDS`), `rank`, `name`, `start`, `end`; `lane`, the stream or, of the host's pieces, the
    thread (null where it is not known). The pieces fill the window.
    """
    first = links.first if start is None else start
    last = links.last if end is None else end
    inside = np.flatnonzero(links.end <= last)
    if not len(inside):
        words, times = ("kind", "rank", "name"), ("start", "end")
        schema = dict.fromkeys(words, pl.String) | dict.fromkeys(times, pl.Int64) | {"lane": pl.UInt32}
        return pl.DataFrame(schema=schema)
    final = int(inside[np.argmax(links.end[inside])])
    pieces = walk_back(
        final, first, last, links.host, links.kind, links.start, links.end, links.called, links.before, links.other,
        links.crowd, links.after_sync, arrivals(links.collective, links.start), links.sync_end, links.sync_op, False,
    )[::-1]  # fmt: skip
    named = links.ops[pieces[:, 1]]
    kind = pl.Series(KINDS).gather(pieces[:, 0])
    worked, launched = kind.is_in(KINDS[:3]), kind == "launch"
    thread = pl.when(pl.col("host")).then("entity").otherwise("caller")
    found: pl.DataFrame = named.with_columns(kind=kind, worked=worked, launched=launched).select(
        "kind", "rank",
        name=pl.when("worked").then(pl.col("name").cast(pl.String)).when("launched").then(
            pl.col("by").cast(pl.String)).otherwise(None).fill_null(""),
        start=pl.Series(pieces[:, 2].copy()), end=pl.Series(pieces[:, 3].copy()),
        lane=pl.when("worked").then("entity").otherwise(thread),
    )  # fmt: skip
    return found

"""Where each rank's time went: compute, exposed communication, copies, idle; and who came last to collectives.

Every instant of a step counts once, for the first of these that the device was doing: compute, communication (then it
is *exposed*), a copy, nothing. So the four add up to the step, to the nanosecond. A rank without GPU work is a CPU job:
its operators are its compute.

Who is late is read from durations alone: a collective ends everywhere together, so who spends the least time in it
came last. No clocks are compared.

>>> from assay.sim.telemetry import Frame
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0},
...             {"id": 2, "kind": "stream", "name": "20", "parent": 0}]
>>> spans = [{"entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 60},
...          {"entity": 2, "name": "nccl", "cat": "comm", "start": 40, "dur": 50},
...          {"entity": 1, "name": "copy", "cat": "memcpy", "start": 95, "dur": 5}]
>>> split(Frame.of(entities, spans=spans)).select("total", "compute", "exposed", "memcpy", "idle").row(0)
(100, 60, 30, 5, 5)
"""

from __future__ import annotations

import numpy as np
import polars as pl

from assay.observe.traces import own_time
from assay.record.errors import BadInput
from assay.sim import timeline
from assay.sim.telemetry import Frame

PARTS = ("compute", "exposed", "memcpy", "idle")
_DEVICE = ("kernel", "comm", "memcpy")
HANDING_OVER = r"^(c10d::|_c10d_functional::|record_param_comms)"
"""Operators that hand a collective to its library: no compute, or they would pass for overlap with it."""


def ranks(frame: Frame) -> pl.DataFrame:
    """Which rank each entity belongs to: columns `entity`, `kind`, `rank`."""
    parents = dict(frame.entities.select("id", "parent").iter_rows())
    named = dict(frame.entities.select("id", "name").iter_rows())
    kinds = dict(frame.entities.select("id", "kind").iter_rows())

    def top(entity: int) -> str:
        seen = set()
        while kinds[entity] != "rank" and parents.get(entity) in kinds and entity not in seen:
            seen.add(entity)
            entity = parents[entity]
        return str(named[entity])

    rows = [{"entity": entity, "kind": kinds[entity], "rank": top(entity)} for entity in parents]
    return pl.DataFrame(rows, schema={"entity": pl.UInt32, "kind": pl.String, "rank": pl.String})


def device_spans(frame: Frame) -> pl.DataFrame:
    """What ran on each rank's device: spans with `rank` and `end`; `cat` is kernel, comm or memcpy.

    The device of a rank without a stream is its processor: operators are its kernels, in the pieces in which they work
    themselves (:mod:`assay.observe.traces.own_time`). Where a GPU runs no collective itself (gloo, MPI), those of the
    host are the rank's communication.
    """
    placed = ranks(frame)
    streams = placed.filter(pl.col("kind") == "stream")
    columns = ("span", "entity", "name", "cat", "start", "dur", "bytes", "group", "seq")
    timed = frame.spans.filter(pl.col("start").is_not_null() & pl.col("dur").is_not_null())
    on_streams = timed.filter(
        pl.col("cat").is_in(_DEVICE) & pl.col("entity").is_in(streams["entity"].implode())
    ).select(columns)
    busy = set(on_streams["entity"].unique().to_list())
    with_gpu = placed.filter(pl.col("entity").is_in(list(busy)))["rank"].unique().to_list()
    rest = placed.filter(~pl.col("rank").is_in(with_gpu))
    host = timed.filter(
        pl.col("cat").is_in(["cpu_op", "comm", "kernel", "memcpy"]) & pl.col("entity").is_in(rest["entity"].implode())
    ).select(columns)
    silent = placed.filter(pl.col("rank").is_in(with_gpu)).filter(
        ~pl.col("entity").is_in(streams["entity"].implode()) & ~pl.col("rank").is_in(_talking(on_streams, placed))
    )
    by_host = (pl.col("cat") == "comm") & pl.col("entity").is_in(silent["entity"].implode())
    every = pl.concat([on_streams, _own_pieces(host), timed.filter(by_host).select(columns)])
    both = every.join(placed.select("entity", "rank"), on="entity", maintain_order="left")
    return both.with_columns(end=pl.col("start") + pl.col("dur"))


def _talking(on_streams: pl.DataFrame, placed: pl.DataFrame) -> list[str]:
    """The ranks whose GPU runs collectives."""
    comm = on_streams.filter(pl.col("cat") == "comm")["entity"].unique()
    return placed.filter(pl.col("entity").is_in(comm.implode()))["rank"].unique().to_list()


def _own_pieces(host: pl.DataFrame) -> pl.DataFrame:
    """What the threads did: operators piece by piece (as kernels), collectives whole."""
    comm = host["cat"] == "comm"
    asks = comm | host["name"].cast(pl.String).str.contains(HANDING_OVER)
    found = own_time.pieces(host, asks.to_numpy())
    own = host[found["at"]].with_columns(found["start"], found["dur"])
    own = own.with_columns(cat=pl.col("cat").cast(pl.String).replace("cpu_op", "kernel").cast(host.schema["cat"]))
    return pl.concat([own, host.filter(comm)])


def steps(frame: Frame) -> pl.DataFrame:
    """The steps of each rank: columns `rank`, `step`, `start`, `end`, in order."""
    rows = frame.spans.filter(pl.col("cat") == "step").join(ranks(frame).select("entity", "rank"), on="entity")
    rows = rows.select("rank", step=pl.col("seq").fill_null(0), start="start", end=pl.col("start") + pl.col("dur"))
    return rows.sort("rank", "start").unique(["rank", "step"], keep="first", maintain_order=True)


def _busy(spans: pl.DataFrame, cat: str) -> timeline.Set:
    some = spans.filter(pl.col("cat") == cat)
    return timeline.union(some["start"].to_numpy(), some["end"].to_numpy())


def _either(one: timeline.Set, other: timeline.Set) -> timeline.Set:
    return timeline.union(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))


def split(frame: Frame, spans: pl.DataFrame | None = None) -> pl.DataFrame:
    """A row for each rank's whole device time (`step` is null) and for each of its steps, in nanoseconds.

    `total` = `compute` + `exposed` + `memcpy` + `idle`; `comm` is all communication, of which `overlapped` ran beside
    compute. The whole reaches from the first to the last thing on the device; on a processor, whose pauses before the
    first operator are the step's too, from the first step to the end of the last.
    """
    device = device_spans(frame) if spans is None else spans
    if device.is_empty():
        raise BadInput(f"{frame.source or 'the trace'}: no kernel, copy or operator in it: nothing to break down")
    begun = steps(frame)
    streams = ranks(frame).filter(pl.col("kind") == "stream")["entity"]
    tables = []
    for (rank,), rows in device.group_by("rank", maintain_order=True):
        own = begun.filter(pl.col("rank") == rank)
        timed = own if len(own) and not rows["entity"].is_in(streams.implode()).any() else rows
        whole = [int(timed["start"].min()), int(timed["end"].max())]  # type: ignore[arg-type]
        starts = np.array([whole[0], *own["start"].to_list()], np.int64)
        ends = np.array([whole[1], *own["end"].to_list()], np.int64)
        tables.append(
            pl.DataFrame({"rank": rank, "step": [None, *own["step"].to_list()], "start": starts, "end": ends},
                         schema_overrides={"step": pl.Int64}).hstack(_parts(rows, starts, ends))
        )  # fmt: skip
    found = pl.concat(tables)
    return found.sort(pl.col("rank").cast(pl.Int64, strict=False), "rank", pl.col("step").is_not_null(), "start")


def _parts(rows: pl.DataFrame, starts: timeline.Times, ends: timeline.Times) -> pl.DataFrame:
    compute, comm, copies = _busy(rows, "kernel"), _busy(rows, "comm"), _busy(rows, "memcpy")
    working = _either(compute, comm)
    exposed, alone = timeline.subtract(comm, compute), timeline.subtract(copies, working)
    columns = {"compute": compute, "exposed": exposed, "memcpy": alone, "comm": comm}
    made = {name: timeline.covered(some, starts, ends) for name, some in columns.items()}
    made["total"] = ends - starts
    made["idle"] = made["total"] - made["compute"] - made["exposed"] - made["memcpy"]
    made["overlapped"] = made["comm"] - made["exposed"]
    return pl.DataFrame(made).select("total", *PARTS, "comm", "overlapped")


def before_last_step(frame: Frame, device: pl.DataFrame) -> pl.DataFrame:
    """What was launched before the last step began: the part that HolisticTraceAnalysis looks at unless told otherwise.

    With fewer than two steps that is everything.
    """
    last = steps(frame).group_by("rank").agg(last=pl.col("start").max(), count=pl.len())
    calls = frame.edges.filter(pl.col("kind") == "calls").select(span=pl.col("dst"), call=pl.col("src"))
    began = frame.spans.select(call=pl.col("span"), called=pl.col("start"))
    linked = device.join(calls.join(began, on="call").select("span", "called"), on="span", how="left")
    linked = linked.join(last, on="rank", how="left", maintain_order="left")
    early = (pl.col("called") < pl.col("last")).fill_null(False) | (pl.col("count").fill_null(0) < 2)
    return linked.filter(early).select(device.columns)


def collectives(device: pl.DataFrame) -> pl.DataFrame:
    """Each collective that two or more ranks took part in, once for each: `wait` is what it spent there in vain.

    The rank that came last waited for nobody; its time is the `transfer`, and `lead` how long the last but one waited.
    """
    keys = ["group", "seq"]
    rows = device.filter((pl.col("cat") == "comm") & pl.col("seq").is_not_null())
    rows = rows.with_columns(pl.col("group").cast(pl.String).fill_null(""))
    rows = rows.unique([*keys, "rank"], keep="first", maintain_order=True)
    rows = rows.filter(pl.len().over(keys) > 1)
    return rows.with_columns(
        transfer=pl.col("dur").min().over(keys),
        wait=pl.col("dur") - pl.col("dur").min().over(keys),
        lead=pl.col("dur").sort().gather(pl.lit(1)).first().over(keys) - pl.col("dur").min().over(keys),
        members=pl.len().over(keys),
    )


def stragglers(device: pl.DataFrame) -> pl.DataFrame:
    """For each rank: at how many collectives it came `last`, what the others lost by it, what it lost itself.

    `cost` is the time by which it came behind the last but one; `waited` its own waiting for others. The rank that
    cost the others most is first.
    """
    rows = collectives(device)
    if rows.is_empty():
        return pl.DataFrame(schema={"rank": pl.String, "collectives": pl.UInt32, "last": pl.UInt32,
                                    "cost": pl.Int64, "waited": pl.Int64})  # fmt: skip
    late = (pl.col("wait") == 0) & (pl.col("lead") > 0)
    return (
        rows.group_by("rank")
        .agg(
            collectives=pl.len(), last=late.sum(),
            cost=pl.when(late).then("lead").otherwise(0).sum(), waited=pl.col("wait").sum(),
        )
        .sort("cost", "rank", descending=[True, False])
    )  # fmt: skip


def called(device: pl.DataFrame) -> pl.DataFrame:
    """The same with a row for each call: the pieces of an operator of the host together."""
    spans = device["span"]
    if spans.null_count() or spans.n_unique() == len(spans):
        return device
    return device.group_by("span", "name", "cat", maintain_order=True).agg(pl.col("dur").sum())


def top_kernels(device: pl.DataFrame, count: int = 10) -> pl.DataFrame:
    """The kernels that took most time, over all ranks: `name`, `cat`, `calls`, `total`, `mean`, `longest`."""
    return (
        called(device)
        .group_by(pl.col("name"), "cat")
        .agg(calls=pl.len(), total=pl.col("dur").sum(), mean=pl.col("dur").mean(), longest=pl.col("dur").max())
        .with_columns(pl.col("name", "cat").cast(pl.String))
        .sort("total", "name", descending=[True, False])
        .head(count)
    )

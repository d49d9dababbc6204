"""Threads and the host's collectives (gloo, MPI) as lanes that compute and lanes that communicate.

A thread runs its operators one after the other; between two of them is Python, or a wait. A collective of the host runs
on a thread of its library behind the call that asked for it, and ends everywhere together, once its last member has
come. :mod:`assay.observe.traces.kernel_path` links both as it links kernels; here is what differs from a GPU.

gloo wakes those who wait before it notes the end, so the recorded end is the latest that a collective can have ended.
The earliest end among its members is nearer, and so is an operator that began after the last member had come and before
which its rank did nothing.

>>> ops = pl.DataFrame({"rank": ["0", "1"], "entity": [1, 2], "host": True, "cat": "comm", "name": "gloo:all_reduce",
...                     "group": None, "seq": 5, "start": [0, 40], "end": [70, 130]})
>>> ended_together(ops)["end"].to_list()
[70, 70]
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.observe.traces.breakdown import HANDING_OVER, ranks
from assay.observe.traces.rows import operation
from assay.sim.telemetry import Frame

PAUSE = 100_000  # ns that a thread may spend between two operators without waiting for anything
_MUTUAL = r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"  # nobody ends before all have come
_KEY = (pl.col("group").cast(pl.String).fill_null(""), pl.col("seq"))
Ints = NDArray[np.int64]


def ended_together(ops: pl.DataFrame) -> pl.DataFrame:
    """With the collectives of the host ending when they were over, not when that was noted."""
    mutual = (
        pl.col("host") & (pl.col("cat") == "comm") & pl.col("seq").is_not_null()
        & pl.col("name").cast(pl.String).str.contains(_MUTUAL)
    )  # fmt: skip
    ops = ops.with_columns(shared=mutual & (pl.col("rank").n_unique().over(*_KEY) > 1))
    if not ops["shared"].any():
        return ops.drop("shared")
    ops = ops.with_columns(last=pl.col("start").max().over(*_KEY))
    ops = _cut(ops, pl.col("end").min().over(*_KEY))
    ops = ops.with_columns(read=pl.Series(_first_reads(ops), dtype=pl.Int64))
    return _cut(ops, pl.col("read").min().over(*_KEY)).drop("shared", "last", "read")


def _cut(ops: pl.DataFrame, over: pl.Expr) -> pl.DataFrame:
    """With shared collectives ending by `over`, but not before their last member came."""
    bound = pl.max_horizontal(over, pl.col("last") + 1)
    return ops.with_columns(
        end=pl.when(pl.col("shared") & over.is_not_null()).then(pl.min_horizontal("end", bound)).otherwise("end")
    )


def _first_reads(ops: pl.DataFrame) -> list[int | None]:
    """When each collective had been read though its end was not yet noted; None where nobody shows that.

    A rank that did nothing from before the last member's coming to after it, while nothing ended that it could have
    waited for, waited for this collective. Who came last itself has paused for the call.
    """
    rows = ops.with_row_index("row")
    read: list[int | None] = [None] * len(rows)
    for (_,), own in rows.filter(pl.col("host")).group_by("rank", maintain_order=True):
        begun = own.filter(pl.col("cat") != "comm").sort("entity", "start")
        gaps = begun.with_columns(idle=pl.col("end").cum_max().shift(1).over("entity"))
        gaps = gaps.filter(pl.col("start") - pl.col("idle") > PAUSE).sort("start")
        shared = own.filter(pl.col("shared") & (pl.col("start") < pl.col("last"))).sort("last", "start")
        ends, last = np.sort(own["end"].to_numpy()), shared["last"].to_numpy()
        row, until = shared["row"].to_numpy(), shared["end"].to_numpy()
        for idle, start in gaps.select("idle", "start").iter_rows():
            if np.searchsorted(ends, start, side="right") > np.searchsorted(ends, idle, side="right"):
                continue
            for at in range(np.searchsorted(last, idle, side="right"), np.searchsorted(last, start, side="right")):
                if until[at] > start and read[row[at]] is None:
                    read[row[at]] = start
                    break
    return read


def producers(frame: Frame, ops: pl.DataFrame) -> Ints:
    """For each collective of the host the operator before the call that asked for it, on the thread of the call.

    The n-th call of a kind asks for the n-th collective of that kind. Where their numbers differ, the last operator of
    the rank that was over stands for it.
    """
    rows = ops.with_row_index("row")
    some = rows.filter(pl.col("host") & (pl.col("cat") == "comm"))
    found = np.full(len(ops), -1, np.int64)
    if some.is_empty():
        return found
    done = rows.filter(pl.col("host") & (pl.col("cat") != "comm")).sort("end", maintain_order=True)
    asked = _matched(some, _calls(frame))
    for by, when in (("rank", "start"), ("entity", "called")):
        known = asked.filter(pl.col(when).is_not_null()).select("row", by, when=pl.col(when)).sort("when")
        behind = known.join_asof(done.select(by, at="row", when="end"), on="when", by=by, check_sortedness=False)
        behind = behind.filter(pl.col("at") < pl.col("row"))  # of two at one instant the first
        found[behind["row"].to_numpy()] = behind["at"].to_numpy()
    return found


def _calls(frame: Frame) -> pl.DataFrame:
    """Calls that hand a collective to its library: `rank`, `entity`, `what`, `called`."""
    calls = frame.spans.filter(
        pl.col("name").cast(pl.String).str.contains(HANDING_OVER) & pl.col("start").is_not_null()
    )
    placed = calls.join(ranks(frame).select("entity", "rank"), on="entity").sort("start")
    return _named(placed).drop_nulls("what").select("rank", "entity", "what", called="start")


def _matched(some: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Collectives with the thread (`entity`) and time (`called`) of their calls, null where these are not known."""
    nth = pl.int_range(pl.len()).over("rank", "what").alias("nth")
    many = pl.len().over("rank", "what").alias("many")
    mine = _named(some.sort("start")).select("row", "rank", "what", "start", nth, many)
    asked = mine.join(calls.with_columns(nth, many), on=["rank", "what", "nth", "many"], how="left")
    early = pl.col("called") <= pl.col("start")
    return asked.with_columns(pl.when(early).then(pl.col("entity", "called")))


def _named(spans: pl.DataFrame) -> pl.DataFrame:
    words = pl.col("name").cast(pl.String)
    names = spans.select(words.unique())["name"].to_list()
    return spans.with_columns(
        what=words.replace_strict({name: operation(name) for name in names}, return_dtype=pl.String)
    )

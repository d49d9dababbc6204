"""What the host was doing while the critical path ran through it: by name, the innermost of the thread that was late.

A path's piece `host` says that a kernel was launched late. Between two launches a thread asks for memory, runs
operators that launch nothing, loads data; the rest is Python or something else that the profiler does not record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from assay.observe.traces import own_time
from assay.sim.compiled import njit
from assay.sim.telemetry import Frame

_DONE = ("cpu_op", "other", "io", "annotation")
SCHEMA: dict[str, Any] = {"name": pl.String, "pieces": pl.Int64, "dur": pl.Int64}


def host_time(frame: Frame, path: pl.DataFrame) -> pl.DataFrame:
    """What fills the path's pieces of kind `host`: `name` ('': nothing is recorded), `pieces`, `dur`; the most first.

    >>> places = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "t", "parent": 0}]
    >>> malloc = {"entity": 1, "name": "cudaMalloc", "cat": "other", "start": 10, "dur": 70}
    >>> frame = Frame.of(places, spans=[malloc])
    >>> path = pl.DataFrame({"kind": ["host"], "start": [0], "end": [100], "lane": [1]})
    >>> host_time(frame, path).rows()
    [('cudaMalloc', 1, 70), ('', 1, 30)]
    """
    late = path.filter(pl.col("kind") == "host").sort("lane", "start", nulls_last=True)
    if late.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    lanes = late["lane"].drop_nulls().unique().to_list()
    done = frame.spans.filter(
        pl.col("entity").is_in(lanes) & pl.col("cat").is_in(_DONE) & (pl.col("dur") > 0) & pl.col("start").is_not_null()
    )
    inner = own_time.pieces(done, np.zeros(len(done), bool))
    lane = done["entity"].gather(inner["at"]).to_numpy().astype(np.int64)
    begun = inner["start"].to_numpy()
    piece, which, dur = _overlaps(
        late["lane"].fill_null(-1).cast(pl.Int64).to_numpy(), late["start"].to_numpy(), late["end"].to_numpy(),
        lane, begun, begun + inner["dur"].to_numpy(),
    )  # fmt: skip
    names = done["name"].cast(pl.String).gather(inner["at"].gather(which))
    told = pl.DataFrame({"name": names, "dur": dur})
    known = np.bincount(piece, dur, minlength=len(late)).astype(np.int64)
    rest = pl.DataFrame({"name": "", "dur": (late["end"] - late["start"]).to_numpy() - known}).filter(pl.col("dur") > 0)
    every = pl.concat([told, rest]).group_by("name").agg(pieces=pl.len().cast(pl.Int64), dur=pl.col("dur").sum())
    return every.sort("dur", "name", descending=[True, False])


@njit(cache=True, nogil=True)
def _overlaps(of: Any, first: Any, last: Any, lane: Any, start: Any, end: Any) -> Any:
    """Which piece overlaps which span of its lane, and for how long; both are in the order of lanes and times."""
    size = len(of) + len(lane) + 1
    piece, which, dur = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    count, at = 0, 0
    for i in range(len(of)):
        if of[i] < 0:
            continue
        while at < len(lane) and (lane[at] < of[i] or (lane[at] == of[i] and end[at] <= first[i])):
            at += 1
        j = at
        while j < len(lane) and lane[j] == of[i] and start[j] < last[i]:
            both = min(end[j], last[i]) - max(start[j], first[i])
            if both > 0:
                piece[count], which[count], dur[count] = i, j, both
                count += 1
            j += 1
        at = max(at, j - 1)  # the last one may reach into the next piece
    return piece[:count], which[:count], dur[:count]

"""The time that an operator of the host spends itself, without what it calls.

Operators nest, and the outer ones work too: `aten::mm` calls `aten::resolve_conj` for a microsecond and multiplies for
milliseconds. So each operator counts while it is the innermost of its thread, in one piece more than it has callees;
pieces may be empty, so that the same program always has as many.

An operator within which a collective is asked for may wait for it, which nothing in a trace tells from work: its own
time does not count, that of its callees does.

>>> spans = pl.DataFrame({"entity": [1, 1], "start": [0, 10], "dur": [100, 5]})
>>> pieces(spans, np.array([False, False])).select("at", "start", "dur").rows()
[(0, 0, 10), (1, 10, 5), (0, 15, 85)]
>>> pieces(spans, np.array([False, True]))["at"].to_list()  # the inner one is a collective
[]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.sim.compiled import njit


def pieces(spans: pl.DataFrame, asks: NDArray[np.bool_]) -> pl.DataFrame:
    """The pieces of all spans but those that ask for collectives, or hold one that does.

    `at` is the row of the span, `start` and `dur` are the piece's; in the order of entities and times.
    """
    entity = spans["entity"].to_numpy().astype(np.int64)
    start, dur = spans["start"].to_numpy(), spans["dur"].to_numpy()
    order = np.lexsort((-dur, start, entity))
    at, begin, stop, silent = _unfold(order, entity, start, start + dur, asks)
    kept = ~silent[at]
    return pl.DataFrame({"at": at[kept], "start": begin[kept], "dur": (stop - begin)[kept]})


@njit(cache=True, nogil=True)
def _unfold(order: Any, entity: Any, start: Any, end: Any, asks: Any) -> Any:
    n = len(order)
    at, begin, stop = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    stack = np.empty(n, np.int64)
    silent = asks.copy()
    count, depth, now = 0, 0, 0
    for place in range(n + 1):
        i = order[place] if place < n else -1
        while depth and (i < 0 or entity[stack[depth - 1]] != entity[i] or end[stack[depth - 1]] <= start[i]):
            depth -= 1
            top = stack[depth]
            at[count], begin[count], stop[count] = top, now, max(now, end[top])  # a callee may end behind its caller
            count, now = count + 1, max(now, end[top])
        if i < 0:
            break
        if depth:
            at[count], begin[count], stop[count] = stack[depth - 1], now, start[i]
            count += 1
        now = start[i]
        stack[depth] = i
        depth += 1
        if asks[i]:
            silent[stack[:depth]] = True
    return at[:count], begin[:count], stop[:count], silent

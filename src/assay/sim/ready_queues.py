"""Work that nobody ordered: a device that is free takes, of what is ready, what has the highest priority.

Where a static order is a longest path (:mod:`assay.sim.dag`), work-conserving devices need an event loop: one heap of
what ends and arrives when, and a heap of ready operations for each device. Events of the same instant are all noted
before anybody chooses, and ties go to the operation with the smaller number, so runs repeat.

>>> from assay.sim.dag import Dag
>>> fork = Dag.of(3, [(0, 1), (0, 2)])
>>> _, ends = run(fork, device=[0, 0, 0], seconds=[1.0, 2.0, 3.0], priority=[0.0, 1.0, 5.0])
>>> ends.tolist()  # the third goes first
[1.0, 6.0, 4.0]
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.sim.compiled import njit
from assay.sim.dag import Dag, Floats


def run(
    dag: Dag, device: ArrayLike, seconds: ArrayLike, priority: ArrayLike | None = None, delay: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """When each operation starts and ends.

    Args:
        dag: who waits for whom.
        device: where each operation runs.
        seconds: how long each takes.
        priority: higher goes first; without it, the smaller number.
        delay: seconds on each of the graph's edges, in the order of `dag.indices`, after the earlier operation's end.
    """
    where, took = np.asarray(device, np.int64), np.asarray(seconds, float)
    first = np.zeros(dag.nodes) if priority is None else np.asarray(priority, float)
    lags = np.zeros(len(dag.indices)) if delay is None else np.asarray(delay, float)
    at, successors, edges = turned(dag.indptr, dag.indices)
    starts, ends = _loop(dag.indptr, at, successors, edges, where, took, first, lags)
    return np.asarray(starts), np.asarray(ends)


@njit(cache=True)
def turned(indptr: Any, indices: Any) -> Any:
    """The graph the other way round, and which edge each entry was."""
    n = len(indptr) - 1
    at = np.zeros(n + 1, np.int64)
    for p in indices:
        at[p + 1] += 1
    at = np.cumsum(at)
    fill, successors, edges = at[:-1].copy(), np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            p = indices[e]
            successors[fill[p]], edges[fill[p]] = v, e
            fill[p] += 1
    return at, successors, edges


@njit(cache=True)
def _loop(indptr: Any, at: Any, successors: Any, edges: Any, where: Any, took: Any, first: Any, lags: Any) -> Any:
    n, devices = len(took), where.max() + 1
    starts, ends = np.zeros(n), np.zeros(n)
    waits = indptr[1:] - indptr[:-1]
    busy = np.zeros(devices, np.bool_)
    ready = [[(0.0, 0)] for _ in range(devices)]
    for queue in ready:
        queue.pop()
    events = [(0.0, 0, 0)]  # when, what (0: an input arrived, 1: it ended), operation
    events.pop()
    for v in range(n):
        if waits[v] == 0:
            waits[v] = 1
            heapq.heappush(events, (0.0, 0, v))
    while len(events):
        now = events[0][0]
        while len(events) and events[0][0] == now:
            _, ended, v = heapq.heappop(events)
            if ended:
                busy[where[v]] = False
                for k in range(at[v], at[v + 1]):
                    then, after = now + lags[edges[k]], successors[k]
                    if then > now:
                        heapq.heappush(events, (then, 0, after))
                        continue
                    waits[after] -= 1  # at this very instant: noted before anybody chooses, as from the heap
                    if waits[after] == 0:
                        heapq.heappush(ready[where[after]], (-first[after], after))
                continue
            waits[v] -= 1
            if waits[v] == 0:
                heapq.heappush(ready[where[v]], (-first[v], v))
        for d in range(devices):
            if not busy[d] and len(ready[d]):
                _, v = heapq.heappop(ready[d])
                busy[d] = True
                starts[v], ends[v] = now, now + took[v]
                heapq.heappush(events, (ends[v], 1, v))
    return starts, ends

"""Work that depends on other work, in arrays: when everything ends, for one set of durations or for many at once.

A node starts when the last of its predecessors has ended. That is a longest path, and one pass over a topological
order finds it; nothing waits in a heap. The order is found once for a graph, so a thousand draws of durations over the
same graph cost one pass with a loop over the draws inside, which the compiler turns into vector instructions.

>>> diamond = Dag.of(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
>>> diamond.ends(np.array([1.0, 5.0, 2.0, 1.0])).tolist()
[1.0, 6.0, 3.0, 7.0]
>>> diamond.critical_path(np.array([1.0, 5.0, 2.0, 1.0])).tolist()
[0, 1, 3]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BLOCK = 64  # draws that are swept together: their column of end times stays in the cache


class Cyclic(ValueError):  # noqa: N818 - what the graph is
    """Some nodes wait for each other; `nodes` are those that can never start."""

    def __init__(self, nodes: Ints) -> None:
        super().__init__(f"{len(nodes)} operations wait for each other")
        self.nodes = nodes


@dataclass(frozen=True)
class Dag:
    """Predecessors of every node (`indices[indptr[v]:indptr[v + 1]]`), and an order in which they come first."""

    indptr: Ints
    indices: Ints
    order: Ints

    @classmethod
    def of(cls, nodes: int, edges: Iterable[tuple[int, int]] | Ints) -> Dag:
        """From pairs (before, after), in any order.

        Raises:
            Cyclic: nodes wait for each other.
        """
        pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges), np.int64).reshape(-1, 2)
        by_after = np.argsort(pairs[:, 1], kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 1], minlength=nodes))]).astype(np.int64)
        indices = pairs[by_after, 0]
        order, placed = _topological(indptr, indices)
        if placed < nodes:
            started = np.zeros(nodes, bool)
            started[order[:placed]] = True
            raise Cyclic(np.flatnonzero(~started))
        return cls(indptr, indices, order)

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.order)

    def ends(self, seconds: Floats) -> Floats:
        """When each node ends; `seconds` is [nodes], or [draws, nodes] and then so is the answer.

        >>> chain = Dag.of(2, [(0, 1)])
        >>> chain.ends(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[1.0, 3.0], [3.0, 7.0]]
        """
        if seconds.ndim == 1:
            return np.asarray(_sweep(self.indptr, self.indices, self.order, np.ascontiguousarray(seconds)))
        out = np.empty(seconds.shape)
        for first in range(0, len(seconds), BLOCK):
            columns = np.ascontiguousarray(seconds[first : first + BLOCK].T)
            out[first : first + BLOCK] = self.ends_of_columns(columns).T
        return out

    def ends_of_columns(self, seconds: Floats) -> Floats:
        """The same for [nodes, draws], which is how it is computed: no copies are made.

        >>> Dag.of(2, [(0, 1)]).ends_of_columns(np.array([[1.0, 3.0], [2.0, 4.0]])).tolist()
        [[1.0, 3.0], [3.0, 7.0]]
        """
        return np.asarray(_sweep_columns(self.indptr, self.indices, self.order, seconds))

    def last_of_columns(self, seconds: Floats) -> Floats:
        """The end of the last node for each draw of [nodes, draws]."""
        return np.asarray(self.ends_of_columns(seconds).max(axis=0))

    def starts(self, ends: Floats) -> Floats:
        """When each node starts, given when all of them end.

        >>> Dag.of(2, [(0, 1)]).starts(np.array([1.0, 3.0])).tolist()
        [0.0, 1.0]
        """
        return np.asarray(_starts(self.indptr, self.indices, ends))

    def critical_path(self, seconds: Floats) -> Ints:
        """The chain of nodes that ends last and never waits: shorten none of these and nothing gets faster."""
        ends = self.ends(seconds)
        node = int(np.argmax(ends))
        path = [node]
        while self.indptr[node] < self.indptr[node + 1]:
            before = self.indices[self.indptr[node] : self.indptr[node + 1]]
            node = int(before[np.argmax(ends[before])])
            path.append(node)
        return np.array(path[::-1], np.int64)


@njit(cache=True)
def _topological(indptr: Any, indices: Any) -> Any:
    """Kahn's algorithm with a plain queue; also how many nodes could be placed."""
    n = len(indptr) - 1
    count = np.zeros(n + 1, np.int64)
    for p in indices:
        count[p + 1] += 1
    first = np.cumsum(count)
    successors = np.empty(len(indices), np.int64)
    fill = first[:-1].copy()
    waits = np.empty(n, np.int64)
    order = np.empty(n, np.int64)
    placed = 0
    for v in range(n):
        waits[v] = indptr[v + 1] - indptr[v]
        if waits[v] == 0:
            order[placed] = v
            placed += 1
        for e in range(indptr[v], indptr[v + 1]):
            p = indices[e]
            successors[fill[p]] = v
            fill[p] += 1
    at = 0
    while at < placed:
        u = order[at]
        at += 1
        for e in range(first[u], first[u + 1]):
            v = successors[e]
            waits[v] -= 1
            if waits[v] == 0:
                order[placed] = v
                placed += 1
    return order, placed


@njit(cache=True)
def _sweep(indptr: Any, indices: Any, order: Any, seconds: Any) -> Any:
    ends = np.empty(len(seconds))
    for v in order:
        start = 0.0
        for e in range(indptr[v], indptr[v + 1]):
            start = max(start, ends[indices[e]])
        ends[v] = start + seconds[v]
    return ends


@njit(cache=True)
def _sweep_columns(indptr: Any, indices: Any, order: Any, seconds: Any) -> Any:
    n, draws = seconds.shape
    ends = np.empty((n, draws))
    for v in order:
        low, high = indptr[v], indptr[v + 1]
        mine, took = ends[v], seconds[v]
        if low == high:
            mine[:] = took
            continue
        first = ends[indices[low]]
        for b in range(draws):
            mine[b] = first[b]
        for e in range(low + 1, high):
            other = ends[indices[e]]
            for b in range(draws):
                mine[b] = max(mine[b], other[b])
        for b in range(draws):
            mine[b] += took[b]
    return ends


@njit(cache=True)
def _starts(indptr: Any, indices: Any, ends: Any) -> Any:
    starts = np.zeros(len(ends))
    for v in range(len(ends)):
        for e in range(indptr[v], indptr[v + 1]):
            starts[v] = max(starts[v], ends[indices[e]])
    return starts

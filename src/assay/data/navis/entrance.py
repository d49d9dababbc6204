"""A small graph in memory over a sample of the nodes: where walks begin.

Predecessors sample it once. Here a new node joins now and then, and more often where walks grow longer than nine of
ten before it, which is what new clusters do. Joining needs no search of its own: the candidates are the entrance nodes
that the insertion's own walk passed.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from assay.data.navis.seek import Array, _coded, _fresh
from assay.data.vectors.graph import robust_prune
from assay.data.vectors.kernels import enter
from assay.sim.compiled import njit

DEGREE = 32
ENTRIES = 4
BREADTH = 32
SHARE = 0.01  # of all nodes
LEAST = 32  # nodes, whatever the share
ALPHA = 1.2

Ids = npt.NDArray[np.int32]
Decode = Callable[[Ids], npt.NDArray[np.float32]]


class Entrance:
    """Nodes, and their edges among themselves by place; the first is where the search for entries begins."""

    def __init__(self, nodes: Ids, edges: Ids, uses: npt.NDArray[np.int64] | None = None) -> None:
        self.nodes, self.edges = nodes, edges
        self.uses = np.zeros(len(nodes), np.int64) if uses is None else uses

    @classmethod
    def over(cls, nodes: Ids, codes: Array, table: Callable[[int], Array], decode: Decode) -> Entrance:
        """Join these nodes one after the other."""
        made = cls(np.empty(0, np.int32), np.empty((0, DEGREE), np.int32))
        for node in nodes.tolist():
            _, passed = made.find(table(node), codes)
            made.join(node, passed, decode)
        return made

    def find(self, table: Array, codes: Array) -> tuple[Ids, Ids]:
        """(entry points for a query, nearest first; places of the nodes that the search for them passed)."""
        if not len(self.nodes):
            return np.empty(0, np.int32), np.empty(0, np.int32)
        found = _nearest(self.nodes, self.edges, codes, table, BREADTH)
        return self.nodes[found[:ENTRIES]], found

    def used(self, entries: Ids, passed: Ids) -> None:
        """Count which nodes walks began from."""
        self.uses[passed[np.isin(self.nodes[passed], entries)]] += 1

    def capacity(self, n: int) -> int:
        """How many nodes it may have where the index has n."""
        return max(LEAST, int(SHARE * n))

    def join(self, node: int, passed: Ids, decode: Decode) -> None:
        """Add a node, linked to the best of those that its own walk passed; no search, nothing read."""
        place = len(self.nodes)
        own = decode(np.array([node], np.int32))[0]
        chosen = passed[robust_prune(decode(self.nodes[passed]), own, _numbers(passed), ALPHA, DEGREE)]
        row = np.full(DEGREE, -1, np.int32)
        row[: len(chosen)] = chosen
        self.nodes = np.append(self.nodes, np.int32(node))
        self.edges = np.concatenate([self.edges, row[None]])
        self.uses = np.append(self.uses, 0)
        for other in chosen.tolist():
            self._link(other, place, decode)

    def _link(self, place: int, other: int, decode: Decode) -> None:
        row = self.edges[place]
        if row[-1] < 0:
            row[int((row >= 0).sum())] = other
            return
        both = np.append(row, np.int32(other))
        own = decode(self.nodes[place : place + 1])[0]
        kept = both[robust_prune(decode(self.nodes[both]), own, _numbers(both), ALPHA, DEGREE)]
        row[:] = -1
        row[: len(kept)] = kept

    def leave(self, decode: Decode) -> None:
        """Remove the least used node, never the first; whoever pointed to it gets its neighbours instead."""
        place = 1 + int(np.argmin(self.uses[1:]))
        heirs = self.edges[place][self.edges[place] >= 0]
        for before in np.flatnonzero((self.edges == place).any(axis=1)).tolist():
            row = self.edges[before]
            both = np.unique(np.concatenate([row[(row >= 0) & (row != place)], heirs[heirs != before]]))
            own = decode(self.nodes[before : before + 1])[0]
            kept = (
                both[robust_prune(decode(self.nodes[both]), own, _numbers(both), ALPHA, DEGREE)] if len(both) else both
            )
            row[:] = -1
            row[: len(kept)] = kept
        self.nodes, self.uses = np.delete(self.nodes, place), np.delete(self.uses, place)
        self.edges = np.delete(self.edges, place, axis=0)
        self.edges[self.edges > place] -= 1


def _numbers(of: Ids) -> Ids:
    return np.arange(len(of), dtype=np.int32)


@njit(cache=True)
def _nearest(nodes, edges, codes, table, breadth):
    """The nearest places to a query, by a walk in memory."""
    ids, far = np.empty(breadth, np.int32), np.empty(breadth, np.float32)
    done = np.zeros(breadth, np.bool_)
    seen = np.full(1 << 14, -1, np.int32)  # a walk of this breadth passes some hundreds
    ids[0], far[0] = 0, _coded(table, codes[nodes[0]])
    _fresh(seen, 0)
    count = 1
    while True:
        at = 0
        while at < count and done[at]:
            at += 1
        if at == count:
            return ids[:count].copy()
        done[at] = True
        for v in edges[ids[at]]:
            if v < 0 or not _fresh(seen, v):
                continue
            _, count = enter(ids, far, done, count, v, _coded(table, codes[nodes[v]]))

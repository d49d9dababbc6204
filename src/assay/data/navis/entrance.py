"""Graphs in memory over a sample of the nodes: where walks begin.

A sixteenth of all nodes are in it, and a sixteenth of these in the level above, as in HNSW (Malkov and Yashunin, TPAMI
2020), until what is left is few enough to be looked at whole: then no walk has to find its way from cluster to cluster,
where lists that near ones fill have no edge for it. Predecessors sample the entrance once. Here every sixteenth new
node joins, and more where walks grow longer than nine of ten before them, which is what new clusters do.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from assay.data.navis.seek import Array, _coded, _fresh
from assay.data.vectors.graph import robust_prune
from assay.data.vectors.kernels import enter
from assay.sim.compiled import njit

DEGREE = 32
ENTRIES = 4
BREADTH = 64
SHARE = 1 / 16  # of all nodes, and of a level in the one above
LEAST = 32  # nodes, whatever the share
TOP = 1024  # nodes of a level that is looked at whole
ALPHA = 1.2
LOOKED = 12_000  # nodes: what a walk remembers; one of this breadth passes some hundreds

Ids = npt.NDArray[np.int32]
Decode = Callable[[Ids], npt.NDArray[np.float32]]


def capacity(n: int) -> int:
    """How many of n nodes an entrance may have.

    >>> capacity(1_000_000), capacity(20)
    (62500, 32)
    """
    return max(LEAST, int(SHARE * n))


class Entrance:
    """Nodes, their edges among themselves by place, and the level above: its nodes know their places here, `down`."""

    def __init__(
        self, nodes: Ids, edges: Ids, uses: npt.NDArray[np.int64] | None = None, above: Entrance | None = None,
        down: Ids | None = None,
    ) -> None:  # fmt: skip
        self.nodes, self.edges, self.above = nodes, edges, above
        self.uses = np.zeros(len(nodes), np.int64) if uses is None else uses
        self.down = np.arange(len(nodes), dtype=np.int32) if down is None else down

    @classmethod
    def of(cls, levels: Sequence[tuple[Ids, Ids]]) -> Entrance:
        """Of levels, the largest first, each of the first nodes of the one before."""
        made: Entrance | None = None
        for nodes, edges in reversed(levels):
            made = cls(nodes.copy(), edges.copy(), above=made)
        return made or cls(np.empty(0, np.int32), np.empty((0, DEGREE), np.int32))

    def levels(self) -> list[Entrance]:
        """This one, and those above."""
        return [self, *(self.above.levels() if self.above else [])]

    def find(self, table: Array, codes: Array) -> tuple[Ids, Ids]:
        """(entry points for a query, nearest first; places of the nodes that the search for them passed)."""
        if not len(self.nodes):
            return np.empty(0, np.int32), np.empty(0, np.int32)
        if self.above is None:
            found = _look(self.nodes, codes, table, BREADTH)
        else:
            starts = self.above.down[self.above.find(table, codes)[1]]
            found = _nearest(self.nodes, self.edges, codes, table, starts, BREADTH)
        return self.nodes[found[:ENTRIES]], found

    def used(self, entries: Ids, passed: Ids) -> None:
        """Count which nodes walks began from."""
        self.uses[passed[np.isin(self.nodes[passed], entries)]] += 1

    def join(self, node: int, table: Array, codes: Array, decode: Decode, down: int = 0) -> None:
        """Add a node, linked to the best of those that a search for it passes; nothing is read."""
        place = len(self.nodes)
        _, passed = self.find(table, codes)
        own = decode(np.array([node], np.int32))[0]
        degree = self.edges.shape[1]
        chosen = passed[robust_prune(decode(self.nodes[passed]), own, _numbers(passed), ALPHA, degree)]
        row = np.full(degree, -1, np.int32)
        row[: len(chosen)] = chosen
        self.nodes = np.append(self.nodes, np.int32(node))
        self.edges = np.concatenate([self.edges, row[None]])
        self.uses, self.down = np.append(self.uses, 0), np.append(self.down, np.int32(down))
        for other in chosen.tolist():
            self._link(other, place, decode)
        if self.above is not None and SHARE * len(self.nodes) >= len(self.above.nodes) + 1:
            self.above.join(node, table, codes, decode, place)

    def rise(self, codes: Array, table: Callable[[int], Array], decode: Decode) -> None:
        """Where the highest level became too large to be looked at whole: one above it."""
        highest = self.levels()[-1]
        if len(highest.nodes) > TOP:
            above = Entrance(np.empty(0, np.int32), np.empty((0, self.edges.shape[1]), np.int32))
            for place in range(0, len(highest.nodes), round(1 / SHARE)):
                node = int(highest.nodes[place])
                above.join(node, table(node), codes, decode, place)
            highest.above = above

    def _link(self, place: int, other: int, decode: Decode) -> None:
        row = self.edges[place]
        if row[-1] < 0:
            row[int((row >= 0).sum())] = other
            return
        both = np.append(row, np.int32(other))
        own = decode(self.nodes[place : place + 1])[0]
        kept = both[robust_prune(decode(self.nodes[both]), own, _numbers(both), ALPHA, len(row))]
        row[:] = -1
        row[: len(kept)] = kept

    def leave(self, decode: Decode) -> None:
        """Remove the least used node, none that is in a level above; who pointed to it gets its neighbours instead."""
        uses = self.uses.copy()
        if self.above is not None:
            uses[self.above.down] = np.iinfo(np.int64).max
        place = int(np.argmin(uses))
        heirs = self.edges[place][self.edges[place] >= 0]
        for before in np.flatnonzero((self.edges == place).any(axis=1)).tolist():
            row = self.edges[before]
            both = np.unique(np.concatenate([row[(row >= 0) & (row != place)], heirs[heirs != before]]))
            own = decode(self.nodes[before : before + 1])[0]
            kept = both
            if len(both):
                kept = both[robust_prune(decode(self.nodes[both]), own, _numbers(both), ALPHA, len(row))]
            row[:] = -1
            row[: len(kept)] = kept
        self.nodes, self.uses = np.delete(self.nodes, place), np.delete(self.uses, place)
        self.edges, self.down = np.delete(self.edges, place, axis=0), np.delete(self.down, place)
        self.edges[self.edges > place] -= 1
        if self.above is not None:
            self.above.down[self.above.down > place] -= 1


def _numbers(of: Ids) -> Ids:
    return np.arange(len(of), dtype=np.int32)


@njit(cache=True)
def _look(nodes, codes, table, breadth):
    """The nearest places to a query, by looking at each."""
    ids, far = np.empty(breadth, np.int32), np.empty(breadth, np.float32)
    done = np.zeros(breadth, np.bool_)
    count = 0
    for place in range(len(nodes)):
        _, count = enter(ids, far, done, count, place, _coded(table, codes[nodes[place]]))
    return ids[:count].copy()


@njit(cache=True)
def _nearest(nodes, edges, codes, table, starts, breadth):
    """The nearest places to a query, by a walk in memory."""
    ids, far = np.empty(breadth, np.int32), np.empty(breadth, np.float32)
    done = np.zeros(breadth, np.bool_)
    seen = np.full(1 << 14, -1, np.int32)
    count = looked = 0
    for place in starts:
        if _fresh(seen, place):
            _, count = enter(ids, far, done, count, place, _coded(table, codes[nodes[place]]))
    while True:
        at = 0
        while at < count and done[at]:
            at += 1
        if at == count or looked > LOOKED:
            return ids[:count].copy()
        done[at] = True
        for v in edges[ids[at]]:
            if v < 0 or not _fresh(seen, v):
                continue
            looked += 1
            _, count = enter(ids, far, done, count, v, _coded(table, codes[nodes[v]]))

"""Edges between reads and writes with the reason for each, and the few operations behind a contradiction.

An edge is either given (a read from a write) or forced (a write before another, because of a reader that saw the
first and read the second). A forced edge rests on a path that was there before it, which may hold forced edges itself:
`behind` unfolds them down to what was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.protocols.judges.reads_from import Ints, ReadsFrom


@dataclass(frozen=True)
class Edges:
    """Edges tail → head; `why` is the reader that forced it, -1 where it is given; `round` when it was found."""

    tail: Ints
    head: Ints
    why: Ints
    round: Ints

    @staticmethod
    def given(tail: Ints, head: Ints) -> Edges:
        """Edges without a reader behind them."""
        return Edges(tail, head, np.full(len(tail), -1), np.zeros(len(tail), np.int64))

    @staticmethod
    def read(rf: ReadsFrom, readers: Ints) -> Edges:
        """From what these read to them; and from what a process had done to the calls that it left behind."""
        readers, behind = readers[rf.source[readers] >= 0], np.flatnonzero(rf.follows >= 0)
        tail = np.concatenate((rf.source[readers], rf.follows[behind]))
        return Edges.given(tail, np.concatenate((readers, behind)))

    def more(self, tail: Ints, head: Ints, why: Ints) -> Edges:
        """With the edges of one more round."""
        number = np.full(len(tail), (self.round.max() if len(self.round) else 0) + 1)
        pairs = ((self.tail, tail), (self.head, head), (self.why, why), (self.round, number))
        return Edges(*(np.concatenate(pair).astype(np.int64) for pair in pairs))


def behind_cycle(rf: ReadsFrom, edges: Edges) -> list[int]:
    """The nodes behind some cycle, one that is short."""
    n = len(rf)
    chain = np.flatnonzero(rf.place[1:] > 0)
    tail, head = np.concatenate((edges.tail, chain)), np.concatenate((edges.head, chain + 1))
    graph = coo_array((np.ones(len(tail), np.int8), (tail, head)), shape=(n, n))
    _, component = connected_components(graph, connection="strong")
    sizes = np.bincount(component)
    inside = component == np.argmin(np.where(sizes > 1, sizes, n + 1))
    start = int(np.flatnonzero(inside)[0])
    before = _Before(rf, edges)
    path: list[int] | None = None
    for last, number, _ in before.edges(start):
        if inside[last]:
            found = before.path(start, last, number + 1 if number else 1 << 60, inside)
            if found is not None and (path is None or len(found) < len(path)):
                path = found
    return behind(rf, edges, [] if path is None else [[*path, start]])


def behind(rf: ReadsFrom, edges: Edges, paths: Iterable[list[int]]) -> list[int]:
    """The nodes that these paths rest on."""
    before = _Before(rf, edges)
    nodes: set[int] = set()
    todo = list(paths)
    told: set[tuple[int, int]] = set()
    while todo:
        path = todo.pop()
        nodes |= {path[0], path[-1]}
        for a, b in pairwise(path):
            reason = before.reason(a, b)
            if reason is None:  # program order
                continue
            nodes |= {a, b}
            number, reader = reason
            if reader >= 0 and (a, b) not in told:
                told.add((a, b))
                more = before.path(a, reader, number)
                todo += [more] if more is not None else []
    return sorted(nodes)


def path(rf: ReadsFrom, edges: Edges, start: int, end: int) -> list[int]:
    """A short path; there must be one."""
    found = _Before(rf, edges).path(start, end, 1 << 60)
    return [start, end] if found is None else found


class _Before:
    """Who is directly before whom."""

    def __init__(self, rf: ReadsFrom, edges: Edges) -> None:
        self.place = rf.place
        self.into: dict[int, list[tuple[int, int, int]]] = {}
        rows = (edges.tail.tolist(), edges.head.tolist(), edges.round.tolist(), edges.why.tolist())
        for tail, head, number, why in zip(*rows, strict=True):
            self.into.setdefault(head, []).append((tail, number, why))

    def edges(self, v: int) -> list[tuple[int, int, int]]:
        """(node before, round, reader) of everything directly before v."""
        found = self.into.get(v, [])
        return [*found, (v - 1, 0, -1)] if self.place[v] > 0 else found

    def reason(self, a: int, b: int) -> tuple[int, int] | None:
        """The oldest edge from a to b: its round and reader; None where program order is enough."""
        if a == b - 1 and self.place[b] > 0:
            return None
        return min(((number, why) for tail, number, why in self.into.get(b, []) if tail == a), default=None)

    def path(self, start: int, end: int, below: int, inside: Ints | None = None) -> list[int] | None:
        """A shortest path over edges of rounds below this one."""
        if start == end:
            return [start]
        after = {end: end}
        queue = deque([end])
        while queue:
            v = queue.popleft()
            for u, number, _ in self.edges(v):
                if number < below and u not in after and (inside is None or inside[u]):
                    after[u] = v
                    if u == start:
                        found = [u]
                        while found[-1] != end:
                            found.append(after[found[-1]])
                        return found
                    queue.append(u)
        return None

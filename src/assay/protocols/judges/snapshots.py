"""Snapshots: an order of begins and commits in which every transaction reads what was committed when it began.

Each transaction is two points, its begin and its commit. ww and wr lead from a commit to a begin, rw from a begin to a
commit. Of two *rivals*, which appended to one key what nobody read, either commits before the other begins. Which of
the two is a choice, so this is no mere search for a cycle:

- A cycle of points refutes. Without rivals, no cycle is enough: any order that follows the edges will do.
- Choices that the points force are made, until none is forced or a cycle appears.
- That is not complete: let p, q be rivals, and a, b be rivals, and each of p, q overlap each of a, b. Nothing is
  forced, yet two that follow each other cannot both overlap two that follow each other. So the rest is searched.

>>> overlap = [(i, j) for i in (0, 1) for j in (2, 3)]  # write skew, each with each
>>> clash(4, [], [*overlap, *((j, i) for i, j in overlap)], [{0, 1}, {2, 3}])
Clash(transactions=(0, 1, 2, 3), sure=True)

Below it, directed graphs as lists of edges: strong components, short cycles, short paths.

>>> short_cycle(4, [(0, 1), (1, 2), (2, 0), (2, 3)])
[1, 2, 0]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Edge = tuple[int, int]


def components(n: int, edges: Sequence[Edge]) -> npt.NDArray[np.int32]:
    """The number of the strong component of each of n nodes."""
    if not edges:
        return np.arange(n, dtype=np.int32)
    tail, head = np.array(edges).T
    graph = coo_array((np.ones(len(tail), np.int8), (tail, head)), (n, n))
    component: npt.NDArray[np.int32] = connected_components(graph, connection="strong")[1]
    return component


def short_cycle(n: int, edges: Sequence[Edge]) -> list[int] | None:
    """A cycle that is short, or None where there is none."""
    component = components(n, edges).tolist()
    inside = [(a, b) for a, b in edges if component[a] == component[b]]
    return short_path(successors(inside), inside[0][1], inside[0][0]) if inside else None


def successors(edges: Sequence[Edge]) -> dict[int, list[int]]:
    """The nodes directly after each node."""
    after: dict[int, list[int]] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    return after


def short_path(after: dict[int, list[int]], start: int, end: int) -> list[int] | None:
    """A shortest path, ends included."""
    before = {start: start}
    queue = deque([start])
    while queue:
        v = queue.popleft()
        if v == end:
            found = [v]
            while found[-1] != start:
                found.append(before[found[-1]])
            return found[::-1]
        for u in after.get(v, ()):
            if u not in before:
                before[u] = v
                queue.append(u)
    return None


STEPS = 20_000  # begins that the search may choose


@dataclass(frozen=True)
class Clash:
    """Transactions that no snapshots explain; not `sure` where the search gave up."""

    transactions: tuple[int, ...]
    sure: bool


def clash(
    n: int, strong: Sequence[Edge], weak: Sequence[Edge], rivals: Sequence[set[int]], steps: int = STEPS
) -> Clash | None:  # fmt: skip
    """Judge n transactions with their ww and wr edges, their rw edges, and the rivals of each key; None: all is well.

    Strong components of the transactions can be explained one after the other, so rivals in different ones are no
    choice, and what is in no cycle is left out.
    """
    component = components(n, [*strong, *weak])
    crowded = np.bincount(component, minlength=1)[component] > 1 if n else np.zeros(0, bool)
    home: list[int] = component.tolist()
    points = [(v, n + v) for v in np.flatnonzero(crowded).tolist()]
    points += [(n + a, b) for a, b in strong if home[a] == home[b]]
    points += [(a, n + b) for a, b in weak if home[a] == home[b]]
    groups: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(rivals):
        for v in sorted(group):
            if crowded[v]:
                groups.setdefault((number, home[v]), []).append(v)
    while (cycle := short_cycle(2 * n, points)) is None:
        forced, free = _choices(n, points, groups.values())
        more = forced.difference(points)
        if not more:
            return _searched(n, points, free, home, steps)
        points += more
    return Clash(tuple(dict.fromkeys(v % n for v in cycle)), sure=True)


def _choices(n: int, points: Sequence[Edge], groups: Iterable[Sequence[int]]) -> tuple[set[Edge], set[Edge]]:
    """Who must commit before which rival begins, and the pairs of whom nothing says who is first.

    Who begins before its rival commits is the first of them; where both do, the two edges are a cycle.
    """
    pairs = {pair for group in groups for pair in combinations(group, 2)}
    bit = {n + v: 1 << at for at, v in enumerate(sorted({v for pair in pairs for v in pair}))}
    reached = _reached(points, bit) if pairs else {}
    forced: set[Edge] = set()
    free: set[Edge] = set()
    for a, b in pairs:
        first, second = reached[a] & bit[n + b], reached[b] & bit[n + a]
        forced |= ({(n + a, b)} if first else set()) | ({(n + b, a)} if second else set())
        if not first and not second:
            free.add((a, b))
    return forced, free


def _reached(points: Sequence[Edge], bit: dict[int, int]) -> dict[int, int]:
    """The bits of the points that each point leads to, its own included; there must be no cycle."""
    after = successors(points)
    found: dict[int, int] = {}
    for v in TopologicalSorter(after).static_order():  # what comes after a point is visited before it
        found[v] = bit.get(v, 0)
        for u in after.get(v, ()):
            found[v] |= found[u]
    return found


def _searched(n: int, points: Sequence[Edge], free: set[Edge], home: Sequence[int], steps: int) -> Clash | None:
    """Look for an order of the free pairs, one strong component after the other."""
    for number in sorted({home[a] for a, _ in free}):
        pairs = [(a, b) for a, b in free if home[a] == number]
        kept = sorted({v for pair in pairs for v in pair})
        fits, steps = _Orders(n, points, kept, pairs).exists(steps)
        if not fits:
            everyone = tuple(v for v in range(n) if home[v] == number)
            return Clash(everyone, sure=steps > 0)
    return None


class _Orders:
    """Orders of the begins and commits of a few transactions, with everything that the other points demand of them.

    The others need not be ordered: an order of these points that contains every path between them adds no cycle.
    Sets of points are bits: the begin of the i-th is bit i, its commit bit k + i.
    """

    def __init__(self, n: int, points: Sequence[Edge], kept: Sequence[int], pairs: Iterable[Edge]) -> None:
        self.k = len(kept)
        places = [*kept, *(n + v for v in kept)]
        reached = _reached(points, {place: 1 << at for at, place in enumerate(places)})
        self.needs = [0] * len(places)
        for at, place in enumerate(places):
            for later in range(len(places)):
                if later != at and reached[place] >> later & 1:
                    self.needs[later] |= 1 << at
        number = {v: i for i, v in enumerate(kept)}
        self.rivals = [0] * self.k
        for a, b in pairs:
            self.rivals[number[a]] |= 1 << number[b]
            self.rivals[number[b]] |= 1 << number[a]

    def exists(self, steps: int) -> tuple[bool, int]:
        """Whether there is such an order, and the steps left: with none left, nobody knows."""
        everything = (1 << 2 * self.k) - 1
        stack = [self._advanced(0)]
        seen = set(stack)
        while stack and steps > 0:
            past = stack.pop()
            if past == everything:
                return True, steps
            for i in range(self.k):
                if self._may_begin(i, past):
                    steps -= 1
                    after = self._advanced(past | 1 << i)
                    if after not in seen:
                        seen.add(after)
                        stack.append(after)
        return False, steps

    def _may_begin(self, i: int, past: int) -> bool:
        running = past & ~(past >> self.k) & ((1 << self.k) - 1)
        return not past >> i & 1 and not self.needs[i] & ~past and not self.rivals[i] & running

    def _advanced(self, past: int) -> int:
        """With all that can only help: a commit as soon as it may be; a begin that keeps no rival waiting, as all its
        rivals are done or as its commit can follow at once.
        """
        before = -1
        while before != past:
            before = past
            for i in range(self.k):
                end = 1 << self.k + i
                if past >> i & 1:
                    if not past & end and not self.needs[self.k + i] & ~past:
                        past |= end
                elif self._may_begin(i, past):
                    if not self.needs[self.k + i] & ~(past | 1 << i):
                        past |= end | 1 << i
                    elif not self.rivals[i] & ~(past >> self.k):
                        past |= 1 << i
        return past

"""Directed graphs as lists of edges: strong components, short cycles, short paths.

>>> short_cycle(4, [(0, 1), (1, 2), (2, 0), (2, 3)])
[1, 2, 0]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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

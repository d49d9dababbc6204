"""The compiled loops of the replay: an order of the nodes by a heap, and the times by a walk along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit

Int64s = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def children(n: int, source: Int64s, target: Int64s) -> tuple[Any, Any]:
    """Edges as compressed rows: the numbers of the edges that leave each node."""
    at = np.zeros(n + 1, np.int64)
    for u in source:
        at[u + 1] += 1
    for i in range(n):
        at[i + 1] += at[i]
    edge = np.empty(len(source), np.int64)
    free = at[:n].copy()
    for i in range(len(source)):
        edge[free[source[i]]] = i
        free[source[i]] += 1
    return at, edge


@njit(cache=True, nogil=True)
def _push(heap: Int64s, size: int, item: int) -> int:
    i = size
    heap[i] = item
    while i > 0 and heap[(i - 1) // 2] > heap[i]:
        heap[(i - 1) // 2], heap[i] = heap[i], heap[(i - 1) // 2]
        i = (i - 1) // 2
    return size + 1


@njit(cache=True, nogil=True)
def _pop(heap: Int64s, size: int) -> int:
    size -= 1
    heap[0] = heap[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return size
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[i] <= heap[child]:
            return size
        heap[i], heap[child] = heap[child], heap[i]
        i = child


@njit(cache=True, nogil=True)
def linear(n: int, source: Int64s, target: Int64s, by_turn: Int64s) -> tuple[Any, Any]:
    """All nodes, none before what it depends on, otherwise in the turn given; and how many wait still, in a cycle.

    `by_turn` lists the nodes in the order wanted. The second array counts, for nodes never reached, what they miss.
    """
    at, edge = children(n, source, target)
    missing = np.zeros(n, np.int64)
    for v in target:
        missing[v] += 1
    turn = np.empty(n, np.int64)
    for i in range(n):
        turn[by_turn[i]] = i
    heap, size = np.empty(n, np.int64), 0
    for v in range(n):
        if missing[v] == 0:
            size = _push(heap, size, turn[v])
    order, done = np.empty(n, np.int64), 0
    while size:
        v = by_turn[heap[0]]
        size = _pop(heap, size)
        order[done] = v
        done += 1
        for j in range(at[v], at[v + 1]):
            child = target[edge[j]]
            missing[child] -= 1
            if missing[child] == 0:
                size = _push(heap, size, turn[child])
    return order[:done], missing


@njit(cache=True, nogil=True)
def lane_edges(order: Int64s, lane: Int64s, lanes: int) -> tuple[Any, Any]:
    """An edge from each node to the next one of its lane; lane -1 is no lane."""
    last = np.full(lanes, -1, np.int64)
    source, target = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    count = 0
    for v in order:
        if lane[v] < 0:
            continue
        if last[lane[v]] >= 0:
            source[count], target[count] = last[lane[v]], v
            count += 1
        last[lane[v]] = v
    return source[:count], target[:count]


@njit(cache=True, nogil=True)
def walk(
    seconds: Any, at: Int64s, edge: Int64s, source: Int64s, target: Int64s, head: Int64s, following: Int64s
) -> tuple[Any, Any, Any, Any, Any]:
    """When every node is ready, starts and ends, which edge made it wait longest, and who never ended.

    Nodes with the same `head` meet: they start together, when the last of them is ready, and end together; `following`
    chains them, from the head on, -1 ending it. `seconds` counts for heads.
    """
    n = len(head)
    missing = np.zeros(n, np.int64)
    for v in target:
        missing[head[v]] += 1
    ready, start, end = np.zeros(n), np.zeros(n), np.zeros(n)
    because = np.full(n, -1, np.int64)
    stack, size = np.empty(n, np.int64), 0
    stuck = np.ones(n, np.bool_)
    for v in range(n):
        if head[v] == v and missing[v] == 0:
            stack[size] = v
            size += 1
    while size:
        size -= 1
        first = stack[size]
        begin, member = 0.0, first
        while member >= 0:
            begin = max(begin, ready[member])
            member = following[member]
        finish = begin + seconds[first]
        member = first
        while member >= 0:
            start[member], end[member] = begin, finish
            stuck[member] = False
            for j in range(at[member], at[member + 1]):
                child = target[edge[j]]
                if because[child] < 0 or finish > ready[child]:
                    ready[child], because[child] = finish, edge[j]
                missing[head[child]] -= 1
                if missing[head[child]] == 0:
                    stack[size] = head[child]
                    size += 1
            member = following[member]
    return ready, start, end, because, stuck

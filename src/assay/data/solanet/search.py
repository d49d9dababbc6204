"""Every point of a part looks for nearer neighbours in another part, or in a whole group of them.

A search in one part is best-first over that part's finished graph. It keeps within what can matter: a node is expanded
if it is nearer than the point's worst neighbour so far, or among the few nearest seen. It begins at what the point's
own neighbours found there, so points are searched in an order in which one of those came before.

A group of parts is searched through its links: lists that were merged in earlier rounds lead from a part into the
others of its group. All points take a step at once, so a step asks each owner once for all rows that it needs.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.data.vectors.kernels import enter, offer, squared
from assay.sim.compiled import njit
from assay.sim.random import below, bits

HITS = 32  # of what a point found in a part, kept to begin others' searches with
ASKED, TOLD = 4, 4  # neighbours that a point asks where to begin, and what each of them tells
FIRST = 16  # the first of a component tries one place of so many, or all that follow it would begin in a wrong cluster
SEEN = 2048  # places of a point's table of candidates seen
_KNUTH = np.uint32(2654435761)


@njit(cache=True, nogil=True)
def walk_order(near):
    """All points, breadth first along the graph: each but the first of its component follows one that lists it."""
    n = len(near)
    order, known = np.empty(n, np.int32), np.zeros(n, np.bool_)
    size = done = 0
    for root in range(n):
        if not known[root]:
            known[root], order[size] = True, root
            size += 1
        while done < size:
            for v in near[order[done]]:
                if v >= 0 and not known[v]:
                    known[v], order[size] = True, v
                    size += 1
            done += 1
    return order


@njit(cache=True, nogil=True)
def search_part(order, mine, near, back, ids, far, fresh, rows, graph, first, hits, breadth, narrow, random, word):
    """Search one part for all points in this order; its rows are numbers `first`, … in the lists. Distances computed.

    `near` and `back` are the points' own graph and those who list them (what was searched is in `hits`); lists, and
    what is new in them, are updated.
    """
    seen = np.zeros(len(rows), np.int32)
    pool, pool_far, done = np.empty(breadth, np.int32), np.empty(breadth, np.float32), np.zeros(breadth, np.bool_)
    first_random = max(4 * random, len(rows) // FIRST)
    begin = np.empty(2 * ASKED * TOLD + first_random, np.int32)
    computed = 0
    for step in range(len(order)):
        u = order[step]
        size = _beginnings(u, near, back, hits, begin)
        for r in range(random if size else first_random):
            begin[size % len(begin)] = below(bits(word, np.uint64(u) * np.uint64(64) + np.uint64(r)), len(rows))
            size = min(size + 1, len(begin))
        count = nearest = 0
        for i in range(size):
            v = begin[i]
            if seen[v] != step + 1:
                seen[v] = step + 1
                d = squared(mine[u], rows[v])
                computed += 1
                offer(ids, far, fresh, u, first + v, d)
                _, count = enter(pool, pool_far, done, count, v, d)
        while True:
            while nearest < count and done[nearest]:
                nearest += 1
            if nearest == count or (nearest >= narrow and pool_far[nearest] >= far[u, -1]):
                break
            done[nearest] = True
            for v in graph[pool[nearest]]:
                if v >= 0 and seen[v] != step + 1:
                    seen[v] = step + 1
                    d = squared(mine[u], rows[v])
                    computed += 1
                    offer(ids, far, fresh, u, first + v, d)
                    at, count = enter(pool, pool_far, done, count, v, d)
                    nearest = min(nearest, at)
        for h in range(min(HITS, count)):
            hits[u, h] = pool[h]
    return computed


@njit(cache=True, nogil=True)
def _beginnings(u, near, back, hits, begin):
    """What the first neighbours found that were searched before u; how many."""
    size = 0
    for lists in (near, back):
        asked = 0
        for w in lists[u]:
            if w >= 0 and hits[w, 0] >= 0 and asked < ASKED:
                asked += 1
                for h in range(TOLD):
                    if hits[w, h] >= 0:
                        begin[size] = hits[w, h]
                        size += 1
    return size


@njit(cache=True, nogil=True)
def follow(points, places, lists, low, high, base, table, to_point, to_node):
    """Where the lists at `places` lead each point to, outside [low, high): pairs not met before; how many.

    `table` remembers, for points `base`, …, which nodes were met; a full one forgets, and costs only repeats.
    """
    count, mask = 0, np.uint32(table.shape[1] - 1)
    for i in range(len(points)):
        known = table[points[i] - base]
        for v in lists[places[i]]:
            if v < 0 or low <= v < high:
                continue
            at = (np.uint32(v) * _KNUTH) >> np.uint32(8) & mask
            for _ in range(16):
                if known[at] < 0 or known[at] == v:
                    break
                at = (at + np.uint32(1)) & mask
            if known[at] != v:
                known[at] = v
                to_point[count], to_node[count] = points[i], v
                count += 1
    return count


@njit(cache=True, nogil=True)
def judge(points, nodes, places, mine, rows, ids, far, fresh, kept):
    """Offer each pair's node to its point; `kept` says which went in. How many did."""
    went = 0
    for i in range(len(points)):
        u = points[i]
        kept[i] = offer(ids, far, fresh, u, nodes[i], squared(mine[u], rows[places[i]]))
        went += kept[i]
    return went


@njit(cache=True, nogil=True)
def reverse(near, width):
    """Some of those who list each point, -1 where there are no more."""
    n = len(near)
    back, count = np.full((n, width), -1, np.int32), np.zeros(n, np.int32)
    for u in range(n):
        for v in near[u]:
            if v >= 0 and count[v] < width:
                back[v, count[v]] = u
                count[v] += 1
    return back

"""Sharing out: items into bins so that no bin is much fuller than the others, and messages into rounds.

Everything here is deterministic: of equals the first is taken, so that all ranks of a job that pack the same items
come to the same packing without talking.

- Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 1969 (longest first).
- Karmarkar, Karp, "The differencing method of set partitioning", Berkeley 1982.
- König, "Über Graphen und ihre Anwendung", Math. Ann. 1916 (as many rounds as the busiest has messages).

>>> lpt([5, 4, 3, 3, 3], bins=2).tolist()  # 5 + 3 beside 4 + 3 + 3
[0, 1, 1, 0, 1]
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit

Ints = NDArray[np.int64]


def lpt(weights: ArrayLike, bins: int, most: int = 0) -> Ints:
    """The bin of each item, heaviest first into the lightest bin; at most `most` items a bin (0: any number).

    >>> lpt([9, 1, 1, 1], bins=2, most=2).tolist()
    [0, 1, 1, 0]

    Raises:
        ValueError: more items than places.
    """
    given = np.asarray(weights, np.float64)
    if most and len(given) > bins * most:
        raise ValueError(f"{len(given)} items do not go into {bins} bins of {most}")
    return longest_first(given, np.argsort(-given, kind="stable"), bins, most or len(given))


@njit(cache=True, nogil=True)
def longest_first(weights: NDArray[np.float64], order: Ints, bins: int, most: int) -> Ints:
    """As `lpt`, the items in this order."""
    found = np.empty(len(weights), np.int64)
    full, count = np.zeros(bins), np.zeros(bins, np.int64)
    for item in order:
        best = -1
        for place in range(bins):
            if count[place] < most and (best < 0 or full[place] < full[best]):
                best = place
        found[item] = best
        full[best] += weights[item]
        count[best] += 1
    return found


def snake(weights: ArrayLike, bins: int) -> Ints:
    """The bin of each item, dealt out by weight: forwards, backwards, forwards. Bins get equally many.

    >>> snake([8, 7, 6, 5, 4, 3], bins=3).tolist()
    [0, 1, 2, 2, 1, 0]
    """
    order = np.argsort(-np.asarray(weights, np.float64), kind="stable")
    turn, place = np.divmod(np.arange(len(order)), bins)
    found = np.empty(len(order), np.int64)
    found[order] = np.where(turn % 2 == 0, place, bins - 1 - place)
    return found


def karmarkar_karp(weights: ArrayLike, bins: int) -> Ints:
    """The bin of each item by differencing: the two most uneven partial packings are joined, heavy ends to light ones.

    >>> karmarkar_karp([8, 7, 6, 5, 4], bins=2).tolist()  # 8 + 6 beside 7 + 5 + 4
    [1, 0, 1, 0, 0]
    """
    given = np.asarray(weights, np.float64)
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for item, weight in enumerate(given):
        parts: list[tuple[float, list[int]]] = [(float(weight), [item])] + [(0.0, [])] * (bins - 1)
        heapq.heappush(heap, (-float(weight), item, parts))
    number = len(given)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, x + y) for (a, x), (b, y) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], number, joined))
        number += 1
    found = np.empty(len(given), np.int64)
    for place, (_, items) in enumerate(heap[0][2] if heap else []):
        found[items] = place
    return found


@njit(cache=True, nogil=True)
def replicas(load: NDArray[np.float64], total: int) -> Ints:
    """How many copies of each expert fill `total` places: each further one to that with the most load a copy (EPLB).

    >>> replicas(np.array([9.0, 4.0, 2.0]), 5).tolist()
    [3, 1, 1]
    """
    count = np.ones(len(load), np.int64)
    for _ in range(total - len(load)):
        best = 0
        for e in range(1, len(load)):
            if load[e] / count[e] > load[best] / count[best]:
                best = e
        count[best] += 1
    return count


@njit(cache=True, nogil=True)
def edge_colour(senders: Ints, receivers: Ints, nodes: int) -> Ints:
    """A round for each message so that in a round nobody sends twice or receives twice; rounds are as few as can be.

    That is as many as the busiest sender or receiver has messages. Where the rounds that are free at the two ends of a
    message differ, those two rounds are exchanged along the path that is in the way; the path cannot come back, since
    senders and receivers alternate on it.

    >>> edge_colour(np.array([0, 0, 1, 1]), np.array([1, 2, 1, 2]), 3).tolist()
    [1, 0, 0, 1]
    """
    busy_out, busy_in = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for m in range(len(senders)):
        busy_out[senders[m]] += 1
        busy_in[receivers[m]] += 1
    rounds = max(busy_out.max(), busy_in.max()) if nodes > 0 else 0
    out, into = np.full((nodes, rounds), -1, np.int64), np.full((nodes, rounds), -1, np.int64)
    found = np.empty(len(senders), np.int64)
    for m in range(len(senders)):
        s, r = senders[m], receivers[m]
        a, b = 0, 0
        while out[s, a] >= 0:
            a += 1
        while into[r, b] >= 0:
            b += 1
        if a != b:
            _exchange(found, senders, receivers, out, into, r, a, b)
        found[m] = a
        out[s, a] = m
        into[r, a] = m
    return found


@njit(cache=True, nogil=True)
def _exchange(found: Ints, senders: Ints, receivers: Ints, out: Ints, into: Ints, r: int, a: int, b: int) -> None:
    """Make round `a` free at receiver `r`, where `b` is: exchange the two along the path that begins there."""
    path = [np.int64(0) for _ in range(0)]
    node, receives, colour = r, True, a
    while True:
        m = into[node, colour] if receives else out[node, colour]
        if m < 0:
            break
        path.append(m)
        node = senders[m] if receives else receivers[m]
        receives = not receives
        colour = b if colour == a else a
    for m in path:
        out[senders[m], found[m]] = -1
        into[receivers[m], found[m]] = -1
    for m in path:
        found[m] = b if found[m] == a else a
        out[senders[m], found[m]] = m
        into[receivers[m], found[m]] = m

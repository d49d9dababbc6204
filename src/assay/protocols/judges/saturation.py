"""Orders of reads and writes as clocks, and the orders that they force: the compiled core of the causal judges.

Every process is a chain, so the past of an operation is, per process, how many of its operations lie in it: a *clock*.
`clocks` computes them along the edges. `force` then asks what a set of readers implies: a write before a read, to its
key, must lie before the write that was read. Repeated until nothing new is forced or a cycle appears, this decides
whether the readers' views exist (Bouajjani, Enea, Guerraoui and Hamza, On verifying causal consistency, POPL 2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.protocols.judges.reads_from import INITIAL, NO_READ, Ints, ReadsFrom
from assay.sim.compiled import njit

Array = Any  # an int64 array, in compiled code and outside


def index(rf: ReadsFrom) -> tuple[Ints, Ints]:
    """All writes as sorted codes of (key, process, place), and their nodes: `last_write` searches them."""
    nodes = np.flatnonzero(rf.writes)
    codes = _code(rf.key[nodes], rf.process[nodes], rf.place[nodes], rf.processes, len(rf) + 1)
    order = np.argsort(codes, kind="stable")
    return codes[order].astype(np.int64), nodes[order].astype(np.int64)


@njit(cache=True)
def _code(key: Any, process: Any, place: Any, processes: Any, span: Any) -> Any:
    return (key * processes + process) * span + place


@njit(cache=True)
def last_write(codes: Array, nodes: Array, key: int, process: int, clock: int, processes: int, span: int) -> int:
    """The last write of a process to a key among its first `clock` operations, or -1."""
    low = _code(key, process, 0, processes, span)
    at = np.searchsorted(codes, low + clock) - 1
    return nodes[at] if at >= 0 and codes[at] >= low else -1


@njit(cache=True)
def clocks(process: Array, place: Array, tails: Array, heads: Array, processes: int) -> tuple[Array, bool]:
    """Each node's clock (itself included) along chains and edges tail → head; and whether there is no cycle."""
    n = len(process)
    degree = np.zeros(n, np.int64)
    first = np.zeros(n + 1, np.int64)
    for e in range(len(tails)):
        first[tails[e] + 1] += 1
        degree[heads[e]] += 1
    for v in range(n):
        first[v + 1] += first[v]
        if place[v] > 0:
            degree[v] += 1
    fill = first[:-1].copy()
    targets = np.empty(len(tails), np.int64)
    for e in range(len(tails)):
        targets[fill[tails[e]]] = heads[e]
        fill[tails[e]] += 1
    clock = np.zeros((n, processes), np.int64)
    queue = np.empty(n, np.int64)
    begin = end = 0
    for v in range(n):
        if degree[v] == 0:
            queue[end] = v
            end += 1
    while begin < end:
        v = queue[begin]
        begin += 1
        clock[v, process[v]] = place[v] + 1
        for e in range(first[v], first[v + 1] + 1):
            if e < first[v + 1]:
                u = targets[e]
            elif v + 1 < n and process[v + 1] == process[v]:
                u = v + 1
            else:
                continue
            for p in range(processes):
                if clock[v, p] > clock[u, p]:
                    clock[u, p] = clock[v, p]
            degree[u] -= 1
            if degree[u] == 0:
                queue[end] = u
                end += 1
    return clock, end == n


@njit(cache=True)
def force(
    readers: Array, clock: Array, process: Array, place: Array, key: Array, source: Array,
    codes: Array, nodes: Array, processes: int, known: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Edges that the readers force: (earlier write, write that was read, reader); a read of the initial value that
    has a write before it gives (that write, -1, reader). With `known`, also edges that the clocks already have.
    """
    span = len(process) + 1
    tails = [np.int64(0) for _ in range(0)]
    heads = [np.int64(0) for _ in range(0)]
    whys = [np.int64(0) for _ in range(0)]
    for r in readers:
        s = source[r]
        if s == NO_READ:
            continue
        for p in range(processes):
            seen = clock[r, p] - 1 if p == process[r] else clock[r, p]  # a compare-and-set does not read itself
            w = last_write(codes, nodes, key[r], p, seen, processes, span)
            if w < 0 or w == s:
                continue
            if s == INITIAL:
                tails.append(np.int64(w))
                heads.append(np.int64(-1))
                whys.append(r)
            elif s >= 0 and (known or clock[s, p] < place[w] + 1):
                tails.append(np.int64(w))
                heads.append(np.int64(s))
                whys.append(r)
    return np.array(tails), np.array(heads), np.array(whys)


@njit(cache=True)
def follow(
    readers: Array, clock: Array, process: Array, place: Array, key: Array, source: Array,
    codes: Array, nodes: Array, processes: int,
) -> tuple[Array, Array]:  # fmt: skip
    """In one order for all, a write after the write that was read comes after the read: edges (read, later write)."""
    span = len(process) + 1
    tails = [np.int64(0) for _ in range(0)]
    heads = [np.int64(0) for _ in range(0)]
    for r in readers:
        s = source[r]
        if s == NO_READ or s < INITIAL:
            continue
        for p in range(processes):
            if p == process[r]:  # its later writes follow it anyway, and an earlier one is `force`'s business
                continue
            low = np.searchsorted(codes, _code(key[r], p, 0, processes, span))
            high = np.searchsorted(codes, _code(key[r], p, span - 1, processes, span))
            while low < high:  # the first of p's writes to the key that lies after the one read
                middle = (low + high) // 2
                w = nodes[middle]
                after = w != s and (s == INITIAL or clock[w, process[s]] > place[s])
                if after:
                    high = middle
                else:
                    low = middle + 1
            end = np.searchsorted(codes, _code(key[r], p, span - 1, processes, span))
            if low < end and clock[nodes[low], process[r]] <= place[r]:
                tails.append(r)
                heads.append(nodes[low])
    return np.array(tails), np.array(heads)


@njit(cache=True)
def missed(
    process: Array, place: Array, key: Array, source: Array, author: Array, clock: Array, processes: int, writes: int
) -> tuple[int, int, int]:  # fmt: skip
    """A read that misses what it should know: (the read, a read known to it that saw a newer value, one known to the
    author of that value which saw what the first read returned, or -1), or (-1, -1, -1).

    Nodes are reads alone, `author` the last read that the author of the value had done before, or -1.
    """
    n = len(process)
    codes = np.empty(n, np.int64)
    for v in range(n):
        codes[v] = _code(key[v], process[v], place[v], processes, n + 1)
    order = np.argsort(codes)
    codes = codes[order]
    earliest = np.full((writes, processes), n, np.int64)  # where each process first read a write
    newest = np.zeros((n, processes), np.int64)  # what the authors of all values that a row showed so far had read
    for at in range(n):
        v = order[at]
        if source[v] >= 0 and place[v] < earliest[source[v], process[v]]:
            earliest[source[v], process[v]] = place[v]
        same = at > 0 and key[order[at - 1]] == key[v] and process[order[at - 1]] == process[v]
        for p in range(processes):
            newest[at, p] = newest[at - 1, p] if same else 0
            if author[v] >= 0 and clock[author[v], p] > newest[at, p]:
                newest[at, p] = clock[author[v], p]
    for v in range(n):
        if place[v] == 0:
            continue
        for p in range(processes):
            low = _code(key[v], p, 0, processes, n + 1)
            begin = np.searchsorted(codes, low)
            end = np.searchsorted(codes, low + clock[v - 1, p])
            if source[v] == INITIAL:
                for at in range(begin, end):
                    if source[order[at]] >= 0:
                        return v, order[at], -1
            elif source[v] >= 0 and begin < end:
                for q in range(processes):
                    if earliest[source[v], q] < newest[end - 1, q]:
                        return v, *_culprit(order, begin, end, author, clock, q, earliest[source[v], q], process, place)
    return -1, -1, -1


@njit(cache=True)
def _culprit(
    order: Array, begin: int, end: int, author: Array, clock: Array, q: int, spot: int, process: Array, place: Array
) -> tuple[int, int]:  # fmt: skip
    """The first read of the row whose author knew read number `spot` of process q; and that read."""
    for at in range(begin, end):
        v = order[at]
        if author[v] >= 0 and clock[author[v], q] > spot:
            for u in range(len(process)):
                if process[u] == q and place[u] == spot:
                    return v, u
    return -1, -1

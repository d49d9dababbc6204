"""Search in a graph of near neighbours, pruning its edges, and building it: compiled, over flat arrays.

Distances are squared Euclidean. Rows of a graph hold neighbours' numbers, -1 where there are no more.

- Subramanya et al., "DiskANN", NeurIPS 2019: beam search and RobustPrune.
- Dong, Moses and Li, "Efficient k-nearest neighbor graph construction for generic similarity measures", WWW 2011.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.vectors.kernels import enter, offer, squared
from assay.sim.compiled import njit
from assay.sim.random import below, bits, key

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def brute_force(vectors: Floats, queries: Floats, k: int, block: int = 1024) -> tuple[Ids, Floats]:
    """The k nearest rows of each query, exactly: (numbers, squared distances), nearest first, ties by number.

    >>> ids, _ = brute_force(np.array([[0.0], [5.0], [6.0]], np.float32), np.array([[5.2]], np.float32), 2)
    >>> ids.tolist()
    [[1, 2]]
    """
    k = min(k, len(vectors))
    ids, far = np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.float32)
    wide = vectors.astype(np.float64)
    own = np.einsum("ij,ij->i", wide, wide)
    for start in range(0, len(queries), block):
        some = queries[start : start + block].astype(np.float64)
        all_far = np.maximum(own - 2 * some @ wide.T + (some**2).sum(axis=1)[:, None], 0)
        last = np.partition(all_far, k - 1, axis=1)[:, k - 1]
        for i, row in enumerate(all_far, start):
            near = np.flatnonzero(row <= last[i - start])  # with all that are as far as the k-th, for ties
            ids[i] = near[np.argsort(row[near], kind="stable")[:k]]
            far[i] = row[ids[i]]
    return ids, far


def beam_search(vectors: Floats, graph: Ids, query: Floats, entries: Ids, breadth: int) -> tuple[Ids, Floats, Ids]:
    """The `breadth` best that a best-first walk finds: (numbers, squared distances, nodes in the order expanded).

    The nearest node of the list that was not expanded is expanded next: its neighbours join the list, and the list is
    cut to the `breadth` nearest. The walk ends when all of the list are expanded.

    >>> line = np.arange(6, dtype=np.float32)[:, None]
    >>> path = np.array([[1, -1], [0, 2], [1, 3], [2, 4], [3, 5], [4, -1]], np.int32)
    >>> beam_search(line, path, np.array([4.2], np.float32), np.array([0], np.int32), 2)[0].tolist()
    [4, 5]
    """
    if breadth < 1 or not len(entries):
        raise ValueError(f"a list of {breadth} from {len(entries)} entries; one or more of each expected")
    seen = np.zeros(len(vectors), np.bool_)
    ids, far, count, walked = _beam(vectors, graph, query.astype(np.float32), entries, breadth, seen)
    return ids[:count], far[:count], walked


def robust_prune(vectors: Floats, point: Floats, candidates: Ids, alpha: float, degree: int) -> Ids:
    """At most `degree` of the candidates: the nearest, then the nearest of those not better reached through one chosen.

    A candidate c' is dropped for a chosen c where alpha * d(c, c') <= d(point, c'), in distances, not squares.

    >>> line = np.array([[1.0], [2.0], [-1.5]], np.float32)
    >>> robust_prune(line, np.array([0.0], np.float32), np.arange(3, dtype=np.int32), 1.2, 3).tolist()
    [0, 2]
    """
    unique = np.unique(candidates).astype(np.int32)
    some = np.ascontiguousarray(vectors[unique], np.float32)
    far = ((some - point) ** 2).sum(axis=1).astype(np.float32)
    order = np.argsort(far, kind="stable")
    kept: Ids = unique[prune(some, far, order, np.float32(alpha * alpha), np.zeros(len(some), np.bool_), degree)]
    return kept


def nn_descent(
    vectors: Floats, k: int, rounds: int = 15, sample: float = 1.0, stop: float = 0.001, seed: int = 0
) -> tuple[Ids, Floats]:
    """An approximate graph of the k nearest, (numbers, squared distances): neighbours of neighbours are neighbours.

    Each round joins every node's new neighbours, forward and reverse, with each other and with the old ones; it ends
    when fewer than `stop` of all entries changed. The same seed gives the same graph.

    >>> ids, far = nn_descent(np.arange(50, dtype=np.float32)[:, None], 2)
    >>> sorted(ids[10].tolist())
    [9, 11]
    """
    n = len(vectors)
    if not 1 <= k < n:
        raise ValueError(f"{k} neighbours among {n} rows; 1 to {n - 1} expected")
    rows = np.ascontiguousarray(vectors, np.float32)
    word = np.uint64(key(seed, "nn-descent", n, k))
    ids, far, fresh = random_graph(rows, k, word)
    most = max(int(sample * k), 1)
    for turn in range(rounds):
        if _join(rows, ids, far, fresh, most, word + np.uint64(turn + 1)) < stop * n * k:
            break
    return ids, far


@njit(cache=True)
def _beam(vectors, graph, query, entries, breadth, seen):
    ids, far, done = np.empty(breadth, np.int32), np.empty(breadth, np.float32), np.empty(breadth, np.bool_)
    walked = np.empty(len(vectors), np.int32)
    count = steps = 0
    for v in entries:
        if not seen[v]:
            seen[v] = True
            _, count = enter(ids, far, done, count, v, squared(vectors[v], query))
    while True:
        at = 0
        while at < count and done[at]:
            at += 1
        if at == count:
            return ids, far, count, walked[:steps].copy()
        u = ids[at]
        done[at] = True
        walked[steps] = u
        steps += 1
        for v in graph[u]:
            if v >= 0 and not seen[v]:
                seen[v] = True
                _, count = enter(ids, far, done, count, v, squared(vectors[v], query))


@njit(cache=True)
def prune(vectors, far, order, alpha_squared, keep, most):
    """RobustPrune of rows by their distances, in a given order; `keep` marks rows that stay whatever is nearer."""
    alive = np.ones(len(order), np.bool_)
    kept = np.empty(most, np.int32)
    count = 0
    owed = 0
    for i in range(len(order)):
        owed += keep[order[i]]
    for i in range(len(order)):
        a = order[i]
        if not keep[a] and (not alive[i] or count + owed >= most):
            continue
        kept[count] = a
        count += 1
        owed -= keep[a]
        for j in range(i + 1, len(order)):
            b = order[j]
            if alive[j] and alpha_squared * squared(vectors[a], vectors[b]) <= far[b]:
                alive[j] = False
    return kept[:count]


@njit(cache=True, nogil=True)
def random_graph(rows, k, word):
    """Lists of k different random others, (numbers, squared distances ascending, all marked as new)."""
    n = len(rows)
    ids, far, fresh = np.empty((n, k), np.int32), np.empty((n, k), np.float32), np.empty((n, k), np.bool_)
    draw = np.uint64(0)
    for u in range(n):
        count = 0
        while count < k:
            v = np.int32(below(bits(word, draw), n))
            draw += np.uint64(1)
            known = v == u
            for j in range(count):
                known = known or ids[u, j] == v
            if not known:
                _, count = enter(ids[u], far[u], fresh[u], count, v, squared(rows[u], rows[v]))
    fresh[:] = True
    return ids, far, fresh


@njit(cache=True)
def _put(lists, counts, u, v, most, word, draw):
    """Add v to u's sample of at most `most`: a full one gives way by chance, each with the same."""
    counts[u] += 1
    if counts[u] <= most:
        lists[u, counts[u] - 1] = v
    else:
        at = np.int64(below(bits(word, draw), counts[u]))
        if at < most:
            lists[u, at] = v


@njit(cache=True)
def _join(rows, ids, far, fresh, most, word):
    """One round; how many entries changed."""
    n, k = ids.shape
    new, old = np.full((n, 2 * most), -1, np.int32), np.full((n, 2 * most), -1, np.int32)
    new_count, old_count = np.zeros(n, np.int64), np.zeros(n, np.int64)
    draw = np.uint64(0)
    for u in range(n):
        taken = 0
        for j in range(k):
            v = ids[u, j]
            draw += np.uint64(2)
            if fresh[u, j]:
                if taken < most:
                    taken += 1
                    fresh[u, j] = False
                    _put(new, new_count, u, v, 2 * most, word, draw)
                    _put(new, new_count, v, u, 2 * most, word, draw + np.uint64(1))
            else:
                _put(old, old_count, u, v, 2 * most, word, draw)
                _put(old, old_count, v, u, 2 * most, word, draw + np.uint64(1))
    changed = 0
    for u in range(n):
        fresh_ones, others = min(new_count[u], 2 * most), min(old_count[u], 2 * most)
        for i in range(fresh_ones):
            a = new[u, i]
            for j in range(i + 1, fresh_ones):
                b = new[u, j]
                if a != b:
                    d = squared(rows[a], rows[b])
                    changed += offer(ids, far, fresh, a, b, d) + offer(ids, far, fresh, b, a, d)
            for j in range(others):
                b = old[u, j]
                if a != b:
                    d = squared(rows[a], rows[b])
                    changed += offer(ids, far, fresh, a, b, d) + offer(ids, far, fresh, b, a, d)
    return changed


def recall(found: Any, right: Any) -> float:
    """The share of the right neighbours that were found, row by row.

    >>> recall(np.array([[1, 2], [3, 4]]), np.array([[2, 9], [3, 4]]))
    0.75
    """
    hits = sum(len(set(a.tolist()) & set(b.tolist())) for a, b in zip(found, right, strict=True))
    return hits / max(np.asarray(right).size, 1)

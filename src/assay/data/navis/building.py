"""The first graph, in memory: Vamana, many nodes at a time on all cores, and a tree in it that reaches every node.

Subramanya et al., "DiskANN", NeurIPS 2019; nodes join in batches that double, each walking the graph that was there
before its batch. A walk from one root ends in the wrong cluster where clusters lie apart: near ones fill the lists, no
edge leads out. So walks begin where those of Malkov and Yashunin ("HNSW", TPAMI 2020) do: the graph of the first
sixteenth of all nodes, as it was before the others came, leads to the nearest of these, and that of a sixteenth of the
sixteenth to where this walk begins; the smallest is looked at whole. These graphs are the index's entrance afterwards.

Pruned graphs promise nobody that a node can be reached. Here every node but the root has a parent, whose edge to it is
never pruned; a parent is always reached before its children, so everything is.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.data.navis.entrance import BREADTH, DEGREE, ENTRIES, LOOKED, TOP, capacity
from assay.data.navis.seek import Array, _fresh
from assay.data.vectors.graph import prune
from assay.data.vectors.kernels import enter, squared
from assay.data.vectors.product import ProductCode
from assay.sim.compiled import njit
from assay.sim.random import stream

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
LARGEST = 4096  # nodes of a batch,
BATCHES = 64  # and no more than one of so many parts of all: a batch's nodes have no edges to each other
TRAINED = 10_000  # rows that the codes are trained on
LEAST_CODE = 64  # bytes: centres of long parts would be spent on telling clusters apart, and near ones be all alike
Progress = Callable[[int, int], None]


class Base(NamedTuple):
    """What an index begins with: codes and the graph. Several indexes of the same vectors can share one."""

    code: ProductCode
    codes: npt.NDArray[np.uint8]
    lists: Ids  # the degree, then the neighbours
    root: int
    parents: Ids
    levels: tuple[tuple[Ids, Ids], ...]  # of the entrance, the largest first: nodes, and edges by their places


def base(
    vectors: Floats, degree: int, breadth: int, alpha: float, seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Base:  # fmt: skip
    """The graph, the tree in it, and codes."""
    lists, root, levels = vamana(vectors, degree, breadth, alpha, seed, progress)
    return finished(vectors, lists, root, levels, seed)


def finished(vectors: Floats, lists: Ids, root: int, levels: tuple[tuple[Ids, Ids], ...], seed: int = 0) -> Base:
    """What an index begins with beside its graph: the tree, and codes of a byte for sixteen numbers, 64 or more."""
    n, width = vectors.shape
    some = np.sort(stream(seed, "navis-codes", n).permutation(n)[:TRAINED])
    parts = min(max(width // 16, LEAST_CODE), width)
    code = ProductCode.train(
        np.ascontiguousarray(vectors[some]), parts, rounds=8, centres=min(256, len(some)), seed=seed
    )
    parents = tree(lists, root)
    return Base(code, code.encode(vectors), lists, root, parents, levels)


def vamana(
    vectors: Floats, degree: int, breadth: int, alpha: float, seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> tuple[Ids, int, tuple[tuple[Ids, Ids], ...]]:  # fmt: skip
    """(lists: the degree, then the neighbours; the root, which is the node nearest to the mean; the entrance's levels).

    >>> lists, root, levels = vamana(np.arange(8, dtype=np.float32)[:, None], 4, 8, 1.2)
    >>> root, sorted(lists[7, 1 : 1 + lists[7, 0]].tolist())[-1], len(levels[0][0])
    (3, 6, 8)
    """
    n = len(vectors)
    mean = vectors[:: max(n // 10_000, 1)].mean(axis=0)
    blocks = np.array_split(vectors, -(-n // 10_000))
    root = int(np.argmin(np.concatenate([((block - mean) ** 2).sum(axis=1) for block in blocks])))
    lists = np.zeros((n, degree + 1), np.int32)
    order = stream(seed, "vamana", n).permutation(n).astype(np.int32)
    order = np.concatenate([[np.int32(root)], order[order != root]])
    cuts = _sizes(n)
    levels = _Levels(np.zeros(0, np.int32), np.empty((0, min(degree, DEGREE)), np.int32))
    done, size, bound = 1, 1, np.float32(alpha**2)
    while done < n:
        batch = order[done : min(done + size, next((cut for cut in cuts if cut > done), n))]
        found = np.zeros((len(batch), degree + 1), np.int32)
        top = int(levels.sizes[0]) if len(levels.sizes) else done
        _on_all_cores(
            [
                partial(_choose, vectors, lists, batch[part], found[part], order, top, levels, breadth, bound)
                for part in _slices(len(batch))
            ]
        )
        _reverse(vectors, lists, batch, found, bound)
        done += len(batch)
        if done in cuts:
            levels = _Levels(
                np.append(levels.sizes, np.int32(done)), np.concatenate([levels.edges, _places(lists, order[:done], n)])
            )
        size = min(2 * size, LARGEST, max(n // BATCHES, 1))
        progress(done, n)
    firsts = np.cumsum(levels.sizes) - levels.sizes
    made = [(order[:m].copy(), levels.edges[a : a + m]) for a, m in zip(firsts, levels.sizes, strict=True)]
    return lists, root, tuple(reversed(made))


class _Levels(NamedTuple):
    """Graphs of the first so many nodes of the order, the smallest first: their sizes, and their edges by place."""

    sizes: Ids
    edges: Ids


def _sizes(n: int) -> list[int]:
    """How large these graphs are.

    >>> _sizes(1_000_000), _sizes(100)
    ([244, 3906, 62500], [32])
    """
    sizes = [min(capacity(n), n)]
    while sizes[0] > TOP:
        sizes.insert(0, capacity(sizes[0]))
    return sizes


def _places(lists: Ids, nodes: Ids, n: int) -> Ids:
    """The nodes' edges among themselves, by their places, -1 where there are no more."""
    place = np.full(n, -1, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    rows = lists[nodes, : 1 + DEGREE]
    return np.where(np.arange(1, rows.shape[1]) <= rows[:, :1], place[rows[:, 1:]], -1).astype(np.int32)


def tree(lists: Ids, root: int) -> Ids:
    """Every node's parent (the root's is itself), after giving an edge to whoever cannot be reached; changes the lists.

    >>> lists = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]], np.int32)
    >>> tree(lists, 0).tolist(), lists[1].tolist()
    ([0, 0, 1], [2, 0, 2])
    """
    parents = np.full(len(lists), -1, np.int32)
    parents[root] = root
    children = np.zeros(len(lists), np.int32)
    queue = np.empty(len(lists), np.int32)
    reached = _spread(lists, parents, children, queue, root, 0)
    at = 0
    while reached < len(lists):
        while parents[at] >= 0:
            at += 1
        giver = _giver(lists, parents, children, at, queue[:reached])
        _give(lists, parents, children, giver, at)
        reached = _spread(lists, parents, children, queue, at, reached)
    return parents


@njit(cache=True)
def _spread(lists, parents, children, queue, start, reached):
    queue[reached] = start
    head, tail = reached, reached + 1
    while head < tail:
        u = queue[head]
        head += 1
        for j in range(1, 1 + lists[u, 0]):
            v = lists[u, j]
            if parents[v] < 0 and children[u] < (lists.shape[1] - 1) // 2:
                parents[v] = u
                children[u] += 1
                queue[tail] = v
                tail += 1
    return tail


@njit(cache=True)
def _giver(lists, parents, children, node, reached):
    """Who shall point to a node: a neighbour of its own that is reached and has few children, or anybody."""
    most = (lists.shape[1] - 1) // 2
    for j in range(1, 1 + lists[node, 0]):
        v = lists[node, j]
        if parents[v] >= 0 and children[v] < most:
            return np.int64(v)
    for i in range(len(reached)):
        if children[reached[-1 - i]] < most:
            return np.int64(reached[-1 - i])
    return np.int64(reached[0])


@njit(cache=True)
def _give(lists, parents, children, giver, node):
    degree, place = lists[giver, 0], 0
    for j in range(1, 1 + degree):
        if lists[giver, j] == node:
            place = j
    if place == 0 and degree < lists.shape[1] - 1:
        lists[giver, 0] = degree + 1
        place = degree + 1
    if place == 0:  # the last neighbour that is not a child gives way
        place = degree
        while parents[lists[giver, place]] == giver:
            place -= 1
    lists[giver, place] = node
    parents[node] = giver
    children[giver] += 1


@njit(cache=True, nogil=True)
def _entries(vectors, query, order, top, levels):
    """Nodes to begin at: the nearest of the smallest graph, from there the nearest that a walk in the next finds."""
    ids, far, done = np.empty(BREADTH, np.int32), np.empty(BREADTH, np.float32), np.zeros(BREADTH, np.bool_)
    count = 0
    for place in range(top):
        _, count = enter(ids, far, done, count, place, squared(vectors[order[place]], query))
    first = 0
    for level in range(1, len(levels.sizes)):
        first += levels.sizes[level - 1]
        seen = np.full(1 << 14, -1, np.int32)
        for i in range(count):
            _fresh(seen, ids[i])
        done[:] = False
        looked = 0
        while looked < LOOKED:
            at = 0
            while at < count and done[at]:
                at += 1
            if at == count:
                break
            done[at] = True
            for v in levels.edges[first + ids[at]]:
                if v >= 0 and _fresh(seen, v):
                    looked += 1
                    _, count = enter(ids, far, done, count, v, squared(vectors[order[v]], query))
    return order[ids[: min(count, ENTRIES)]]


@njit(cache=True, nogil=True)
def _walk(vectors, lists, query, entries, breadth, visited, visited_far):
    """Best-first in memory; (number of nodes expanded), which are in `visited`."""
    ids, far = np.empty(breadth, np.int32), np.empty(breadth, np.float32)
    done = np.zeros(breadth, np.bool_)
    seen = np.full(1 << 14, -1, np.int32)
    count = steps = looked = 0
    for v in entries:
        if _fresh(seen, v):
            _, count = enter(ids, far, done, count, v, squared(vectors[v], query))
    while steps < len(visited) and looked < LOOKED:
        at = 0
        while at < count and done[at]:
            at += 1
        if at == count:
            break
        u = ids[at]
        done[at] = True
        visited[steps], visited_far[steps] = u, far[at]
        steps += 1
        for j in range(1, 1 + lists[u, 0]):
            v = lists[u, j]
            if not _fresh(seen, v):
                continue
            looked += 1
            _, count = enter(ids, far, done, count, v, squared(vectors[v], query))
    return steps


@njit(cache=True, nogil=True)
def _choose(vectors, lists, batch, found, order, top, levels, breadth, alpha_squared):
    """The neighbours of some nodes, into `found`."""
    degree = lists.shape[1] - 1
    for i in range(len(batch)):
        u = batch[i]
        visited, far = np.empty(3 * breadth, np.int32), np.empty(3 * breadth, np.float32)
        entries = _entries(vectors, vectors[u], order, top, levels)
        steps = _walk(vectors, lists, vectors[u], entries, breadth, visited, far)
        near = np.argsort(far[:steps])
        some = np.empty((steps, vectors.shape[1]), np.float32)
        for s in range(steps):
            some[s] = vectors[visited[s]]
        kept = prune(some, far, near, alpha_squared, np.zeros(steps, np.bool_), degree)
        found[i, 0] = len(kept)
        for s in range(len(kept)):
            found[i, 1 + s] = visited[kept[s]]


@njit(cache=True)
def _add(vectors, lists, v, others, alpha_squared):
    """Point from v to others, too; prune where that is more than fits."""
    degree = lists.shape[1] - 1
    both = np.empty(lists[v, 0] + len(others), np.int32)
    both[: lists[v, 0]] = lists[v, 1 : 1 + lists[v, 0]]
    count = lists[v, 0]
    for u in others:
        if u != v and not (both[:count] == u).any():
            both[count] = u
            count += 1
    if count > degree:
        far, some = np.empty(count, np.float32), np.empty((count, vectors.shape[1]), np.float32)
        for i in range(count):
            some[i] = vectors[both[i]]
            far[i] = squared(some[i], vectors[v])
        kept = prune(some, far, np.argsort(far), alpha_squared, np.zeros(count, np.bool_), degree)
        lists[v, 0] = len(kept)
        for i in range(len(kept)):
            lists[v, 1 + i] = both[kept[i]]
        return
    lists[v, 0] = count
    lists[v, 1 : 1 + count] = both[:count]


@njit(cache=True, nogil=True)
def _grouped(vectors, lists, targets, sources, cuts, alpha_squared):
    for g in range(len(cuts) - 1):
        _add(vectors, lists, targets[cuts[g]], sources[cuts[g] : cuts[g + 1]], alpha_squared)


def _reverse(vectors: Floats, lists: Ids, batch: Ids, found: Array, alpha_squared: np.float32) -> None:
    lists[batch] = found
    filled = np.arange(1, lists.shape[1]) <= found[:, :1]
    targets, sources = found[:, 1:][filled], np.repeat(batch, found[:, 0])
    order = np.argsort(targets, kind="stable")
    targets, sources = targets[order], sources[order]
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(targets)) + 1, [len(targets)]])
    _on_all_cores(
        [
            partial(_grouped, vectors, lists, targets, sources, cuts[part.start : part.stop + 1], alpha_squared)
            for part in _slices(len(cuts) - 1)
        ]
    )


def _slices(count: int) -> list[slice]:
    """As many parts as there are cores; one where there is little to do."""
    cores = min(os.cpu_count() or 1, 16) if count >= 64 else 1
    cuts = np.linspace(0, count, cores + 1).astype(int).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def _on_all_cores(work: list[Callable[[], None]]) -> None:
    """Compiled work that lets go of the interpreter's lock."""
    if len(work) == 1:
        work[0]()
        return
    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(one) for one in work]:
            done.result()

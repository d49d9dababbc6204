"""Which node keeps which item's cached block: items that are asked for together lie together.

The co-occurrence graph has an edge between two items for every request that asks for both. It is cut into one part
per node in three steps: communities by label propagation with a size limit, communities packed onto nodes where their
neighbours already are, then single items moved while that keeps more co-occurrence within a node. A node's capacity
is never exceeded. Before that, the most popular items get a copy on every node, as far as a given share of the store
allows, because a head item is asked for beside everything and no cut serves it well.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from assay.sim.compiled import njit
from assay.sim.random import stream

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
NOWHERE = -1


@dataclass(frozen=True)
class Placement:
    """`stored[n, i]`: node n keeps item i's block. An item may have one copy, a copy on every node, or none."""

    stored: NDArray[np.bool_]
    size: Floats  # of each item's block, in whatever unit the capacity was given

    @property
    def nodes(self) -> int:
        """How many nodes share the items."""
        return int(self.stored.shape[0])

    @property
    def load(self) -> Floats:
        """What each node stores."""
        load: Floats = self.stored @ self.size
        return load

    def local_share(self, requests: Ints) -> float:
        """The share of a request's item bytes that its best node keeps, averaged over requests (rows of items).

        >>> two = Placement(np.array([[True, True, False], [False, False, True]]), np.ones(3))
        >>> two.local_share(np.array([[0, 1], [1, 2]]))
        0.75
        """
        size = self.size[requests]
        local = (self.stored[:, requests] * size).sum(axis=2) / size.sum(axis=1)
        return float(local.max(axis=0).mean())


def co_occurrence(requests: Ints, items: int) -> sparse.csr_array[Any]:
    """How often two items are asked for by one request: a symmetric matrix without a diagonal.

    >>> co_occurrence(np.array([[0, 1], [0, 1], [1, 2]]), 3).toarray().tolist()
    [[0, 2, 0], [2, 0, 1], [0, 1, 0]]
    """
    rows = np.repeat(np.arange(len(requests)), requests.shape[1])
    asked = sparse.csr_array((np.ones(requests.size, np.int64), (rows, requests.ravel())), (len(requests), items))
    together = (asked.T @ asked).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    return together


def by_co_occurrence(requests: Ints, size: Floats, nodes: int, capacity: float, *, head: float = 0.2) -> Placement:
    """Place items by the requests of the past; `capacity` is per node, `head` the share of it for replicated items.

    Items that no past request asked for, and the least popular where the store is too small, come last and may find no
    room: their blocks are computed when they are needed.

    >>> past = np.array([[0, 1], [2, 3], [0, 1], [3, 2]])
    >>> by_co_occurrence(past, np.ones(4), nodes=2, capacity=2.0, head=0.0).local_share(past)
    1.0
    """
    stored, popularity = _with_head(requests, size, nodes, capacity, head)
    tail = np.flatnonzero(~stored.any(axis=0))
    order = tail[np.argsort(-popularity[tail], kind="stable")]
    room = capacity - stored @ size
    kept = np.sort(order[np.cumsum(size[order]) <= room.sum()])
    graph = co_occurrence(requests, len(size))[kept][:, kept].tocsr()
    home = _partition(graph, size[kept], room)
    put = home != NOWHERE
    stored[home[put], kept[put]] = True
    return Placement(stored, size)


def by_hash(
    requests: Ints, size: Floats, nodes: int, capacity: float, *, head: float = 0.2, seed: int = 0
) -> Placement:
    """The same replicated head, and the rest spread by hash, the most popular first: what a key-value store does.

    >>> by_hash(np.array([[0, 1], [2, 3]]), np.ones(4), nodes=2, capacity=2.0, head=0.0).load.tolist()
    [2.0, 2.0]
    """
    stored, popularity = _with_head(requests, size, nodes, capacity, head)
    room = capacity - stored @ size
    tail = np.flatnonzero(~stored.any(axis=0))
    first = stream(seed, "item-hash").integers(0, nodes, len(size))
    for item in tail[np.argsort(-popularity[tail], kind="stable")]:
        for node in (first[item] + np.arange(nodes)) % nodes:  # the next node where the hash's own is full
            if size[item] <= room[node]:
                stored[node, item] = True
                room[node] -= size[item]
                break
    return Placement(stored, size)


def _with_head(
    requests: Ints, size: Floats, nodes: int, capacity: float, head: float
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The replicated head (asked for most, per byte), and how often each item was asked for.

    Copies only take what is left once every asked-for item has one home: a second copy saves a transfer, a first copy
    saves the computation.
    """
    popularity = np.bincount(requests.ravel(), minlength=len(size))
    stored = np.zeros((nodes, len(size)), np.bool_)
    spare = max(0.0, nodes * capacity - size[popularity > 0].sum()) / max(1, nodes - 1)
    ranked = np.argsort(-popularity / size, kind="stable")
    fits = np.cumsum(size[ranked]) <= min(head * capacity, spare)
    stored[:, ranked[fits & (popularity[ranked] > 0)]] = True
    return stored, popularity


def _partition(graph: sparse.csr_array[Any], size: Floats, room: Floats) -> NDArray[np.int64]:
    """A node for every item, NOWHERE if none has room."""
    arrays = graph.indptr.astype(np.int64), graph.indices.astype(np.int64), graph.data.astype(np.float64)
    limit = max(float(room.min()) / 4, float(size.max(initial=0.0)))
    community = _propagate(*arrays, size, limit, 10)
    total = np.bincount(community, size, minlength=len(size))
    members = np.lexsort((np.arange(len(size)), community, -total[community]))  # by community, the largest first
    starts = np.flatnonzero(np.diff(community[members], prepend=-1))
    home = _pack(*arrays, size, room.copy(), members, np.append(starts, len(size)))
    return np.asarray(_refine(*arrays, size, room.copy(), home, 10), np.int64)


@njit(cache=True)
def _propagate(indptr, indices, weight, size, limit, passes):
    """Label propagation: an item joins the neighbouring label it has most weight with, if that stays within limit."""
    n = len(size)
    label = np.arange(n)
    total = size.copy()
    pull = np.zeros(n)
    for _ in range(passes):
        moved = 0
        for item in range(n):
            best, most = label[item], 0.0
            for e in range(indptr[item], indptr[item + 1]):
                pull[label[indices[e]]] += weight[e]
            most = pull[best]
            for e in range(indptr[item], indptr[item + 1]):
                other = label[indices[e]]
                if pull[other] > most and total[other] + size[item] <= limit:
                    best, most = other, pull[other]
            for e in range(indptr[item], indptr[item + 1]):
                pull[label[indices[e]]] = 0.0
            if best != label[item]:
                total[label[item]] -= size[item]
                total[best] += size[item]
                label[item] = best
                moved += 1
        if moved == 0:
            break
    return label


@njit(cache=True)
def _pack(indptr, indices, weight, size, room, members, first):
    """Communities, one after the other, member by member to the node with most of their neighbours and most room."""
    nodes = len(room)
    full = room.copy()
    home = np.full(len(size), -1)
    score = np.zeros(nodes)
    for label in range(len(first) - 1):
        score[:] = 1e-9
        for m in range(first[label], first[label + 1]):
            for e in range(indptr[members[m]], indptr[members[m] + 1]):
                if home[indices[e]] >= 0:
                    score[home[indices[e]]] += weight[e]
        for node in range(nodes):  # linear deterministic greedy: affinity, discounted by how full the node is
            score[node] *= room[node] / max(full[node], 1e-300)
        for m in range(first[label], first[label + 1]):
            best = -1
            for node in range(nodes):
                if size[members[m]] <= room[node] and (best < 0 or score[node] > score[best]):
                    best = node
            if best >= 0:
                home[members[m]] = best
                room[best] -= size[members[m]]
    return home


@njit(cache=True)
def _refine(indptr, indices, weight, size, room, home, passes):
    """Move items, one by one, to the node with most of their co-occurrence weight, as long as it has room."""
    nodes = len(room)
    for item in range(len(size)):
        if home[item] >= 0:
            room[home[item]] -= size[item]
    pull = np.zeros(nodes)
    for _ in range(passes):
        moved = 0
        for item in range(len(size)):
            pull[:] = 0.0
            for e in range(indptr[item], indptr[item + 1]):
                if home[indices[e]] >= 0:
                    pull[home[indices[e]]] += weight[e]
            best = home[item]
            for node in range(nodes):
                better = best < 0 or pull[node] > pull[best]
                if better and size[item] <= room[node]:
                    best = node
            if best != home[item]:
                if home[item] >= 0:
                    room[home[item]] += size[item]
                room[best] -= size[item]
                home[item] = best
                moved += 1
        if moved == 0:
            break
    return home

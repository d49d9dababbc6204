"""Orders of a graph's nodes that put neighbours near one another: by degree, breadth first, RCM, by community.

An order is an array of node numbers: `order[i]` stands at place i. `places(order)` turns it round.

- Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969 (reversed: George, 1971).
- Raghavan, Albert and Kumara, "Near linear time algorithm to detect community structures", 2007: label propagation.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.sim.compiled import njit
from assay.sim.graphs import CSR, Int64s
from assay.sim.random import stream

ORDERS = ("degree", "bfs", "rcm", "community")


def order_of(graph: CSR, name: str) -> Int64s:
    """An order by its name.

    >>> from assay.sim.graphs import star
    >>> order_of(star(4), "degree").tolist()
    [0, 1, 2, 3]
    """
    made = {"degree": by_degree, "bfs": breadth_first, "rcm": reverse_cuthill_mckee, "community": by_community}
    if name not in made:
        raise ValueError(f"no order '{name}'; one of {', '.join(ORDERS)} expected")
    return made[name](graph)


def places(order: Int64s) -> Int64s:
    """Where each node stands in an order.

    >>> places(np.array([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    out = np.empty(len(order), np.int64)
    out[order] = np.arange(len(order))
    return out


def by_degree(graph: CSR) -> Int64s:
    """Most neighbours first; equals stay in their order."""
    return np.argsort(-graph.degrees, kind="stable")


def breadth_first(graph: CSR) -> Int64s:
    """Level by level from the node with the most neighbours; further components follow, each from its own such node."""
    order: Int64s = _breadth_first(graph.indptr, graph.indices, by_degree(graph))
    return order


def reverse_cuthill_mckee(graph: CSR) -> Int64s:
    """Breadth first from the rim, neighbours by degree, turned round: the narrowest band of the usual orders."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee as rcm

    order: Int64s = rcm(graph.to_scipy(), symmetric_mode=True).astype(np.int64)
    return order


def by_community(graph: CSR, rounds: int = 10) -> Int64s:
    """Communities one behind the other, in the order in which a breadth-first walk meets them; so inside each."""
    met = places(breadth_first(graph))
    label = label_propagation(graph, rounds)
    first = np.full(graph.n, graph.n, np.int64)
    np.minimum.at(first, label, met)
    return np.lexsort((met, first[label]))


def label_propagation(graph: CSR, rounds: int = 10, seed: int = 0) -> Int64s:
    """A community for each node: again and again the one that most of its neighbours are in.

    Ends when less than one node in a thousand changes, or after `rounds`. Ties keep the present one, or take the
    smallest.

    >>> from assay.sim.graphs import ring_of_cliques
    >>> len(set(label_propagation(ring_of_cliques(6, 8)).tolist()))
    6
    """
    label = np.arange(graph.n)
    for turn in range(rounds):
        visit = stream(seed, "label-propagation", graph.n, turn).permutation(graph.n)
        if _propagate(graph.indptr, graph.indices, visit, label) * 1000 < graph.n:
            break
    return label


@njit(cache=True)
def _breadth_first(indptr, indices, starts):
    order = np.empty(len(starts), np.int64)
    seen = np.zeros(len(starts), np.bool_)
    end = 0
    for start in starts:
        if seen[start]:
            continue
        at = end
        order[end], seen[start] = start, True
        end += 1
        while at < end:
            u = order[at]
            at += 1
            for v in indices[indptr[u] : indptr[u + 1]]:
                if not seen[v]:
                    order[end], seen[v] = v, True
                    end += 1
    return order


@njit(cache=True)
def _propagate(indptr, indices, visit, label):
    count = np.zeros(len(label), np.int64)
    changed = 0
    for u in visit:
        near = indices[indptr[u] : indptr[u + 1]]
        best = label[u]
        for v in near:
            count[label[v]] += 1
        for v in near:
            other = label[v]
            more = count[other] > count[best]
            if more or (count[other] == count[best] and best != label[u] and other < best):
                best = other
        for v in near:
            count[label[v]] = 0
        changed += best != label[u]
        label[u] = best
    return changed

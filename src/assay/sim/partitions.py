"""Graphs cut into parts: by hash, by range, by METIS, by label propagation under a capacity.

A partition is an array: `part[v]` from 0 to parts - 1. `cut_share` and `amplification` say how good one is.

- Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998: METIS.
- Martella et al., "Spinner: scalable graph partitioning in the cloud", ICDE 2017: labels with a penalty for full parts.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.sim.compiled import njit
from assay.sim.graphs import CSR, Int64s
from assay.sim.random import stream

PARTITIONERS = ("hash", "range", "metis", "spinner")


def partition(graph: CSR, parts: int, how: str, seed: int = 0) -> Int64s:
    """A partition by its name.

    >>> from assay.sim.graphs import ring_of_cliques
    >>> cut_share(ring_of_cliques(4, 10), partition(ring_of_cliques(4, 10), 4, "range")) < 0.05
    True
    """
    if not 1 <= parts <= max(graph.n, 1):
        raise ValueError(f"{parts} parts of {graph.n} nodes; 1 to {graph.n} expected")
    if how == "hash":
        return stream(seed, "partition", graph.n).permutation(graph.n) * parts // max(graph.n, 1)
    if how == "range":
        return np.arange(graph.n) * parts // max(graph.n, 1)
    if how == "metis":
        return _metis(graph, parts)
    if how == "spinner":
        return spinner(graph, parts, seed=seed)
    raise ValueError(f"no partitioner '{how}'; one of {', '.join(PARTITIONERS)} expected")


def _metis(graph: CSR, parts: int) -> Int64s:
    import pymetis

    if parts == 1:
        return np.zeros(graph.n, np.int64)
    _, found = pymetis.part_graph(parts, pymetis.CSRAdjacency(graph.indptr, graph.indices))
    return np.asarray(found, np.int64)


def spinner(
    graph: CSR, parts: int, slack: float = 0.05, balance: float = 0.5, rounds: int = 30, seed: int = 0
) -> Int64s:
    """Label propagation in which full parts are worth less, and no part takes over 1 + `slack` times its share.

    >>> from assay.sim.graphs import torus
    >>> sizes = np.bincount(spinner(torus(20), 4), minlength=4)
    >>> bool(sizes.max() <= 105 and sizes.sum() == 400)
    True
    """
    part = stream(seed, "spinner", graph.n, parts).permutation(graph.n) * parts // max(graph.n, 1)
    load = np.bincount(part, minlength=parts)
    most = max(int((1 + slack) * graph.n / parts), int(load.max()))
    for turn in range(rounds):
        visit = stream(seed, "spinner", graph.n, parts, turn).permutation(graph.n)
        if _spin(graph.indptr, graph.indices, visit, part, load, most, balance) * 1000 < graph.n:
            break
    return part


@njit(cache=True)
def _spin(indptr, indices, visit, part, load, most, balance):
    count = np.zeros(len(load), np.int64)
    moved = 0
    for u in visit:
        near = indices[indptr[u] : indptr[u + 1]]
        if len(near) == 0:
            continue
        for v in near:
            count[part[v]] += 1
        here = part[u]
        best, worth = here, count[here] / len(near) + balance * (1 - (load[here] - 1) / most)
        for v in near:
            other = part[v]
            found = count[other] / len(near) + balance * (1 - load[other] / most)
            if load[other] < most and (found > worth or (found == worth and best != here and other < best)):
                best, worth = other, found
        for v in near:
            count[part[v]] = 0
        if best != here:
            load[here] -= 1
            load[best] += 1
            part[u] = best
            moved += 1
    return moved


def cut_share(graph: CSR, part: Int64s) -> float:
    """The share of edges between parts.

    >>> from assay.sim.graphs import cycle
    >>> cut_share(cycle(4), np.array([0, 0, 1, 1]))
    0.5
    """
    rows = np.repeat(np.arange(graph.n), graph.degrees)
    return float((part[rows] != part[graph.indices]).mean()) if len(rows) else 0.0


def amplification(graph: CSR, part: Int64s) -> float:
    """Rows that all parts hold together, their neighbours' included, over the number of nodes.

    >>> from assay.sim.graphs import cycle
    >>> amplification(cycle(4), np.array([0, 0, 1, 1]))
    2.0
    """
    rows = np.repeat(part, graph.degrees)
    pairs = np.unique(rows * graph.n + graph.indices)
    outside = part[pairs % graph.n] != pairs // graph.n
    return 1 + float(outside.sum()) / max(graph.n, 1)

"""Parts of a graph by balanced labels, in a few bytes a node: only who has a neighbour that switched looks again.

Each node takes the part that most of its neighbours are in, and a fuller part is worth less. Edges are streamed from
disk, round after round, and only those of nodes a neighbour of which switched in the last round. The paper's rule was
not at hand: this is a reconstruction. METIS and Spinner (`assay.sim.partitions`) are what it is measured against.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from assay.data.disk.graphs import DiskGraph
from assay.sim.compiled import njit

if TYPE_CHECKING:
    from assay.data.grinnder.layers import Int32s

ROUNDS = 20
SLACK = 0.05  # a part has at most this much more than its share of the nodes
BALANCE = 0.5  # what an empty part is worth, in shares of a node's neighbours
EDGES = 1 << 18  # held at a time


def switch_aware(graph: DiskGraph, parts: int) -> Int32s:
    """The part of each node; `graph` has every edge in both directions.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs = [(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)]
    ...     graph = DiskGraph.build(Path(folder, "g"), [np.array(pairs), np.array(pairs)[:, ::-1]])
    ...     len(set(switch_aware(graph, 2)[::2].tolist()))
    1
    """
    n = graph.n
    label = (np.arange(n) * parts // max(n, 1)).astype(np.int32)
    if parts == 1:
        return label
    load = np.bincount(label, minlength=parts)
    most = max(int((1 + SLACK) * n / parts), int(load.max()) + 1)  # room for one at least: else nobody could move
    awake = np.ones(n, np.bool_)
    for _ in range(ROUNDS):
        woken = np.zeros(n, np.bool_)
        switched = 0
        for start, stop in _spans(graph, awake):
            bounds = graph.indptr.rows(start, stop + 1)
            near = graph.indices.rows(int(bounds[0]), int(bounds[-1]))
            switched += _switch(bounds - bounds[0], near, start, label, load, most, awake, woken)
        awake = woken
        if switched * 1000 < n:
            break
    return label


def _spans(graph: DiskGraph, awake: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield ranges of nodes of about EDGES edges in which anyone is awake."""
    for start in range(0, graph.n, 1 << 16):
        end = min(start + (1 << 16), graph.n)
        bounds = graph.indptr.rows(start, end + 1)
        cuts = np.searchsorted(bounds, np.arange(bounds[0], bounds[-1], EDGES), side="left")
        for a, b in pairwise([*cuts.tolist(), end - start]):
            if a < b and awake[start + a : start + b].any():
                yield start + a, start + b


@njit(cache=True)
def _switch(bounds, near, start, label, load, most, awake, woken):
    count = np.zeros(len(load), np.int64)
    switched = 0
    for i in range(len(bounds) - 1):
        u, a, b = start + i, bounds[i], bounds[i + 1]
        if a == b or not awake[u]:
            continue
        for e in range(a, b):
            count[label[near[e]]] += 1
        here = label[u]
        best, worth = here, count[here] / (b - a) + BALANCE * (1 - (load[here] - 1) / most)
        for e in range(a, b):
            other = label[near[e]]
            found = count[other] / (b - a) + BALANCE * (1 - load[other] / most)
            if load[other] < most and (found > worth or (found == worth and best != here and other < best)):
                best, worth = other, found
        for e in range(a, b):
            count[label[near[e]]] = 0
        if best != here:
            load[here] -= 1
            load[best] += 1
            label[u] = best
            switched += 1
            for e in range(a, b):
                woken[near[e]] = True
    return switched

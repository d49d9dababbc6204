"""What every edge of a GAT layer weighs, written beside the edges before the first row is pushed along them.

An edge's logit hangs on one number of its source and one of its target for each head, not on rows. So the edges alone
tell each target's largest logit, then the sum of its weights, then each weight: three passes over four bytes an edge,
and rows are then summed up with weights that are known. Nothing has to be scaled again when a larger logit comes, and
strips hold sums alone.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.atlas.layers import SLOPE, Floats, Int32s
from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import Int64s, IoStats
from assay.sim.compiled import njit

NODES = 4096  # whose edges are read together


@dataclass(frozen=True)
class Weights:
    """For each head, a file of the edges' weights in their order, and one of every node's weight for itself."""

    edges: list[DiskArray]
    own: list[DiskArray]

    @property
    def stats(self) -> IoStats:
        """What the files were asked."""
        asked = IoStats()
        for array in (*self.edges, *self.own):
            asked += array.stats
        return asked

    def close(self) -> None:
        """Drop the files."""
        for array in (*self.edges, *self.own):
            array.close()
            array.file.path.unlink()


def weigh(graph: DiskGraph, logits: Floats, facing: Floats, edges: int, scratch: Path) -> Weights:
    """The weights of a softmax over each node's incoming edges and its own loop; other loops weigh nothing.

    `logits` are what sources bring and `facing` what targets bring, a column a head; up to `edges` are read at once.
    """
    found = Weights([], [])
    for head in range(logits.shape[1]):
        sent, facing_it = np.ascontiguousarray(logits[:, head]), np.ascontiguousarray(facing[:, head])
        top = sent.copy()
        for first, bounds, start, targets in _pieces(graph, edges):
            _tops(first, bounds, start, targets, sent, top)
        total = _begun(sent, facing_it, top)
        for first, bounds, start, targets in _pieces(graph, edges):
            _totals(first, bounds, start, targets, sent, facing_it, top, total)
        place = scratch / f"weights-{head}.npy"
        writer = RowWriter(DiskArray.create(place, (graph.m,), np.float32), 8 * edges)
        for first, bounds, start, targets in _pieces(graph, edges):
            some = np.empty(len(targets), np.float32)
            _weights(first, bounds, start, targets, sent, facing_it, top, total, some)
            writer.append(some)
        writer.end()
        found.edges.append(writer.array)
        write_rows(scratch / f"own-{head}.npy", _begun(sent, facing_it, top) / total)
        found.own.append(DiskArray.open(scratch / f"own-{head}.npy"))
    return found


def _pieces(graph: DiskGraph, edges: int) -> Iterator[tuple[int, Int64s, int, Int32s]]:
    """Yield (first node, bounds of the edges of some nodes, first edge, targets)."""
    for first in range(0, graph.n, NODES):
        bounds = graph.indptr.rows(first, min(first + NODES, graph.n) + 1)
        for start in range(int(bounds[0]), int(bounds[-1]), edges):
            yield first, bounds, start, graph.indices.rows(start, min(start + edges, int(bounds[-1])))


@njit(cache=True, nogil=True)
def _weight(logit, largest):
    """The weight of a logit beside the largest one; both without the leaky rectifier, which keeps their order."""
    logit = logit if logit > 0 else SLOPE * logit
    largest = largest if largest > 0 else SLOPE * largest
    return np.exp(logit - largest)


@njit(cache=True, nogil=True)
def _tops(first, bounds, start, targets, sent, top):
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        v = targets[e - start]
        top[v] = max(top[v], sent[first + row])


@njit(cache=True, nogil=True)
def _begun(sent, facing, top):
    """What every node weighs for itself."""
    own = np.empty(len(sent), np.float32)
    for v in range(len(sent)):
        own[v] = _weight(sent[v] + facing[v], top[v] + facing[v])
    return own


@njit(cache=True, nogil=True)
def _totals(first, bounds, start, targets, sent, facing, top, total):
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        v = targets[e - start]
        if v != first + row:
            total[v] += _weight(sent[first + row] + facing[v], top[v] + facing[v])


@njit(cache=True, nogil=True)
def _weights(first, bounds, start, targets, sent, facing, top, total, out):
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        v = targets[e - start]
        loop = v == first + row
        out[e - start] = (
            np.float32(0) if loop else _weight(sent[first + row] + facing[v], top[v] + facing[v]) / total[v]
        )

"""What every edge of a GAT layer weighs, written with its target before the first row is pushed along it.

An edge's logit hangs on one number of its source and one of its target for each head, not on rows. So the edges alone
tell each target's sum of weights, and then each weight: two passes over four bytes an edge, and rows are then summed up
with weights that are known. Strips hold sums alone, and nothing is scaled again when a larger logit comes.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.data.atlas.layers import SLOPE, Floats, Int32s
from assay.data.atlas.streaming import blocks, pieces
from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import Int64s, IoStats
from assay.sim.compiled import njit

NODES = 4096  # whose edges are read together


@dataclass(frozen=True)
class Weights:
    """For some heads, by the first of them: a file with every edge's target and weights, and one of nodes' own."""

    edges: dict[int, DiskArray] = field(default_factory=dict)
    own: dict[int, DiskArray] = field(default_factory=dict)

    @property
    def stats(self) -> IoStats:
        """What the files were asked."""
        return sum((array.stats for array in self._files()), IoStats())

    def close(self) -> None:
        """Drop the files."""
        for array in self._files():
            array.close()
            array.file.path.unlink()

    def _files(self) -> list[DiskArray]:
        return [*self.edges.values(), *self.own.values()]


def weigh(
    graph: DiskGraph, sent: Floats, facing: Floats, together: Sequence[slice], most: int, edges: int, scratch: Path
) -> Weights:
    """The weights of a softmax over each node's incoming edges and its own loop; other loops weigh nothing.

    `sent` are what sources bring to a logit and `facing` what targets bring, a column a head; heads that are in one
    slice come into one file. Up to `most` heads, or those of a slice, are weighed in the same two passes over the
    edges, of which up to `edges` are read at once.
    """
    found = Weights()
    for slices in groups(together, most):
        begin, end = slices[0].start, slices[-1].stop
        tops = _begun(sent, facing, begin, end)
        for first, _, bounds, start, targets in _pieces(graph, edges):
            _totals(first, bounds, start, targets, sent, facing, tops, begin)
        files = [_File.of(graph, heads, edges, scratch) for heads in slices]
        some = np.empty((min(edges, graph.m), end - begin), np.float32)
        for first, _, bounds, start, targets in _pieces(graph, edges):
            weights = some[: len(targets)]
            _weights(first, bounds, start, targets, sent, facing, tops, begin, weights)
            for file in files:
                file.append(targets, weights, begin)
        for file in files:
            file.writer.end()
            found.edges[file.heads.start] = file.writer.array
        for heads in slices:
            place = scratch / f"own-{heads.start}.npy"
            write_rows(place, _own(sent, facing, tops, begin, heads.start, heads.stop))
            found.own[heads.start] = DiskArray.open(place)
    return found


def groups(together: Sequence[slice], most: int) -> list[list[slice]]:
    """Neighbouring slices of up to `most` heads in all, or of more where one has more.

    >>> [len(group) for group in groups([slice(0, 2), slice(2, 4), slice(4, 5)], 4)]
    [2, 1]
    """
    found: list[list[slice]] = []
    for heads in together:
        if found and heads.stop - found[-1][0].start <= most:
            found[-1].append(heads)
        else:
            found.append([heads])
    return found


@dataclass(frozen=True)
class _File:
    """Targets and weights of some heads on their way to the disk."""

    heads: slice
    writer: RowWriter
    some: Int32s

    @staticmethod
    def of(graph: DiskGraph, heads: slice, edges: int, scratch: Path) -> _File:
        width = 1 + heads.stop - heads.start
        array = DiskArray.create(scratch / f"weights-{heads.start}.npy", (graph.m, width), np.int32)
        return _File(heads, RowWriter(array, 8 * width * edges), np.empty((min(edges, graph.m), width), np.int32))

    def append(self, targets: Int32s, weights: Floats, begin: int) -> None:
        """Add a piece's edges; the first column of `weights` is of head `begin`."""
        filled = self.some[: len(targets)]
        filled[:, 0] = targets
        filled.view(np.float32)[:, 1:] = weights[:, self.heads.start - begin : self.heads.stop - begin]
        self.writer.append(filled)


def _pieces(graph: DiskGraph, edges: int) -> Iterator[tuple[int, Floats, Int64s, int, Int32s]]:
    """Pieces of the stream of edges, with rows of no columns."""
    nothing = np.empty((min(NODES, graph.n), 0), np.float32)
    nodes = ((first, nothing[: graph.n - first]) for first in range(0, graph.n, NODES))
    return pieces(graph, nodes, blocks(graph.indices, edges))


@njit(cache=True, nogil=True)
def _logit(sent, facing, u, v, head):
    logit = sent[u, head] + facing[v, head]
    return logit if logit > 0 else SLOPE * logit


@njit(cache=True, nogil=True)
def _begun(sent, facing, begin, end):
    """For every node and head the largest logit so far, its own, and then the sums of weights beside it."""
    heads = end - begin
    tops = np.ones((len(sent), 2 * heads), np.float32)
    for v in range(len(sent)):
        for h in range(heads):
            tops[v, h] = _logit(sent, facing, v, v, begin + h)
    return tops


@njit(cache=True, nogil=True)
def _totals(first, bounds, start, targets, sent, facing, tops, begin):
    heads = tops.shape[1] // 2
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        u, v = np.uintp(first + row), np.uintp(targets[e - start])
        if u == v:
            continue
        for h in range(heads):
            logit = _logit(sent, facing, u, v, begin + h)
            if logit <= tops[v, h]:
                tops[v, heads + h] += np.exp(logit - tops[v, h])
            else:
                tops[v, heads + h] = tops[v, heads + h] * np.exp(tops[v, h] - logit) + np.float32(1)
                tops[v, h] = logit


@njit(cache=True, nogil=True)
def _weights(first, bounds, start, targets, sent, facing, tops, begin, weights):
    heads = tops.shape[1] // 2
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        u, v, at = np.uintp(first + row), np.uintp(targets[e - start]), np.uintp(e - start)
        for h in range(heads):
            weight = np.exp(_logit(sent, facing, u, v, begin + h) - tops[v, h]) / tops[v, heads + h]
            weights[at, h] = np.float32(0) if u == v else weight


@njit(cache=True, nogil=True)
def _own(sent, facing, tops, begin, start, stop):
    """What every node weighs for itself, a column for each head from `start` on."""
    heads = tops.shape[1] // 2
    own = np.empty((len(sent), stop - start), np.float32)
    for v in range(len(sent)):
        for h in range(start, stop):
            own[v, h - start] = np.exp(_logit(sent, facing, v, v, h) - tops[v, h - begin]) / tops[v, heads + h - begin]
    return own

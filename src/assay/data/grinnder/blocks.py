"""A graph cut into blocks on disk: nodes renumbered so that a part's follow on one another, edges by their target.

Normalisation knows the whole graph: degrees are counted before it is cut. A block's inputs are its own nodes, then
those of other parts in ascending order, so that what is gathered from one part is read in the order in which it lies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.data.disk.arrays import DiskArray, RowWriter
from assay.data.disk.edges import Edges
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import IoStats
from assay.data.grinnder.layers import Block, Floats, Int32s, Int64s
from assay.data.grinnder.partitioner import switch_aware
from assay.sim.compiled import njit

Blocks = Callable[[], Iterator[Edges]]  # the edges of a graph, some at a time; called once a pass


@dataclass(eq=False)
class CutGraph:
    """Blocks on disk, and what is known of them: `ptr` where each part's nodes begin, `order` their old numbers."""

    folder: Path
    ptr: Int64s
    order: Int32s
    degree: Int32s
    edge_ptr: Int64s  # where each part's edges begin
    out_ptr: Int64s  # and its nodes outside
    cuts: Int64s  # (part, source part + 1): where each source part begins among them

    resident: bool = False  # blocks that were read stay in memory
    _read: dict[int, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._indptr = DiskArray.open(self.folder / "in" / "indptr.npy")
        self._columns = DiskArray.open(self.folder / "columns.npy")
        self._outside = DiskArray.open(self.folder / "outside.npy")

    @property
    def n(self) -> int:
        """Nodes."""
        return len(self.order)

    @property
    def parts(self) -> int:
        """Parts."""
        return len(self.ptr) - 1

    @property
    def sizes(self) -> Int64s:
        """Own nodes of each part."""
        return np.diff(self.ptr)

    @property
    def inputs(self) -> Int64s:
        """Rows that each part gathers: its own and those of its neighbours."""
        return self.sizes + np.diff(self.out_ptr)

    @property
    def edges(self) -> Int64s:
        """In-edges of each part."""
        return np.diff(self.edge_ptr)

    @property
    def amplification(self) -> float:
        """Rows gathered over nodes: what a scheme that stores gathered inputs writes."""
        return float(self.inputs.sum()) / max(self.n, 1)

    @property
    def stats(self) -> IoStats:
        """What reading blocks cost."""
        return self._indptr.stats + self._columns.stats + self._outside.stats

    def needs(self, part: int) -> Int64s:
        """The parts that a part gathers from, itself included."""
        return np.union1d([part], np.flatnonzero(np.diff(self.cuts[part])))

    @property
    def nbytes(self) -> int:
        """What all blocks take in memory."""
        return int(4 * self.edges.sum() + 8 * (self.n + self.parts) + 8 * self.inputs.sum())

    def block(self, part: int) -> Block:
        """Read one, or find it in memory."""
        if part in self._read:
            return self._read[part]
        first, stop = int(self.ptr[part]), int(self.ptr[part + 1])
        indptr = self._indptr.rows(first, stop + 1)
        columns = self._columns.rows(int(self.edge_ptr[part]), int(self.edge_ptr[part + 1]))
        outside = self.outside(part)
        degree = np.concatenate([self.degree[first:stop], self.degree[outside]]).astype(np.float32)
        made = Block(part, first, indptr - indptr[0], columns, outside, degree)
        if self.resident:
            self._read[part] = made
        return made

    def outside(self, part: int) -> Int32s:
        """The nodes of other parts that a part hears from, ascending."""
        found: Int32s = self._outside.rows(int(self.out_ptr[part]), int(self.out_ptr[part + 1]))
        return found

    def close(self) -> None:
        """Close its files."""
        self._read.clear()
        for array in (self._indptr, self._columns, self._outside):
            array.close()


def cut(
    folder: Path, edges: Blocks, n: int, parts: int, own_loops: bool, memory: int = 1 << 28, part: Int32s | None = None
) -> CutGraph:
    """Cut a graph on `n` nodes; `part` names each node's, else labels are propagated. Bounded by about `memory`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     made = cut(Path(name), lambda: iter([np.array([(0, 2), (2, 1), (0, 1)])]), 3, 2, False, part=np.array([0, 1, 0]))
    ...     made.order.tolist(), made.amplification, made.block(1).outside.tolist(), made.needs(0).tolist()
    ([0, 2, 1], 1.6666666666666667, [0, 1], [0])
    """  # noqa: E501
    folder.mkdir(parents=True, exist_ok=True)
    label = _labels(folder, edges, n, parts, memory) if part is None else part
    order = np.lexsort((_wanted(edges(), label, n), label)).astype(np.int32)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(label, minlength=parts))])
    place = np.empty(n, np.int32)
    place[order] = np.arange(n, dtype=np.int32)
    turned = _turned(edges(), place, n, own_loops)
    graph = DiskGraph.build(folder / "in", turned, n, memory)
    try:
        return _localised(folder, graph, ptr, order)
    finally:
        graph.close()
        (folder / "in" / "indices.npy").unlink()  # the blocks' columns say the same


def _labels(folder: Path, edges: Blocks, n: int, parts: int, memory: int) -> Int32s:
    if parts == 1:
        return np.zeros(n, np.int32)
    both = (way for block in edges() for way in (block, block[:, ::-1]))
    graph = DiskGraph.build(folder / "both", both, n, memory)
    try:
        return switch_aware(graph, parts)
    finally:
        graph.close()
        shutil.rmtree(graph.folder)


def _wanted(blocks: Iterable[Edges], label: Int32s, n: int) -> Int64s:
    """For each node a number that is the same for nodes that the same other parts hear from (one bit a part).

    Sorted by it inside a part, what another part gathers lies together, and few pages are read for it.
    """
    bits = np.zeros(n, np.int64)
    for block in blocks:
        if len(block) and (block.min() < 0 or block.max() >= n):
            raise ValueError(f"an edge joins nodes {block.min()} and {block.max()}; 0 to below {n}, the rows, expected")
        source, target = block[:, 0], block[:, 1]
        away = label[source] != label[target]
        _mark(bits, source[away], label[target[away]])
    return bits


@njit(cache=True)
def _mark(bits: Int64s, nodes: Int64s, parts: Int32s) -> None:
    for i in range(len(nodes)):
        bits[nodes[i]] |= 1 << (parts[i] % 63)


def _turned(blocks: Iterable[Edges], place: Int32s, n: int, own_loops: bool) -> Iterator[Edges]:
    """Edges as (target, source) in new numbers; with `own_loops` every node has one loop."""
    for block in blocks:
        kept = block[block[:, 0] != block[:, 1]] if own_loops else block
        yield place[kept[:, ::-1]].astype(np.int64)
    for start in range(0, n if own_loops else 0, 1 << 18):
        nodes = np.arange(start, min(start + (1 << 18), n))
        yield np.stack([nodes, nodes], axis=1)


def _localised(folder: Path, graph: DiskGraph, ptr: Int64s, order: Int32s) -> CutGraph:
    """Number every part's inputs, and write them part by part."""
    parts, degree = len(ptr) - 1, np.empty(graph.n, np.int32)
    edge_ptr, cuts, found = np.zeros(parts + 1, np.int64), np.zeros((parts, parts + 1), np.int64), []
    columns = RowWriter(DiskArray.create(folder / "columns.npy", (graph.m,), np.int32))
    for p in range(parts):
        first, stop = int(ptr[p]), int(ptr[p + 1])
        bounds = graph.indptr.rows(first, stop + 1)
        degree[first:stop] = np.diff(bounds)
        edge_ptr[p + 1] = bounds[-1]
        sources = graph.indices.rows(int(bounds[0]), int(bounds[-1]))
        own = (sources >= first) & (sources < stop)
        outside = np.unique(sources[~own])
        local = np.where(own, sources - first, stop - first + np.searchsorted(outside, sources)).astype(np.int32)
        columns.append(local)
        cuts[p] = np.searchsorted(outside, ptr)
        found.append(len(outside))
        _append(folder / "outside.part", outside)
    columns.close()
    out_ptr = np.concatenate([[0], np.cumsum(found)]).astype(np.int64)
    _as_rows(folder / "outside.part", folder / "outside.npy", int(out_ptr[-1]))
    return CutGraph(folder, ptr.astype(np.int64), order, degree, edge_ptr, out_ptr, cuts)


def _append(path: Path, numbers: Int32s) -> None:
    with path.open("ab") as file:
        file.write(numbers.astype(np.int32).tobytes())


def _as_rows(raw: Path, path: Path, count: int) -> None:
    """Numbers as a row store: only now is their count known."""
    writer = RowWriter(DiskArray.create(path, (count,), np.int32))
    with raw.open("rb") as file:
        while len(some := np.fromfile(file, np.int32, 1 << 18)):
            writer.append(some)
    writer.close()
    raw.unlink()


def rows_in_order(source: DiskArray, order: Int32s, some: int) -> Iterator[Floats]:
    """Yield rows in a new order, so many at a time."""
    for start in range(0, len(order), some):
        yield source.take(order[start : start + some].astype(np.int64)).astype(np.float32, copy=False)

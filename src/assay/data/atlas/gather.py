"""What atlas is compared with: every node fetches the rows of its in-neighbours, layer by layer.

From disk with a cache of rows in the same memory: least recently used (as DGL's and PyG's feature stores do), or the
rows that most others ask for, chosen beforehand (as Ginex does for what it knows to be hot). Reads are sorted, merged,
sixteen at a time, and each row is fetched once a batch, however many ask for it. Rows are projected before they are
gathered where that makes them narrower, as atlas does. `in_memory` is the same without a limit: the reference where
all fits.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from assay.data.atlas.engine import Ran
from assay.data.atlas.layers import MAX, SOFTMAX, Floats, Int32s, Layer, degrees, facing, finish, message, own
from assay.data.atlas.tiers import Int64s, absorb, clear_all, merge
from assay.data.disk.arrays import DiskArray, RowWriter
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE
from assay.sim.blas import threads_for
from assay.sim.compiled import njit
from assay.sim.memory import MAPPED, return_freed

CACHES = ("lru", "static")


@dataclass
class RowCache:
    """Rows of a store in memory, at most `rows` of them; the rest are read when asked for."""

    store: DiskArray
    rows: int
    where: Int32s  # the place of each row here, or -1
    held: Floats
    owner: Int32s
    stamp: Int64s
    static: bool
    piece: int  # rows read together: each comes with the pages it lies in, which count as memory
    clock: int = 0
    hits: int = 0
    misses: int = 0

    @classmethod
    def of(cls, store: DiskArray, nbytes: int, heat: Int32s | None = None) -> RowCache:
        """A cache in so many bytes; rows of most `heat` are loaded now and stay, else the least recently used leave."""
        rows = max(min(nbytes // (store.row_bytes + 16), len(store)), 1)
        piece = max(nbytes // 8 // (PAGE + store.row_bytes), 32)
        cache = cls(
            store, rows, np.full(len(store), -1, np.int32), np.empty((rows, *store.shape[1:]), np.float32),
            np.full(rows, -1, np.int32), np.zeros(rows, np.int64), heat is not None,
            piece,
        )  # fmt: skip
        if heat is not None:
            ids = np.sort(np.argsort(-heat, kind="stable")[:rows])
            for start in range(0, len(ids), piece):
                some = ids[start : start + piece]
                cache.held[start : start + len(some)] = store.take(some)
                cache.where[some] = np.arange(start, start + len(some))
        return cache

    def take(self, ids: Int64s) -> Floats:
        """Rows of these numbers, each named once."""
        self.clock += 1
        place = self.where[ids]
        hit = place >= 0
        out = np.empty((len(ids), *self.held.shape[1:]), np.float32)
        out[hit] = self.held[place[hit]]
        self.stamp[place[hit]] = self.clock
        missing = np.flatnonzero(~hit)
        for start in range(0, len(missing), self.piece):
            some = missing[start : start + self.piece]
            out[some] = self.store.take(ids[some])
        self.hits, self.misses = self.hits + int(hit.sum()), self.misses + len(missing)
        if not self.static:
            self._keep(ids[missing[: self.rows]], out[missing[: self.rows]])
        return out

    def _keep(self, ids: Int64s, rows: Floats) -> None:
        if not len(ids):
            return
        places = np.argpartition(self.stamp, len(ids) - 1)[: len(ids)]
        old = self.owner[places]
        self.where[old[old >= 0]] = -1
        self.held[places], self.owner[places], self.stamp[places] = rows, ids, self.clock
        self.where[ids] = places


def gather_layer(
    layer: Layer, incoming: DiskGraph, out_degree: Int32s, source: DiskArray, target: Path, memory: int, scratch: Path,
    cache: str = "lru",
) -> Ran:  # fmt: skip
    """Compute the layer's rows into `target` from in-edges, with at most about `memory` bytes."""
    began = perf_counter()
    return_freed(MAPPED)  # an inference before it may have set less, which is slower
    n = incoming.n
    if layer.kind != "gat" and layer.message_width >= layer.in_width:
        layer = replace(layer, late=True)  # projecting first would cost a pass and make no row narrower
    loops = incoming.loops()
    degree = degrees(layer, np.diff(incoming.indptr.rows(0, n + 1)).astype(np.int32), loops)
    before = source.stats.read_bytes, incoming.indices.stats.read_bytes
    rest = memory - n * 8
    step = max(rest // 8 // (8 * (layer.in_width + layer.width + layer.out_width)), 16)
    halves = np.empty((n, layer.heads), np.float32) if layer.kind == "gat" else None
    rows, made = source, None
    if layer.projects:
        made = DiskArray.create(scratch / "projected.npy", (n, layer.message_width), np.float32)
        writer = RowWriter(made, rest // 8)
        with threads_for(step * layer.in_width * layer.out_width):
            for start, x in source.stream(step):
                writer.append(message(layer, x, degree[start : start + len(x)]))
                if halves is not None:
                    halves[start : start + len(x)] = facing(layer, x)
        writer.close()
        rows = made = DiskArray.open(scratch / "projected.npy")
    held = RowCache.of(rows, rest // 2, out_degree if cache == "static" else None)
    output = DiskArray.create(target, (n, layer.out_width), np.float32)
    writer = RowWriter(output, rest // 16)
    most = max(rest // 4 // (layer.message_width * 8), 64)  # edges whose rows may be fetched together
    with threads_for(max(step, most) * layer.in_width * layer.out_width):
        for start, x in source.stream(step):
            writer.append(_targets(layer, incoming, held, x, start, degree, halves, most))
    writer.close()
    if made is not None:
        made.close()
        made.file.path.unlink()
    fetched = source.stats.read_bytes - before[0] + (made.stats.read_bytes if made else 0)
    return Ran(
        perf_counter() - began, fetched, incoming.indices.stats.read_bytes - before[1], 0,
        output.stats.write_bytes, held.misses, held.hits, held.rows,
    )  # fmt: skip


def _targets(
    layer: Layer, incoming: DiskGraph, held: RowCache, x: Floats, start: int, degree: Int32s, halves: Floats | None,
    most: int,
) -> Floats:  # fmt: skip
    """The layer's rows of the nodes from `start` on, whose own rows are x."""
    stop = start + len(x)
    bounds = incoming.indptr.rows(start, stop + 1)
    acc = _begun(layer, x, degree[start:stop], None if halves is None else halves[start:stop])
    for e0 in range(int(bounds[0]), int(bounds[-1]), most):
        sources = incoming.indices.rows(e0, min(e0 + most, int(bounds[-1])))
        unique, place = np.unique(sources, return_inverse=True)
        fetched = held.take(unique.astype(np.int64))
        sent = fetched if layer.projects else message(layer, fetched, degree[unique])
        _collect(layer, acc, bounds, e0, place, sources, start, sent, halves)
    return finish(layer, acc, degree[start:stop])


def in_memory(layer: Layer, incoming: DiskGraph, x: Floats) -> Floats:
    """The layer's rows, all at once."""
    n = incoming.n
    bounds = incoming.indptr.rows(0, n + 1)
    degree = degrees(layer, np.diff(bounds).astype(np.int32), incoming.loops())
    halves = facing(layer, x) if layer.kind == "gat" else None
    sources = incoming.indices.rows(0, incoming.m)
    sent = message(layer, x, degree)
    acc = _begun(layer, x, degree, halves, sent)
    _collect(layer, acc, bounds, 0, sources, sources, 0, sent, halves)
    return finish(layer, acc, degree)


def _begun(layer: Layer, x: Floats, degree: Int32s, halves: Floats | None, sent: Floats | None = None) -> Floats:
    """Accumulators that hold each node's own term."""
    mine = own(layer, x, degree, message(layer, x, degree) if sent is None else sent, halves)
    acc = np.empty((len(x), layer.width), np.float32)
    heads = layer.heads if layer.kind == "gat" else 0
    clear_all(acc, layer.reduce, layer.message_width, heads)
    if layer.reduce in (MAX, SOFTMAX):
        _own(acc, mine, layer.reduce, layer.message_width, heads)
    else:
        acc += mine
    return acc


@njit(cache=True, nogil=True)
def _own(acc, mine, reduce, columns, heads):
    for v in range(len(acc)):
        merge(acc, v, mine[v], reduce, columns, heads)


def _collect(
    layer: Layer, acc: Floats, bounds: Int64s, e0: int, place: Int64s, sources: Int32s, start: int, sent: Floats,
    halves: Floats | None,
) -> None:  # fmt: skip
    none = np.empty((0, 0), np.float32) if halves is None else halves
    _add_up(acc, bounds, e0, place, sources, start, sent, layer.drops_loops, layer.reduce, none)


@njit(cache=True, nogil=True)
def _add_up(acc, bounds, e0, place, sources, start, sent, drop, reduce, halves):
    """Add the rows `sent[place]` of the edges from e0 on to their targets, which begin with node `start`."""
    columns, heads, stop = sent.shape[1], halves.shape[1], e0 + len(place)
    row = np.searchsorted(bounds, e0, side="right") - 1
    for e in range(e0, stop):
        while e >= bounds[row + 1]:
            row += 1
        if not (drop and sources[e - e0] == start + row):
            absorb(acc, row, sent[place[e - e0]], reduce, columns, halves, start + row, heads)

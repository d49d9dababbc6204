"""Rows of every layer, part by part: on disk, with as much of them in memory as the plan allows.

A part's rows are written to disk when they leave memory, and only then; what a step depends on stays while it lasts.
Where not even that fits, rows are fetched one by one, sorted and merged, and gradients for other parts are logged and
added up when their part's turn comes: the paper asks for memory for a layer's gradients, this does not.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.data.disk.arrays import DiskArray
from assay.data.disk.pages import PAGE, IoStats, PagedFile, aligned
from assay.data.grinnder.blocks import CutGraph
from assay.data.grinnder.layers import Block, Floats, Int32s, Int64s
from assay.sim.byte_cache import ByteCache, Key, Lru
from assay.sim.compiled import njit

LAYERS, PARTS, ROWS = "layers", "parts", "rows"
MODES = (LAYERS, PARTS, ROWS)


class LayerLru(Lru):
    """Who goes is of the layer that was used longest ago: layers are read in circles, and parts' ages say little."""

    def __init__(self) -> None:
        super().__init__()
        self._used: dict[int, int] = {}
        self._clock = 0

    def _note(self, key: Key) -> None:
        self._clock += 1
        self._used[key[0]] = self._clock  # type: ignore[index]

    def insert(self, key: Key, nbytes: int) -> None:
        """Its layer is in use."""
        super().insert(key, nbytes)
        self._note(key)

    def touch(self, key: Key) -> None:
        """Its layer is in use."""
        super().touch(key)
        self._note(key)

    def victim(self, kept: Container[Key] = ()) -> Key | None:
        """The oldest part of the oldest layer."""
        free = [key for key in self._order if key not in kept]
        return min(free, key=lambda key: self._used[key[0]], default=None)  # type: ignore[index]


class PartRows:
    """Rows on disk, so many (`sizes`) of each part; every part begins on a page's boundary."""

    def __init__(self, path: Path, sizes: Int64s, width: int) -> None:
        self.sizes, self.width = sizes, width
        group = PAGE // np.gcd(PAGE, 4 * width)
        self.base = np.concatenate([[0], np.cumsum(-(-sizes // group) * group)])
        self.array = DiskArray.create(path, (int(self.base[-1]), width), np.float32)
        self.written = np.zeros(len(sizes), np.bool_)

    def write(self, part: int, rows: Floats) -> None:
        """Write a part's rows."""
        padded = rows
        if spare := int(self.base[part + 1] - self.base[part]) - len(rows):
            padded = np.concatenate([rows, np.zeros((spare, self.width), np.float32)])
        self.array.write(int(self.base[part]), padded)
        self.written[part] = True

    def read(self, part: int) -> Floats:
        """A part's rows."""
        self._there(part)
        start = int(self.base[part])
        found: Floats = self.array.rows(start, start + int(self.sizes[part]))
        return found

    def places(self, part: int, local: Int32s) -> Int64s:
        """Where in the file some rows of a part lie."""
        self._there(part)
        return int(self.base[part]) + local.astype(np.int64)

    def _there(self, part: int) -> None:
        if not self.written[part]:
            raise RuntimeError(f"part {part} of {self.array.file.path.name} is read before it is written")


class Host:
    """All layers' rows under one limit. One thread at a time.

    `mode` says who leaves: parts of the oldest layer, the oldest part, or (`rows`) whoever is asked for never enters.
    """

    def __init__(self, folder: Path, graph: CutGraph, widths: tuple[int, ...], nbytes: int, mode: str) -> None:
        self.graph, self.mode = graph, mode
        self.layers = [PartRows(folder / f"rows-{i}.npy", graph.sizes, width) for i, width in enumerate(widths)]
        self.kept: set[Key] = set()
        self.cache = ByteCache(nbytes, LayerLru() if mode == LAYERS else Lru(), self.kept)
        self._held: dict[Key, Floats] = {}
        self._fresh: set[Key] = set()  # not on disk yet
        self.chunk = 1 << 22  # bytes of pages fetched together

    @property
    def stats(self) -> IoStats:
        """What the layers' files were asked."""
        return sum((layer.array.stats for layer in self.layers), IoStats())

    def put(self, layer: int, part: int, rows: Floats) -> None:
        """A part's new rows: into memory, or past it where there is no room."""
        key = (layer, part)
        if key in self.cache:
            self._drop(key)
        for gone in self.cache.put(key, rows.nbytes):
            self._leave(gone)
        if key in self.cache:
            self._held[key] = rows
            self._fresh.add(key)
        else:
            self.layers[layer].write(part, rows)

    def forget(self, layer: int) -> None:
        """A layer's rows are not needed any more: nothing of them is written."""
        for key in [key for key in self._held if key[0] == layer]:  # type: ignore[index]
            self._drop(key)

    def take(self, layer: int, part: int) -> Floats:
        """A part's rows, which are kept here no longer."""
        key = (layer, part)
        if not self.cache.get(key):
            return self.layers[layer].read(part)
        rows = self._held[key]
        self._drop(key)
        return rows

    def gather(self, layer: int, block: Block, out: Floats) -> Floats:
        """The rows of a block's inputs, into `out`: from memory, or from disk in one sweep."""
        needs = self.graph.needs(block.part)
        width = self.layers[layer].width
        whole = self.mode != ROWS and 4 * width * int(self.graph.sizes[needs].sum()) <= self.cache.capacity
        if whole:
            self.kept.update((layer, int(q)) for q in needs)
        missing = []
        for q in needs.tolist():
            rows = self._part(layer, q, whole)
            a, ids = self._wanted(block, q)
            first = int(self.graph.ptr[q])
            if rows is None and self._dense(layer, q, ids):
                rows = self.layers[layer].read(q)
            if rows is None:
                missing.append((a, self.layers[layer].places(q, ids - first)))
            else:
                _take(rows, ids, first, out[a : a + len(ids)])
        self._fetch(layer, missing, out)
        self.kept.clear()
        return out

    def _wanted(self, block: Block, q: int) -> tuple[int, Int32s]:
        """Where the rows of part q begin among a block's inputs, and whose they are."""
        if q == block.part:
            return 0, np.arange(block.first, block.first + block.n, dtype=np.int32)
        a, b = (int(cut) for cut in self.graph.cuts[block.part][q : q + 2])
        return block.n + a, block.outside[a:b]

    def _dense(self, layer: int, part: int, ids: Int32s) -> bool:
        """Whether rows lie in at least half of their part's pages: it is sooner read in one piece than in many."""
        size = 4 * self.layers[layer].width
        whole = size * int(self.graph.sizes[part])
        pages = int(np.count_nonzero(np.diff(ids.astype(np.int64) * size // PAGE))) + 1
        return whole <= self.chunk and 2 * pages * PAGE >= whole

    def _part(self, layer: int, part: int, admit: bool) -> Floats | None:
        """A part's rows from memory; with `admit` they are read where they are not there."""
        key = (layer, part)
        if self.cache.get(key):
            return self._held[key]
        if not admit:
            return None
        rows = self.layers[layer].read(part)
        for gone in self.cache.put(key, rows.nbytes):
            self._leave(gone)
        if key in self.cache:
            self._held[key] = rows
        return rows

    def _fetch(self, layer: int, missing: list[tuple[int, Int64s]], out: Floats) -> None:
        """Rows from disk into their places: (first place, numbers of the rows), in the order in which they lie."""
        if not missing:
            return
        missing.sort(key=lambda one: int(one[1][0]) if len(one[1]) else 0)
        places = np.concatenate([np.arange(a, a + len(ids)) for a, ids in missing])
        ids = np.concatenate([ids for _, ids in missing])
        some = max(self.chunk // (2 * 4 * self.layers[layer].width), 1)
        for at in range(0, len(ids), some):
            out[places[at : at + some]] = self.layers[layer].array.take(ids[at : at + some])

    def _leave(self, key: Key) -> None:
        rows = self._held.pop(key)
        if key in self._fresh:
            self._fresh.discard(key)
            self.layers[key[0]].write(key[1], rows)  # type: ignore[index]

    def _drop(self, key: Key) -> None:
        self.cache.drop(key)
        self._held.pop(key)
        self._fresh.discard(key)

    def close(self) -> None:
        """Close the files."""
        for layer in self.layers:
            layer.array.close()


class Gradients:
    """What a layer's rows were blamed for, summed over all blocks: in memory, part by part, from when it is touched."""

    def __init__(self, graph: CutGraph, width: int) -> None:
        self.graph, self.width = graph, width
        self._sums: dict[int, Floats] = {}
        self.stats = IoStats()

    def add(self, block: Block, rows: Floats) -> None:
        """Add a block's gradient: its own nodes', and those of the nodes it gathered."""
        self._of(block.part)[:] += rows[: block.n]
        cuts = self.graph.cuts[block.part]
        for q in np.flatnonzero(np.diff(cuts)).tolist():
            a, b = int(cuts[q]), int(cuts[q + 1])
            _add(self._of(q), block.outside[a:b], int(self.graph.ptr[q]), rows[block.n + a : block.n + b])

    def _of(self, part: int) -> Floats:
        if part not in self._sums:
            self._sums[part] = np.zeros((int(self.graph.sizes[part]), self.width), np.float32)
        return self._sums[part]

    def take(self, part: int) -> Floats:
        """A part's sums, which are kept here no longer."""
        self._of(part)
        return self._sums.pop(part)

    def close(self) -> None:
        """Let them go."""
        self._sums.clear()


@dataclass
class LoggedGradients:
    """The same on disk: every block's gradient is appended as it is, and a part's are added up at its turn."""

    path: Path
    graph: CutGraph
    width: int
    chunk: int = 1 << 22
    _first: dict[int, int] = field(default_factory=dict)  # by part, the page its gradient begins on
    _end: int = 0

    def __post_init__(self) -> None:
        self._file = PagedFile.create(self.path)

    @property
    def stats(self) -> IoStats:
        """What the log was asked."""
        return self._file.stats

    def add(self, block: Block, rows: Floats) -> None:
        """Append a block's gradient."""
        self._first[block.part] = self._end
        flat = np.ascontiguousarray(rows, np.float32).reshape(-1).view(np.uint8)
        for at in range(0, len(flat), self.chunk):
            some = flat[at : at + self.chunk]
            pages = aligned(-(-len(some) // PAGE) * PAGE)
            pages[: len(some)] = some
            pages[len(some) :] = 0
            self._file.write_span(self._end, pages)
            self._end += len(pages) // PAGE

    def take(self, part: int) -> Floats:
        """A part's sums: its own, and what every other part logged for it."""
        graph, n = self.graph, int(self.graph.sizes[part])
        sums = np.zeros((n, self.width), np.float32)
        for p in range(graph.parts):
            a, b = (int(graph.cuts[p][q]) for q in (part, part + 1))
            if p == part:
                for at, rows in self._rows(p, 0, n):
                    sums[at : at + len(rows)] += rows
            elif a < b:
                ids = graph.outside(p)[a:b]
                for at, rows in self._rows(p, int(graph.sizes[p]) + a, b - a):
                    _add(sums, ids[at : at + len(rows)], int(graph.ptr[part]), rows)
        return sums

    def _rows(self, part: int, start: int, count: int) -> Iterator[tuple[int, Floats]]:
        """Rows of what a part logged, some at a time, each with its place among those asked for."""
        size = 4 * self.width
        some = max(self.chunk // size, 1)
        for at in range(0, count, some):
            a, b = (start + at) * size, (start + min(at + some, count)) * size
            first = a // PAGE
            raw = self._file.read_span(self._first[part] + first, -(-b // PAGE) - first)
            yield at, raw[a - first * PAGE : b - first * PAGE].view(np.float32).reshape(-1, self.width)

    def close(self) -> None:
        """Drop the log."""
        self._file.close()
        self.path.unlink(missing_ok=True)


@njit(cache=True, nogil=True)
def _take(rows, ids, first, out):
    """Copy the rows of these nodes, of which `first` has the first row: without the lock, while others compute."""
    for i in range(len(ids)):
        of = np.uintp(ids[i] - first)
        for k in range(rows.shape[1]):
            out[i, k] = rows[of, k]


@njit(cache=True, nogil=True)
def _add(sums, ids, first, rows):
    """Add rows to those of these nodes, each named once."""
    for i in range(len(ids)):
        to = np.uintp(ids[i] - first)
        for k in range(rows.shape[1]):
            sums[to, k] += rows[i, k]

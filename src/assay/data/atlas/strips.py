"""A layer in strips of columns: so few at a time that every node's accumulator fits into memory, and none is evicted.

Where neighbours lie anywhere, a tier of whole accumulators loses most of them before they are complete, and each one
is written and read as often as it comes back. A strip is as wide as memory has room for all nodes. Messages are
written once, strip by strip; each strip is then streamed along the edges into its sums; and the sums are put together
into rows. Rows cross the disk a few times, and edges once a strip, in order: nothing depends on how the nodes lie.

Zheng et al., "Semi-external memory sparse matrix multiplication for billion-node graphs", TPDS 2017, cut the dense
matrix the same way.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.data.atlas.attention import Weights, weigh
from assay.data.atlas.layers import SUM, Floats, Int32s, Layer, facing, finish, message, own
from assay.data.atlas.streaming import Progress, ahead, pieces
from assay.data.atlas.tiers import absorb, clear_all
from assay.data.disk.arrays import DiskArray, RowWriter
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE, IoStats, PagedFile, Ticket, aligned
from assay.sim.blas import threads_for
from assay.sim.compiled import njit
from assay.sim.memory import return_freed

SUMS, SENT, EDGES, WIDE = 0.72, 0.10, 0.05, 0.75  # shares of the memory that nodes leave over; WIDE: before and after
BOOKS = 160 << 10  # bytes that threads and Python's objects take, however little else is held
HEADS = 12  # bytes a node and head while edges are weighed, and as many for the head in work
LANE = 8  # columns that are added at once; strips are filled up to a multiple, and their pages hold few rows


@dataclass(frozen=True)
class Strip:
    """Columns `start` to `stop` of the messages, and for GAT the heads that they belong to."""

    start: int
    stop: int
    heads: slice

    @property
    def width(self) -> int:
        """How many columns these are."""
        return self.stop - self.start

    def of_message(self, layer: Layer) -> list[int]:
        """Where they are in a message: for GAT behind a logit a head."""
        skip = layer.heads if layer.kind == "gat" else 0
        return list(range(skip + self.start, skip + self.stop))

    def of_sums(self, layer: Layer) -> list[int]:
        """Where they are in an accumulator: for GAT behind the largest logits and the weights."""
        skip = 2 * layer.heads if layer.kind == "gat" else 0
        return list(range(skip + self.start, skip + self.stop))


def strips_of(layer: Layer, floats: int) -> list[Strip]:
    """The messages' columns in strips whose sums have at most so many floats; none mixes part of a head with another.

    >>> gcn = Layer("gcn", {"lin": np.ones((10, 12), np.float32)}, False)
    >>> [(strip.start, strip.stop) for strip in strips_of(gcn, 9)]
    [(0, 8), (8, 10)]
    """
    if layer.kind != "gat":
        return [Strip(a, b, slice(0, 0)) for a, b in _cuts(0, layer.message_width, floats)]
    per = (layer.message_width - layer.heads) // layer.heads
    if whole := floats // (per + 1):  # and a node's weight for itself
        return [Strip(a * per, b * per, slice(a, b)) for a, b in _cuts(0, layer.heads, whole, 1)]
    return [Strip(a, b, slice(h, h + 1)) for h in range(layer.heads) for a, b in _cuts(h * per, (h + 1) * per, floats)]


def _cuts(start: int, stop: int, most: int, multiple: int = LANE) -> list[tuple[int, int]]:
    """Pieces of at most `most`, about alike, and multiples of a lane where that fits."""
    size = -(-(stop - start) // -(-(stop - start) // most))
    if (rounded := -(-size // multiple) * multiple) <= most:
        size = rounded
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


@dataclass(frozen=True)
class StripPlan:
    """How much of everything is held at once."""

    strips: tuple[Strip, ...]
    rows: int  # whole rows in flight
    sent: int  # rows of a strip in flight
    edges: int

    @staticmethod
    def of(layer: Layer, n: int, memory: int) -> StripPlan | None:
        """Divide `memory` bytes; None where no strip of eight columns fits.

        >>> layer = Layer("gcn", {"lin": np.ones((128, 128), np.float32)}, False)
        >>> len(StripPlan.of(layer, 10**6, 64 << 20).strips), StripPlan.of(layer, 10**6, 16 << 20)
        (16, None)
        """
        heads = layer.heads if layer.kind == "gat" else 0
        rest = memory - BOOKS - n * (8 if heads else 4)  # degrees, and what nodes weigh for themselves
        floats = int(rest * SUMS) // (4 * max(n, 1)) // LANE * LANE
        if floats < LANE or rest < n * HEADS * (heads + 1):
            return None
        strips = tuple(strips_of(layer, floats))
        before = 3 * layer.in_width + 4 * layer.message_width
        after = 3 * layer.width + 3 * layer.out_width + (2 * layer.in_width if layer.kind == "sage" else 0)
        # While rows are sent, what both ends of an edge bring to the attention is held beside them.
        rows = int((rest - 8 * n * heads) * WIDE) // (4 * max(before, after))
        width = max(strip.width for strip in strips) + LANE
        if rows < PAGE // LANE // 4:
            return None
        edges = min(int(rest * EDGES) // (16 if heads else 8), 1 << 22)  # with their weights, where they have any
        return StripPlan(strips, min(rows, n), min(int(rest * SENT) // (8 * width + 16), n), edges)

    def moved(self, layer: Layer, graph: DiskGraph) -> int:
        """Bytes that a layer reads and writes: rows in, messages and sums out and in again, rows out, edges."""
        wide = len(self.strips) * -(-max(strip.width for strip in self.strips) // LANE) * LANE
        rows = layer.in_width * (2 if layer.kind == "sage" else 1) + 4 * wide + layer.out_width
        heads = layer.heads if layer.kind == "gat" else 0
        edges = len(self.strips) * (4 * graph.m + 8 * graph.n) + heads * (3 * (4 * graph.m + 8 * graph.n))
        read = sum(int(strip.heads.stop - strip.heads.start) for strip in self.strips)
        return 4 * graph.n * rows + edges + (heads + read) * 4 * (graph.m + graph.n)


class _Striped:
    """Rows of every strip in one file, strip after strip: short strips are filled up to the width of the widest."""

    def __init__(self, path: Path, n: int, columns: list[list[int]]) -> None:
        width = -(-max(map(len, columns)) // LANE) * LANE
        self.columns = np.full((len(columns), width), -1, np.int32)  # of a whole row, or -1
        for strip, places in enumerate(columns):
            self.columns[strip, : len(places)] = places
        self.n, self.width, self.group = n, width, DiskArray.group_of(4 * width)
        self.padded = -(-n // self.group) * self.group
        self.file = PagedFile.create(path)
        self._writing: Ticket[None] | None = None

    def strip(self, number: int) -> DiskArray:
        """One strip as a row store."""
        return DiskArray(self.file, (self.n, self.width), np.dtype(np.float32), 4 * self.width * self.padded * number)

    def write(self, start: int, rows: Floats) -> None:
        """Begin to write whole rows from `start` on, a multiple of `group`, each strip to its place."""
        count = -(-len(rows) // self.group) * self.group
        out = aligned(4 * self.columns.size * count).view(np.float32).reshape(len(self.columns), count, self.width)
        _cut(rows, self.columns, out)
        self.written()
        spans = [(self._page(k, start), out[k].reshape(-1).view(np.uint8)) for k in range(len(out))]
        self._writing = self.file.write_spans_async(spans)

    def written(self) -> None:
        """Return when no write is under way."""
        if self._writing is not None:
            self._writing.wait()
            self._writing = None

    def read(self, start: int, stop: int, width: int) -> Floats:
        """Whole rows of `width` columns, put together from their strips; from a multiple of `group` on."""
        count = -(-(stop - start) // self.group) * self.group
        spans = [(self._page(k, start), 4 * self.width * count // PAGE) for k in range(len(self.columns))]
        raw = self.file.read_spans_async(spans).wait().view(np.float32)
        out = np.zeros((stop - start, width), np.float32)
        _paste(raw.reshape(len(self.columns), count, self.width), self.columns, out)
        return out

    def _page(self, number: int, start: int) -> int:
        return 4 * self.width * (self.padded * number + start) // PAGE

    def close(self) -> None:
        """Drop the file."""
        self.file.close()
        self.file.path.unlink()


def run_strips(
    layer: Layer, graph: DiskGraph, degree: Int32s, source: DiskArray, target: DiskArray, plan: StripPlan,
    scratch: Path, progress: Progress,
) -> IoStats:  # fmt: skip
    """Compute a layer's rows; what the files between its steps were asked."""
    sent = _Striped(scratch / "sent", graph.n, [strip.of_message(layer) for strip in plan.strips])
    sums = _Striped(scratch / "sums", graph.n, [strip.of_sums(layer) for strip in plan.strips])
    asked = IoStats()
    with threads_for(plan.rows * layer.in_width * layer.out_width):
        weights = _send(layer, graph, degree, source, sent, plan, scratch, progress)
        return_freed()  # what rows took makes room for sums
        acc = sums.strip(0).buffer(sums.padded)
        for number, strip in enumerate(plan.strips):
            _add_up(layer, graph, plan, strip, sent.strip(number), sums.strip(number), acc, weights)
            progress(graph.n // 4 + (number + 1) * graph.n // (2 * len(plan.strips)))
        del acc
        sent.close()
        if weights is not None:
            asked = weights.stats
            weights.close()
        _put_together(layer, degree, source, sums, target, plan, progress)
    sums.close()
    return sent.file.stats + sums.file.stats + asked


def _send(
    layer: Layer, graph: DiskGraph, degree: Int32s, source: DiskArray, sent: _Striped, plan: StripPlan, scratch: Path,
    progress: Progress,
) -> Weights | None:  # fmt: skip
    """Write every node's message; return what edges weigh, where they are weighed."""
    heads = layer.heads if layer.kind == "gat" else 0
    logits, halves = (np.empty((len(source), heads), np.float32) for _ in range(2))
    for start, raw in source.stream(max(plan.rows // sent.group, 1) * sent.group):
        x = raw.astype(np.float32, copy=False)
        rows = message(layer, x, degree[start : start + len(x)])
        sent.write(start, rows)
        if heads:
            logits[start : start + len(x)] = rows[:, :heads]
            halves[start : start + len(x)] = facing(layer, x)
        progress(start // 4)
    sent.written()
    return weigh(graph, logits, halves, plan.edges, scratch) if heads else None


def _add_up(
    layer: Layer, graph: DiskGraph, plan: StripPlan, strip: Strip, sent: DiskArray, sums: DiskArray,
    acc: Floats, weights: Weights | None,
) -> None:  # fmt: skip
    """A strip's sums of every node in `acc` and on the disk, from one pass over its messages and the edges."""
    clear_all(acc, layer.reduce, strip.width, 0)
    beside = weights.edges[strip.heads] if weights else []
    own_weights = [array.rows(0, graph.n) for array in weights.own[strip.heads]] if weights else []
    weight, chunk = _own_weight(layer), -1
    for first, rows, bounds, start, targets, weighed in pieces(graph, sent, plan.sent, plan.edges, beside):
        if first != chunk:
            chunk = first
            if weights:
                for h, mine in enumerate(own_weights):
                    _weigh_own(acc, first, rows, mine, *_columns(strip, h))
            else:
                _own(acc, first, rows, strip.width, weight, layer.reduce)
        if weights:
            for h, values in enumerate(weighed):
                _weigh(acc, first, rows, bounds, start, targets, values, *_columns(strip, h))
        elif layer.reduce == SUM:
            _add(acc, first, rows, bounds, start, targets, layer.drops_loops)
        else:
            _push(acc, first, rows, strip.width, bounds, start, targets, layer.drops_loops, layer.reduce)
    sums.file.write_span(sums.offset // PAGE, acc.reshape(-1).view(np.uint8))


def _columns(strip: Strip, head: int) -> tuple[int, int]:
    """Where the columns of a strip's head begin and end in it."""
    per = strip.width // (strip.heads.stop - strip.heads.start)
    return head * per, (head + 1) * per


def _put_together(
    layer: Layer, degree: Int32s, source: DiskArray, sums: _Striped, target: DiskArray, plan: StripPlan,
    progress: Progress,
) -> None:  # fmt: skip
    """Rows from the strips of their sums."""
    step = max(plan.rows // sums.group, 1) * sums.group
    writer = RowWriter(target, 8 * step * layer.out_width)
    own_rows = source.stream(step) if layer.kind == "sage" else None
    spans = ((start, min(start + step, sums.n)) for start in range(0, sums.n, step))
    for start, total in ahead((a, sums.read(a, b, layer.width)) for a, b in spans):
        some = degree[start : start + len(total)]
        if layer.kind == "gat":
            total[:, layer.heads : 2 * layer.heads] = 1  # weights were divided by their sum before
        if own_rows is not None:
            x = next(own_rows)[1].astype(np.float32, copy=False)
            if layer.projects:
                total += own(layer, x, some, total, None)
            else:
                total[:, layer.message_width :] = x
        writer.append(finish(layer, total, some))
        progress(3 * sums.n // 4 + start // 4)
    writer.end()


def _own_weight(layer: Layer) -> np.float32:
    """How often a node's message goes to itself; GraphSAGE keeps its own row apart, and adds it at the end."""
    return np.float32({"sage": 0, "gin": 1 + float(layer.weights.get("eps", 0))}.get(layer.kind, 1))


@njit(cache=True, nogil=True)
def _cut(rows, columns, out):
    for strip in range(len(columns)):
        for i in range(len(rows)):
            for j in range(columns.shape[1]):
                out[strip, i, j] = rows[i, columns[strip, j]] if columns[strip, j] >= 0 else np.float32(0)


@njit(cache=True, nogil=True)
def _paste(parts, columns, out):
    for strip in range(len(columns)):
        for i in range(len(out)):
            for j in range(columns.shape[1]):
                if columns[strip, j] >= 0:
                    out[i, columns[strip, j]] = parts[strip, i, j]


@njit(cache=True, nogil=True)
def _own(acc, first, sent, columns, weight, reduce):
    """What nodes send themselves."""
    if weight == 0:
        return
    row, none = np.empty(columns, np.float32), np.empty((0, 0), np.float32)
    for i in range(len(sent)):
        for j in range(len(row)):
            row[j] = weight * sent[i, j]
        absorb(acc, first + i, row, reduce, columns, none, first + i, 0)


@njit(cache=True, nogil=True)
def _push(acc, first, sent, columns, bounds, start, targets, drop, reduce):
    """Add a chunk's rows to the targets of their edges from `start` on."""
    row, none = np.searchsorted(bounds, start, side="right") - 1, np.empty((0, 0), np.float32)
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        v = targets[e - start]
        if not (drop and v == first + row):
            absorb(acc, v, sent[row], reduce, columns, none, v, 0)


@njit(cache=True, nogil=True)
def _weigh_own(acc, first, sent, weights, begin, end):
    """A head's columns of what nodes send themselves."""
    for i in range(len(sent)):
        weight, to, of = weights[first + i], np.uintp(first + i), np.uintp(i)
        for j in range(np.uintp(begin), np.uintp(end)):
            acc[to, j] += weight * sent[of, j]


@njit(cache=True, nogil=True)
def _weigh(acc, first, sent, bounds, start, targets, weights, begin, end):
    """Add a head's columns of a chunk's rows, weighed, to the targets of their edges from `start` on."""
    row = np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        weight, to, of = weights[e - start], np.uintp(targets[e - start]), np.uintp(row)
        for j in range(np.uintp(begin), np.uintp(end)):
            acc[to, j] += weight * sent[of, j]


@njit(cache=True, nogil=True)
def _add(acc, first, sent, bounds, start, targets, drop):
    """The same for sums. Numbers without a sign spare the test for negative ones, which keeps a loop from vectors."""
    columns, row = sent.shape[1], np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(targets)):
        while e >= bounds[row + 1]:
            row += 1
        v = targets[e - start]
        if not (drop and v == first + row):
            to, of = np.uintp(v), np.uintp(row)
            for j in range(columns):
                acc[to, j] += sent[of, j]

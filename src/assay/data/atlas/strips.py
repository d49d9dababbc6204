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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from assay.data.atlas.attention import Weights, groups, weigh
from assay.data.atlas.layers import SUM, Floats, Int32s, Layer, columns, ends, finish, finish_weighed, own_projected
from assay.data.atlas.streaming import DEEP, Progress, blocks, pieces, shared
from assay.data.atlas.tiers import absorb, clear_all
from assay.data.disk.arrays import DiskArray
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE, Bytes, Int64s, IoStats, PagedFile, aligned
from assay.sim.blas import threads_for
from assay.sim.compiled import njit
from assay.sim.memory import return_freed

SUMS, READ, WIDE = 0.72, 0.15, 0.75  # shares of the memory that nodes leave over; WIDE: before and after
BOOKS = 160 << 10  # bytes that threads and Python's objects take, however little else is held
HEADS = 8  # bytes a node and head while edges are weighed, and as many for the heads in work
THREADS = 2  # that send and finish rows: with a third, each has a third fewer rows at a time, which takes longer
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


def strips_of(layer: Layer, floats: int) -> list[Strip]:
    """The messages' columns in strips whose sums have at most so many floats; none mixes part of a head with another.

    >>> gcn = Layer("gcn", {"lin": np.ones((10, 12), np.float32)}, False)
    >>> [(strip.start, strip.stop) for strip in strips_of(gcn, 9)]
    [(0, 8), (8, 10)]
    """
    if layer.kind != "gat":
        return [Strip(a, b, slice(0, 0)) for a, b in _cuts(0, _summed(layer), floats)]
    per = _summed(layer) // layer.heads
    if whole := floats // (per + 1):  # and a node's weight for itself
        return [Strip(a * per, b * per, slice(a, b)) for a, b in _cuts(0, layer.heads, whole, 1)]
    return [Strip(a, b, slice(h, h + 1)) for h in range(layer.heads) for a, b in _cuts(h * per, (h + 1) * per, floats)]


def _summed(layer: Layer) -> int:
    """Columns of a message that are added up: for GAT those behind a logit a head."""
    return layer.message_width - (layer.heads if layer.kind == "gat" else 0)


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
    rows: int  # whole rows in each thread's work
    sent: int  # rows of a strip that are read at once
    edges: int
    heads: int = 1  # whose edges are weighed together
    threads: int = THREADS

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
        if floats < LANE:
            return None
        strips = tuple(strips_of(layer, floats))
        width = _padded(strips)
        # While rows are sent, what both ends of an edge bring to the attention is held beside them.
        flying = int((rest - 8 * n * heads) * WIDE) // (4 * _flying(layer, len(strips) * width))
        least = max(PAGE // LANE // 4, DiskArray.group_of(4 * layer.out_width))
        threads = min(flying // least, THREADS)
        shared_heads = max(strip.heads.stop - strip.heads.start for strip in strips)
        weighed = max(int(rest * SUMS) // (HEADS * max(n, 1)) - heads, 0)
        if threads < 1 or weighed < shared_heads:
            return None
        reading = (rest * (SUMS + READ) - 4 * n * width) / (DEEP + 1)  # what is lacking to whole lanes is read, too
        sent, edges = int(reading * 2 / 3) // (4 * width), int(reading / 3) // (4 + 4 * shared_heads)
        return StripPlan(strips, min(flying // threads, n), min(sent, n), min(edges, 1 << 22), weighed, threads)

    @property
    def together(self) -> list[slice]:
        """Heads whose weights are in one file: those of one strip, or of the strips that share a head."""
        return [slice(a, b) for a, b in sorted({(strip.heads.start, strip.heads.stop) for strip in self.strips})]

    def moved(self, layer: Layer, graph: DiskGraph) -> int:
        """Bytes that a layer reads and writes: rows in, messages and sums out and in again, rows out, edges."""
        wide = len(self.strips) * _padded(self.strips)
        rows = layer.in_width * (2 if layer.kind == "sage" else 1) + 4 * wide + layer.out_width
        every = 4 * graph.m + 8 * graph.n  # edges and where they begin
        if layer.kind != "gat":
            return 4 * graph.n * rows + len(self.strips) * every
        files = [*self.together, *(strip.heads for strip in self.strips)]  # written, and read by every strip
        weighed: int = 4 * graph.m * sum(1 + heads.stop - heads.start for heads in files)
        own_weights: int = 4 * graph.n * (layer.heads + sum(one.heads.stop - one.heads.start for one in self.strips))
        bounds = 8 * graph.n * len(self.strips)
        passes = 2 * len(groups(self.together, self.heads))
        return 4 * graph.n * rows + passes * every + weighed + own_weights + bounds


def _padded(strips: Sequence[Strip]) -> int:
    """Columns that a strip takes on the disk and in memory: those of the widest, in whole lanes."""
    widest: int = max(strip.width for strip in strips)
    return -(-widest // LANE) * LANE


def _flying(layer: Layer, wide: int) -> int:
    """Floats for each row in a thread's work: two places, and what numpy makes in passing."""
    first = max(layer.in_width, wide)
    second = max(_summed(layer), wide, layer.width)
    products = [len(step[0]) for step in layer.steps] or [layer.out_width]
    if layer.kind == "gat":
        passing = 2 * layer.out_width if layer.out_width < _summed(layer) else 0
    elif max(products) > min(first, layer.width):  # they have no room in these places
        passing = 3 * max(products)
    else:
        passing = 0
    return first + second + passing


class _Striped:
    """Rows of every strip in one file, strip after strip: short strips are filled up to the width of the widest.

    Messages are written first; a strip's sums then take the place of its messages.
    """

    def __init__(self, path: Path, n: int, strips: Sequence[Strip]) -> None:
        self.bounds = np.array([(strip.start, strip.stop) for strip in strips])
        self.n, self.width = n, _padded(strips)
        self.group = DiskArray.group_of(4 * self.width)
        self.padded = -(-n // self.group) * self.group
        self.file = PagedFile.create(path)
        self.file.reserve(4 * self.width * self.padded * len(strips))

    def strip(self, number: int) -> DiskArray:
        """One strip as a row store."""
        return DiskArray(self.file, (self.n, self.width), np.dtype(np.float32), 4 * self.width * self.padded * number)

    def write(self, start: int, rows: Floats, room: Bytes) -> None:
        """Write rows from `start` on, a multiple of `group`, each strip to its place; cut apart in `room`."""
        parts = self._parts(len(rows), room)
        _cut(rows, self.bounds, parts)
        self.file.write_spans(self._spans(start, parts))

    def read(self, start: int, room: Bytes, out: Floats, add: bool = False) -> None:
        """Read rows from `start` on, a multiple of `group`, put them together from their strips, or `add` them."""
        parts = self._parts(len(out), room)
        self.file.read_into(self._spans(start, parts))
        _paste(parts, self.bounds, out, add)

    def room(self, rows: int) -> int:
        """Bytes that so many rows take, cut apart."""
        return 4 * self.width * len(self.bounds) * -(-rows // self.group) * self.group

    def _parts(self, rows: int, room: Bytes) -> Floats:
        return room[: self.room(rows)].view(np.float32).reshape(len(self.bounds), -1, self.width)

    def _spans(self, start: int, parts: Floats) -> list[tuple[int, Bytes]]:
        """The page on which each strip's part begins, and its memory."""
        page = 4 * self.width * start // PAGE
        every = 4 * self.width * self.padded // PAGE
        return [(page + number * every, part.reshape(-1).view(np.uint8)) for number, part in enumerate(parts)]

    def close(self) -> None:
        """Drop the file."""
        self.file.close()
        self.file.path.unlink()


def run_strips(
    layer: Layer, graph: DiskGraph, degree: Int32s, source: DiskArray, target: DiskArray, plan: StripPlan,
    scratch: Path, progress: Progress,
) -> IoStats:  # fmt: skip
    """Compute a layer's rows; what the files between its steps were asked."""
    striped = _Striped(scratch / "strips", graph.n, plan.strips)
    asked = IoStats()
    with threads_for(plan.rows * layer.in_width * layer.out_width):
        weights = _send(layer, graph, degree, source, striped, plan, scratch, progress)
        return_freed()  # what rows took makes room for sums
        acc = striped.strip(0).buffer(striped.padded)
        for number, strip in enumerate(plan.strips):
            _add_up(layer, graph, plan, strip, striped.strip(number), acc, weights)
            progress(graph.n // 4 + (number + 1) * graph.n // (2 * len(plan.strips)))
        del acc
        if weights is not None:
            asked = weights.stats
            weights.close()
        _put_together(layer, degree, source, striped, target, plan, progress)
    striped.close()
    return striped.file.stats + asked


def _rooms(layer: Layer, source: DiskArray, striped: _Striped, rows: int, threads: int) -> list[tuple[Bytes, Bytes]]:
    """Two places for each thread's rows: one into which they are read or cut apart, one for what is made of them."""
    first = max(source.room(rows), striped.room(rows))
    second = max(striped.room(rows), 4 * rows * layer.width)
    return [(aligned(first), aligned(second)) for _ in range(min(threads, -(-len(source) // rows)))]


def _send(
    layer: Layer, graph: DiskGraph, degree: Int32s, source: DiskArray, striped: _Striped, plan: StripPlan,
    scratch: Path, progress: Progress,
) -> Weights | None:  # fmt: skip
    """Write every node's message; return what edges weigh, where they are weighed."""
    heads = layer.heads if layer.kind == "gat" else 0
    logits, halves = (np.empty((len(source), heads), np.float32) for _ in range(2))
    step = max(plan.rows // striped.group, 1) * striped.group

    def send(start: int, room: tuple[Bytes, Bytes]) -> None:
        stop = min(start + step, graph.n)
        x = source.rows_into(start, stop, room[0]).astype(np.float32, copy=False)
        into = _shaped(room[1], stop - start, _summed(layer))
        rows = columns(layer, x, degree[start:stop], into)
        if heads:
            both = ends(layer, x)
            logits[start:stop], halves[start:stop] = both[:, :heads], both[:, heads:]
        striped.write(start, rows, room[0] if rows is into else room[1])

    for start in shared(send, iter(range(0, graph.n, step)), _rooms(layer, source, striped, step, plan.threads)):
        progress(start // 4)
    return weigh(graph, logits, halves, plan.together, plan.heads, plan.edges, scratch) if heads else None


def _floats(room: Bytes) -> Floats:
    return room[: len(room) // 4 * 4].view(np.float32)


def _shaped(room: Bytes, rows: int, width: int) -> Floats:
    return _floats(room)[: rows * width].reshape(rows, width)


def _add_up(
    layer: Layer, graph: DiskGraph, plan: StripPlan, strip: Strip, striped: DiskArray, acc: Floats,
    weights: Weights | None,
) -> None:  # fmt: skip
    """A strip's sums of every node in `acc` and in place of its messages, from one pass over them and the edges."""
    clear_all(acc, layer.reduce, strip.width, 0)
    if weights is None:
        along, add = graph.indices, partial(_push_all, layer, strip, acc)
    else:
        mine = weights.own[strip.heads.start].rows(0, graph.n)
        along, add = weights.edges[strip.heads.start], partial(_weigh_all, strip, acc, mine)
    chunk = -1
    for first, rows, bounds, start, piece in pieces(graph, blocks(striped, plan.sent), blocks(along, plan.edges)):
        add(first, rows, bounds, start, piece, first != chunk)
        chunk = first
    striped.file.write_span(striped.offset // PAGE, acc.reshape(-1).view(np.uint8))


def _push_all(
    layer: Layer, strip: Strip, acc: Floats, first: int, rows: Floats, bounds: Int64s, start: int, targets: Int32s,
    begins: bool,
) -> None:  # fmt: skip
    """Add a piece of the stream; a chunk that begins brings nodes' own messages."""
    if begins:
        _own(acc, first, rows, strip.width, _own_weight(layer), layer.reduce)
    if layer.reduce == SUM:
        _add(acc, first, rows, bounds, start, targets, layer.drops_loops)
    else:
        _push(acc, first, rows, strip.width, bounds, start, targets, layer.drops_loops, layer.reduce)


def _weigh_all(
    strip: Strip, acc: Floats, mine: Floats, first: int, rows: Floats, bounds: Int64s, start: int, weighed: Int32s,
    begins: bool,
) -> None:  # fmt: skip
    """The same where every edge has a weight for each of the strip's heads."""
    per = strip.width // mine.shape[1]
    if begins:
        _weigh_own(acc, first, rows, mine, per)
    if mine.shape[1] == 1:
        _weigh_one(acc, first, rows, bounds, start, weighed, weighed.view(np.float32))
    else:
        _weigh(acc, first, rows, bounds, start, weighed, weighed.view(np.float32), per)


def _put_together(
    layer: Layer, degree: Int32s, source: DiskArray, striped: _Striped, target: DiskArray, plan: StripPlan,
    progress: Progress,
) -> None:  # fmt: skip
    """Rows from the strips of their sums."""
    group = max(striped.group, target.group)  # both are powers of two
    step = max(plan.rows // group, 1) * group
    width = _summed(layer) if layer.kind == "gat" else layer.width

    def read(start: int, stop: int, room: Bytes) -> Floats:
        return source.rows_into(start, stop, room).astype(np.float32, copy=False)

    def put(start: int, room: tuple[Bytes, Bytes]) -> None:
        stop = min(start + step, striped.n)
        some, total = degree[start:stop], _shaped(room[1], stop - start, width)
        if layer.kind == "sage" and layer.projects:
            own_projected(layer, read(start, stop, room[0]), some, total)
            striped.read(start, room[0], total, add=True)
        else:
            striped.read(start, room[0], total)
            if layer.kind == "sage":
                total[:, layer.message_width :] = read(start, stop, room[0])
        done = finish_weighed(layer, total) if layer.kind == "gat" else finish(layer, total, some, _floats(room[0]))
        target.write(start, done)

    for start in shared(put, iter(range(0, striped.n, step)), _rooms(layer, source, striped, step, plan.threads)):
        progress(3 * striped.n // 4 + start // 4)


def _own_weight(layer: Layer) -> np.float32:
    """How often a node's message goes to itself; GraphSAGE keeps its own row apart, and adds it at the end."""
    return np.float32({"sage": 0, "gin": 1 + float(layer.weights.get("eps", 0))}.get(layer.kind, 1))


@njit(cache=True, nogil=True)
def _cut(rows, bounds, out):
    for strip in range(len(bounds)):
        begin, end = np.uintp(bounds[strip, 0]), np.uintp(bounds[strip, 1])
        for i in range(np.uintp(len(rows))):
            for j in range(begin, end):
                out[strip, i, j - begin] = rows[i, j]
            for j in range(end - begin, np.uintp(out.shape[2])):
                out[strip, i, j] = np.float32(0)


@njit(cache=True, nogil=True)
def _paste(parts, bounds, out, add):
    for strip in range(len(bounds)):
        begin, end = np.uintp(bounds[strip, 0]), np.uintp(bounds[strip, 1])
        for i in range(np.uintp(len(out))):
            if add:
                for j in range(begin, end):
                    out[i, j] += parts[strip, i, j - begin]
            else:
                for j in range(begin, end):
                    out[i, j] = parts[strip, i, j - begin]


@njit(cache=True, nogil=True)
def _own(acc, first, sent, columns, weight, reduce):
    """What nodes send themselves."""
    if weight == 0:
        return
    row, none = np.empty(columns, np.float32), np.empty((0, 0), np.float32)
    for i in range(len(sent)):
        to, of = np.uintp(first + i), np.uintp(i)
        if reduce == SUM:
            for j in range(sent.shape[1]):
                acc[to, j] += weight * sent[of, j]
            continue
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
def _weigh_own(acc, first, sent, weights, per):
    """What nodes send themselves: `per` columns a head, and a weight a head."""
    for i in range(len(sent)):
        to, of = np.uintp(first + i), np.uintp(i)
        for h in range(weights.shape[1]):
            weight, begin = weights[to, h], np.uintp(h * per)
            for j in range(begin, begin + np.uintp(per)):
                acc[to, j] += weight * sent[of, j]


@njit(cache=True, nogil=True)
def _weigh(acc, first, sent, bounds, start, names, weights, per):
    """Add a chunk's rows, weighed, to the targets of their edges from `start` on; weights stand behind the target."""
    row, heads = np.searchsorted(bounds, start, side="right") - 1, weights.shape[1] - 1
    for e in range(start, start + len(names)):
        while e >= bounds[row + 1]:
            row += 1
        at = np.uintp(e - start)
        to, of = np.uintp(names[at, 0]), np.uintp(row)
        for h in range(heads):
            weight, begin = weights[at, h + 1], np.uintp(h * per)
            for j in range(begin, begin + np.uintp(per)):
                acc[to, j] += weight * sent[of, j]


@njit(cache=True, nogil=True)
def _weigh_one(acc, first, sent, bounds, start, names, weights):
    """The same for columns of one head, in two thirds of the time; what fills up a row is zero."""
    columns, row = sent.shape[1], np.searchsorted(bounds, start, side="right") - 1
    for e in range(start, start + len(names)):
        while e >= bounds[row + 1]:
            row += 1
        at = np.uintp(e - start)
        to, of, weight = np.uintp(names[at, 0]), np.uintp(row), weights[at, 1]
        for j in range(columns):
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

"""A navigable small-world graph over sketches, grown a group of documents at a time.

Looking a document up and finding its place in the graph is one traversal: those who are near it are its possible
duplicates, and, if it is none, its neighbours. The documents of a group are looked up at once, in threads, in the graph
as it was before them, and are compared with one another directly; those that are kept choose their links, again in
threads, and get links back, in order. So the graph is a function of the kept documents and the groups they came in, and
a rebuilt one is the same to the last link.

Metrics: the Jaccard distance of bitmaps, h / (h + b) for h differing bits and b shared ones; their Hamming distance;
the share of MinHash slots that differ. The last two are what FOLD is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from assay.data.fold.sketch import ones
from assay.data.fold.threads import in_threads
from assay.sim.compiled import njit
from assay.sim.streams import key

METRICS = ("jaccard", "hamming", "slots")
_LEVELS = 8
AHEAD = 8  # rows asked for before they are needed
LINE = 8  # words of a cache line
_U64 = np.uint64
_FAR = np.float32(2.0)
_FINE = np.float32(1 << 24)  # steps that a distance of 1 is told in


class Arrays(NamedTuple):
    """What the compiled loops work on; row n is document n."""

    vectors: NDArray[np.uint64]
    links: NDArray[np.int32]  # of the lowest level, −1 where there is none
    gaps: NDArray[np.uint16]  # how far each of them is
    above: NDArray[np.int32]  # the first row of `upper` that is the document's, −1 for most
    upper: NDArray[np.int32]  # links of the higher levels, a row a level


@dataclass(frozen=True)
class Found:
    """For each document looked up: the nearest, nearest first; −1 behind the last."""

    ids: NDArray[np.int32]
    far: NDArray[np.float32]

    def of(self, rows: Any) -> Found:
        """For some of the documents."""
        return Found(self.ids[rows], self.far[rows])


class Graph:
    """Sketches that find one another.

    >>> from assay.data.fold.sketch import sketched
    >>> docs = sketched(["a b c d e f g h", "k l m n o p q r", "a b c d e f g x"])
    >>> graph = Graph(docs.bitmaps.shape[1])
    >>> graph.add(docs.bitmaps[:2], graph.search(docs.bitmaps[:2]))
    >>> graph.search(docs.bitmaps[2:]).ids[0, 0]
    np.int32(0)
    """

    def __init__(self, words: int, *, metric: str = "jaccard", links: int = 32, ef: int = 128) -> None:
        self.metric, self.width, self.ef = METRICS.index(metric), links, ef
        self.size = self.rows = 0
        self.entry, self.top = -1, 0
        self._key = np.uint64(key(0, "fold", "levels"))
        self.arrays = Arrays(
            np.zeros((0, words), np.uint64), np.zeros((0, 2 * links), np.int32),
            np.zeros((0, 2 * links), np.uint16), np.zeros(0, np.int32), np.zeros((0, links), np.int32),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Memory that holds something."""
        a = self.arrays
        a_row = sum(one[:1].nbytes for one in (a.vectors, a.links, a.gaps, a.above))
        return self.size * a_row + self.rows * a.upper[:1].nbytes

    def search(self, vectors: NDArray[np.uint64], ef: int | None = None) -> Found:
        """The `ef` nearest of each, as far as the graph leads there."""
        pool = ef or self.ef
        ids, far = np.full((len(vectors), pool), -1, np.int32), np.full((len(vectors), pool), _FAR, np.float32)
        if self.size:

            def some(first: int, last: int) -> None:
                _search(self.arrays, self.metric, vectors, first, last, self.entry, self.top, ids, far)

            in_threads(some, len(vectors), least=16)
        return Found(ids, far)

    def add(self, vectors: NDArray[np.uint64], found: Found) -> None:
        """Link documents that were searched for in the graph as it is now, as one group."""
        first, last = self.size, self.size + len(vectors)
        self._grow(last)
        self.arrays.vectors[first:last] = vectors

        def some(begin: int, end: int) -> None:
            _choose(self.arrays, self.metric, first, first + begin, first + end, found.ids, found.far)

        in_threads(some, last - first, least=16)
        self.entry, self.top, self.rows = _link(
            self.arrays, self.metric, first, last, self.entry, self.top, self.rows, self._key, self.ef
        )
        self.size = last

    def _grow(self, to: int) -> None:
        a = self.arrays
        if to > len(a.vectors):
            room = max(1024, to + to // 4)
            self.arrays = a = a._replace(**{name: _longer(getattr(a, name), room) for name in a._fields[:4]})
        worst = self.rows + (to - self.size) * _LEVELS
        if worst > len(a.upper):
            self.arrays = a._replace(upper=_longer(a.upper, worst + worst // 4))

    def saved(self) -> dict[str, NDArray[Any]]:
        """What cannot be had from the sketches without searching again."""
        a = self.arrays
        head = np.array([self.size, self.rows, self.entry, self.top], np.int64)
        return {"head": head, "links": a.links[: self.size], "gaps": a.gaps[: self.size],
                "above": a.above[: self.size], "upper": a.upper[: self.rows]}  # fmt: skip

    def restore(self, saved: dict[str, NDArray[Any]], vectors: NDArray[np.uint64]) -> None:
        """Take up a saved graph of the documents with these sketches."""
        self.size, self.rows, self.entry, self.top = (int(one) for one in saved["head"])
        ours = vectors[: self.size]
        rows: list[NDArray[Any]] = [ours, saved["links"], saved["gaps"], saved["above"], saved["upper"]]
        self.arrays = Arrays(*(_longer(one, len(one)) for one in rows))


def _longer(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """A copy with room, rows on cache lines; pages that nobody touched are no memory yet."""
    shape = (rows, *array.shape[1:])
    size = int(np.prod(shape)) * array.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    longer: NDArray[Any] = raw[start : start + size].view(array.dtype).reshape(shape)
    longer[: len(array)] = array
    return longer


def _fetch(typing: Any, array: Any, row: Any, word: Any) -> Any:
    """Ask for a cache line before it is needed: waiting for memory is most of what a large graph costs."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        place = [builder.sext(one, ir.IntType(64)) if one.type.width < 64 else one for one in args[1:]]
        start = cgutils.get_item_pointer(context, builder, kind, view, place)
        start = builder.bitcast(start, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [start.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        builder.call(call, [start, *(ir.Constant(number, one) for one in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, row, word), generate


fetch: Any = intrinsic(_fetch)


@njit(cache=True, nogil=True, inline="always")
def _fetch_row(array: Any, row: int, line: int) -> None:
    for word in range(0, array.shape[1], line):
        fetch(array, row, word)


def _line(typing: Any, xs: Any, x: Any, ys: Any, y: Any, word: Any) -> Any:
    """How many bits of eight words of two rows differ, and how many they share: a cache line in a few instructions.

    A loop over words is not made into these by the compiler, and half of what a look-up costs is here.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, line = ir.IntType(64), ir.VectorType(ir.IntType(64), LINE)

        def loaded(kind: Any, array: Any, row: Any) -> Any:
            view = context.make_array(kind)(context, builder, array)
            place = [builder.sext(one, wide) if one.type.width < 64 else one for one in (row, args[4])]
            start = cgutils.get_item_pointer(context, builder, kind, view, place)
            words = builder.load(builder.bitcast(start, line.as_pointer()))
            words.align = 8
            return words

        one, other = loaded(signature.args[0], args[0], args[1]), loaded(signature.args[2], args[2], args[3])
        module, name = builder.module, f"v{LINE}i64"
        count = cgutils.get_or_insert_function(module, ir.FunctionType(line, [line]), f"llvm.ctpop.{name}")
        total = cgutils.get_or_insert_function(module, ir.FunctionType(wide, [line]), f"llvm.vector.reduce.add.{name}")
        both = [builder.xor(one, other), builder.and_(one, other)]
        sums = [builder.call(total, [builder.call(count, [bits])]) for bits in both]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.uint64, 2)(xs, x, ys, y, word), generate


line: Any = intrinsic(_line)


@njit(cache=True, nogil=True)
def _slots_apart(xs: Any, x: int, ys: Any, y: int) -> Any:
    differ = 0
    for i in range(xs.shape[1]):
        both = xs[x, i] ^ ys[y, i]
        differ += (both & _U64(0xFFFFFFFF) != 0) + (both >> _U64(32) != 0)
    return np.float32(differ / (2 * xs.shape[1]))


@njit(cache=True, nogil=True, inline="always")
def distance(metric: int, xs: Any, x: int, ys: Any, y: int) -> Any:
    """Between two sketches, rows of two arrays: 0 to 1."""
    if metric == 2:
        return _slots_apart(xs, x, ys, y)
    words, apart, shared = xs.shape[1], _U64(0), _U64(0)
    whole = words - words % LINE
    for i in range(0, whole, LINE):  # counting twice is cheaper than waiting for a count that lies elsewhere
        differing, common = line(xs, x, ys, y, i)
        apart += differing
        shared += common
    for i in range(whole, words):
        apart += ones(xs[x, i] ^ ys[y, i])
        shared += ones(xs[x, i] & ys[y, i])
    either = apart + shared if metric == 0 else _U64(64 * words)
    return np.float32(apart) / np.float32(max(either, _U64(1)))


@njit(cache=True, nogil=True)
def apart(vectors: Any) -> Any:
    """All distances between some bitmaps: the lower triangle."""
    n = len(vectors)
    found = np.full((n, n), _FAR, np.float32)
    for i in range(n):
        for j in range(i):
            found[i, j] = distance(0, vectors, i, vectors, j)
    return found


class Visited(NamedTuple):
    """Whom a walk has seen: a bit a document, and which words have one, so that the next walk need not clear all."""

    bits: NDArray[np.uint64]
    touched: NDArray[np.int32]


@njit(cache=True, nogil=True)
def _nobody(size: int, ef: int, width: int) -> Any:
    return Visited(np.zeros((size >> 6) + 1, np.uint64), np.empty(4 * ef * width, np.int32))


@njit(cache=True, nogil=True)
def _unseen(visited: Any, many: int, links: Any, fresh: Any) -> Any:
    """Those of a list that were not seen before, now noted; of a walk that saw too many, none.

    `many` words have a bit before; returns how many are fresh, and how many words have a bit now.
    """
    bits, touched = visited
    n = 0
    for node in links:
        if node < 0 or many == len(touched):
            break
        word, bit = node >> 6, _U64(1) << _U64(node & 63)
        seen = bits[word]
        if seen & bit == 0:
            touched[many] = word
            many += seen == 0
            bits[word] = seen | bit
            fresh[n] = node
            n += 1
    return n, many


@njit(cache=True, nogil=True)
def _packed(d: Any, node: int) -> Any:
    """A distance and a number in one word that sorts by the distance; the lowest bit says "expanded"."""
    return _U64(d * _FINE) << _U64(32) | _U64(node) << _U64(1)


@njit(cache=True, nogil=True)
def _node(word: Any) -> int:
    return int((word & _U64(0xFFFFFFFF)) >> _U64(1))


@njit(cache=True, nogil=True)
def _far(word: Any) -> Any:
    return np.float32(word >> _U64(32)) / _FINE


@njit(cache=True, nogil=True)
def _place(pool: Any, count: int, word: Any) -> int:
    """Into the pool, which is in order and holds `count`; returns where, or its length if all of it is nearer."""
    at = count
    if count == len(pool):
        if word >= pool[count - 1]:
            return count
        at -= 1
    while at > 0 and pool[at - 1] > word:
        pool[at] = pool[at - 1]
        at -= 1
    pool[at] = word
    return at


@njit(cache=True, nogil=True)
def _walk(a: Any, metric: int, queries: Any, q: int, level: int, pool: Any, visited: Any, start: int) -> int:
    """Best-first on one level until all of the pool has been expanded; returns how many it holds."""
    fresh, room = np.empty(a.links.shape[1], np.int32), len(pool)
    pool[0] = _packed(distance(metric, queries, q, a.vectors, start), start)
    fresh[0] = start
    _, many = _unseen(visited, 0, fresh[:1], fresh)
    at, count = 0, 1
    while at < count:
        if pool[at] & _U64(1):
            at += 1
            continue
        node = _node(pool[at])
        pool[at] |= _U64(1)
        if level == 0 and at + 1 < count:  # most often the next one
            _fetch_row(a.links, _node(pool[at + 1]), 16)
        links = a.links[node] if level == 0 else a.upper[a.above[node] + level - 1]
        n, many = _unseen(visited, many, links, fresh)
        for i in range(min(n, AHEAD)):
            _fetch_row(a.vectors, fresh[i], LINE)
        at += 1
        for i in range(n):
            if i + AHEAD < n:
                _fetch_row(a.vectors, fresh[i + AHEAD], LINE)
            word = _packed(distance(metric, queries, q, a.vectors, fresh[i]), fresh[i])
            if count < room or word < pool[room - 1]:
                place = _place(pool, count, word)
                count, at = min(count + 1, room), min(at, place)
    for i in range(many):
        visited.bits[visited.touched[i]] = _U64(0)
    return count


@njit(cache=True, nogil=True)
def _descend(a: Any, metric: int, queries: Any, q: int, entry: int, top: int, until: int) -> int:
    """Greedily to the nearest on the level above `until`."""
    node = entry
    best = distance(metric, queries, q, a.vectors, node)
    for level in range(top, until, -1):
        moved = True
        while moved:
            moved = False
            for other in a.upper[a.above[node] + level - 1]:
                if other < 0:
                    break
                d = distance(metric, queries, q, a.vectors, other)
                if d < best:
                    best, node, moved = d, other, True
    return node


@njit(cache=True, nogil=True)
def _search(a: Any, metric: int, queries: Any, first: int, last: int, entry: int, top: int, ids: Any, far: Any) -> None:
    ef = ids.shape[1]
    visited, pool = _nobody(len(a.vectors), ef, a.links.shape[1]), np.empty(ef, np.uint64)
    for i in range(first, last):
        start = _descend(a, metric, queries, i, entry, top, 0)
        for k in range(_walk(a, metric, queries, i, 0, pool, visited, start)):
            ids[i, k], far[i, k] = _node(pool[k]), _far(pool[k])


@njit(cache=True, nogil=True)
def _level(seed: Any, number: int, width: int) -> int:
    """By a hash of the number, so that a rebuilt graph has the same levels."""
    h = (seed ^ _U64(number)) * _U64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> _U64(31))) * _U64(0xBF58476D1CE4E5B9)
    h = h ^ (h >> _U64(29))
    unit = (float(h >> _U64(11)) + 0.5) / 9007199254740992.0
    return min(_LEVELS, int(-np.log(unit) / np.log(width)))


@njit(cache=True, nogil=True)
def _chosen(a: Any, metric: int, pool: Any, count: int, most: int, out: Any) -> int:
    """Neighbours that lie in different directions: none is nearer to another one than to the document.

    If that leaves room, the nearest of the others.
    """
    n = 0
    taken = np.zeros(count, np.bool_)
    for i in range(count):
        if n == most:
            return n
        node, far, good = _node(pool[i]), _far(pool[i]), True
        for j in range(n):
            if distance(metric, a.vectors, node, a.vectors, _node(pool[out[j]])) < far:
                good = False
                break
        if good:
            out[n] = i
            taken[i] = True
            n += 1
    for i in range(count):
        if n == most:
            break
        if not taken[i]:
            out[n] = i
            n += 1
    return n


@njit(cache=True, nogil=True)
def _gap(d: Any) -> Any:
    return np.uint16(min(d, np.float32(1)) * np.float32(65535))


@njit(cache=True, nogil=True)
def _choose(a: Any, metric: int, group: int, first: int, last: int, ids: Any, far: Any) -> None:
    """The links of some documents of the group that begins at `group`: to what was found, and to those before them."""
    width, ef = a.upper.shape[1], ids.shape[1]
    pool, out = np.empty(ef, np.uint64), np.empty(width, np.int64)
    for new in range(first, last):
        count = 0
        while count < ef and ids[new - group, count] >= 0:
            pool[count] = _packed(far[new - group, count], ids[new - group, count])
            count += 1
        for other in range(group, new):  # these were not in the graph when it was looked up
            d = distance(metric, a.vectors, new, a.vectors, other)
            if _place(pool, count, _packed(d, other)) < ef:
                count = min(count + 1, ef)
        n = _chosen(a, metric, pool, count, width, out)
        for j in range(n):
            a.links[new, j], a.gaps[new, j] = _node(pool[out[j]]), _gap(_far(pool[out[j]]))
        if n < a.links.shape[1]:
            a.links[new, n] = -1


@njit(cache=True, nogil=True)
def _back(links: Any, gaps: Any, node: int, gap: Any, sure: bool) -> None:
    """A link back to the new document: in a free place, or in that of the farthest; `sure`, even if it is farther."""
    worst, place = -1, -1
    for i in range(len(links)):
        if links[i] < 0:
            place = i
            break
        if int(gaps[i]) > worst:
            worst, place = int(gaps[i]), i
    if links[place] < 0 or int(gap) < worst or sure:
        if links[place] < 0 and place + 1 < len(links):
            links[place + 1] = -1
        links[place], gaps[place] = node, gap


@njit(cache=True, nogil=True)
def _link(a: Any, metric: int, first: int, last: int, entry: int, top: int, rows: int, seed: Any, ef: int) -> Any:
    """Links back from those that were chosen, and the higher levels: in order, for they may meet."""
    width = a.upper.shape[1]
    pool, out = np.empty(ef, np.uint64), np.empty(width, np.int64)
    visited = _nobody(len(a.vectors), ef, width)
    for new in range(first, last):
        level = _level(seed, new, width)
        a.above[new] = rows if level else -1
        for r in range(rows, rows + level):
            a.upper[r, 0] = -1
        rows += level
        for j in range(width):
            other = a.links[new, j]
            if other < 0:
                break
            _back(a.links[other], a.gaps[other], new, a.gaps[new, j], j < 2)
        _link_above(a, metric, new, level, entry, top, pool, out, visited)
        if level > top or entry < 0:
            entry, top = new, level
    return entry, top, rows


@njit(cache=True, nogil=True)
def _link_above(
    a: Any, metric: int, new: int, level: int, entry: int, top: int, pool: Any, out: Any, visited: Any
) -> None:
    """On the higher levels, where one document in `width` is."""
    width = a.upper.shape[1]
    for high in range(1, min(level, top) + 1):  # upwards: the way down must not lead over the document itself
        start = _descend(a, metric, a.vectors, new, entry, top, high)
        count = _walk(a, metric, a.vectors, new, high, pool, visited, start)
        n = _chosen(a, metric, pool, count, width, out)
        mine = a.upper[a.above[new] + high - 1]
        for j in range(n):
            other = _node(pool[out[j]])
            mine[j] = other
            _back_above(a, metric, other, a.upper[a.above[other] + high - 1], new, _far(pool[out[j]]))
        if n < width:
            mine[n] = -1


@njit(cache=True, nogil=True)
def _back_above(a: Any, metric: int, other: int, theirs: Any, new: int, d: Any) -> None:
    """As `_back`, for the few whose distances are not kept."""
    worst, place = np.float32(-1), -1
    for i in range(len(theirs)):
        if theirs[i] < 0:
            theirs[i] = new
            if i + 1 < len(theirs):
                theirs[i + 1] = -1
            return
        far = distance(metric, a.vectors, other, a.vectors, theirs[i])
        if far > worst:
            worst, place = far, i
    if d < worst:
        theirs[place] = new

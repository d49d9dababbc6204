"""The walk to a vector's neighbours, compiled, with its reads inside: several pages are on the way at once.

A walk is best-first over a list ordered by the distances that the codes in memory give. The nearest few that were not
expanded are taken together; what memory does not hold of their edge lists is read, past the page cache, by Linux's own
asynchronous reads (without a thread or the interpreter's lock), or one after the other where the kernel has none.

In the split layout an edge page holds many lists and no vectors. Vectors are read for the nearest of the list only, and
begun when its head has been still for a while: they come in while the walk runs out. In the packed layout a node's
vector lies before its list, and comes with it.

Everything on disk is four-byte words: a page is 1,024 of them.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import platform
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from assay.data.disk.pages import PAGE, aligned
from assay.data.vectors.kernels import FAST, squared
from assay.sim.compiled import njit

WORDS = PAGE // 4
QUEUE = 512  # reads on the way, at most
FILE = 40  # a page's place: its file's number above so many bits, its number in the file below
RAM, CACHED, READ = 0, 1, 2  # where an expanded node's list came from
_SETUP, _DESTROY, _SUBMIT, _EVENTS = {"aarch64": (0, 1, 2, 4)}.get(platform.machine(), (206, 207, 209, 208))
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 6))
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))

Array = npt.NDArray[Any]


class Geometry(NamedTuple):
    """How records lie in pages: so many to a page, or one over `span` pages; places in words."""

    width: int
    degree: int
    per: int
    span: int
    words: int
    list_at: int
    vector_per: int
    vector_span: int
    packed: bool
    by_page: bool  # the cache holds whole pages, not edge lists


def geometry(width: int, degree: int, packed: bool, by_page: bool) -> Geometry:
    """The layout for vectors of a width and lists of a degree.

    >>> geometry(768, 64, packed=False, by_page=False).per, geometry(768, 64, packed=True, by_page=True).per
    (15, 1)
    """
    words = degree + 1 + (width if packed else 0)
    return Geometry(
        width, degree, max(WORDS // words, 1), -(-words // WORDS), words, width if packed else 0,
        max(WORDS // width, 1), -(-width // WORDS), packed, by_page,
    )  # fmt: skip


class View(NamedTuple):
    """What a walk reads of an index; nothing of it changes while walks are under way."""

    codes: Array
    slots: Array  # a node's place in the files
    fresh_row: Array  # where a list lies that changed since the last checkpoint, or -1
    fresh: Array
    first_fresh: int  # nodes from here on came since; their vectors are
    fresh_vectors: Array
    row_of: Array  # where the cache holds a node's list, or a page, or -1
    pool: Array
    edge_place: Array
    edge_sum: Array
    vector_place: Array
    vector_sum: Array
    files: Array
    geo: Geometry


class Scratch(NamedTuple):
    """Memory of one walk at a time."""

    ids: Array
    far: Array
    done: Array
    hop: Array
    seen: Array
    expanded: Array
    expanded_far: Array
    expanded_hop: Array
    source: Array
    lists: Array
    pages: Array
    page_of: Array  # rows of `pages`: which page,
    wanted_sum: Array  # with which sum, and whether it came
    came: Array
    row_at: Array  # a page's row, by hash
    vectors: Array  # exact ones, as many as asked
    exact: Array
    vector_row: Array
    head: Array
    tally: Array  # see the names below
    blocks: Array
    pointers: Array
    events: Array


STEPS, LENGTH, REQUESTS, ROWS, BAD, QUEUED, FLYING, CONTEXT, WANTED = range(9)


def scratch(breadth: int, want: int, geo: Geometry, direct: bool) -> Scratch:
    """Room for walks of a breadth that want so many exact vectors; where reads are not direct, one at a time."""
    steps = 4 * breadth + 16
    rows = steps * geo.span + want * geo.vector_span * 2
    tally = np.zeros(9, np.int64)
    if not direct or _setup(tally[CONTEXT : CONTEXT + 1]) != 0:
        tally[CONTEXT] = 0
    seen = 1 << int(np.ceil(np.log2(2 * steps * (geo.degree + 1))))
    return Scratch(
        np.empty(breadth, np.int32), np.empty(breadth, np.float32), np.zeros(breadth, np.bool_),
        np.zeros(breadth, np.int16), np.empty(seen, np.int32), np.empty(steps, np.int32), np.empty(steps, np.float32),
        np.empty(steps, np.int16), np.empty(steps, np.int8), np.empty((steps, geo.degree + 1), np.int32),
        aligned(rows * PAGE).view(np.int32), np.empty(rows, np.int64), np.empty(rows, np.uint32),
        np.zeros(rows, np.bool_), np.empty(1 << int(np.ceil(np.log2(4 * rows))), np.int32),
        np.empty((want, geo.width), np.float32), np.empty(want, np.float32), np.empty(steps, np.int32),
        np.full(breadth, -1, np.int32), tally, np.zeros((QUEUE, 8), np.int64), np.zeros(QUEUE, np.int64),
        np.zeros((QUEUE, 4), np.int64),
    )  # fmt: skip


def release(x: Scratch) -> None:
    """Give back what the kernel keeps for asynchronous reads."""
    if x.tally[CONTEXT]:
        _destroy(x.tally[CONTEXT])
        x.tally[CONTEXT] = 0


@njit(cache=True)
def _setup(context):
    return _syscall(_SETUP, QUEUE, context.ctypes.data, 0, 0, 0)


@njit(cache=True, nogil=True)
def _destroy(context):
    return _syscall(_DESTROY, context, 0, 0, 0, 0)


@njit(cache=True)
def checksum(words):
    """Thirty-two bits of a page: four lanes, so that the processor need not wait for each product."""
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(5)
    prime = np.uint64(0x9E3779B97F4A7C15)
    for i in range(0, len(words), 4):
        a = (a ^ np.uint64(np.uint32(words[i]))) * prime
        b = (b ^ np.uint64(np.uint32(words[i + 1]))) * prime
        c = (c ^ np.uint64(np.uint32(words[i + 2]))) * prime
        d = (d ^ np.uint64(np.uint32(words[i + 3]))) * prime
    mixed = (a ^ (a >> np.uint64(29))) * prime + (b ^ (b >> np.uint64(31))) * prime
    mixed = (mixed ^ c) * prime + (d ^ (d >> np.uint64(30)))
    return np.uint32(mixed >> np.uint64(32))


@njit(cache=True, fastmath=FAST)
def _coded(table, code):
    total = np.float32(0)
    for p in range(len(code)):
        total += table[p, code[p]]
    return total


@njit(cache=True)
def _fresh(seen, node):
    """Whether the node is new to the set, which then has it."""
    mask = len(seen) - 1
    at = (node * 40503) & mask
    while seen[at] != -1:
        if seen[at] == node:
            return False
        at = (at + 1) & mask
    seen[at] = node
    return True


@njit(cache=True)
def _offer(x, count, node, far, hop):
    most = len(x.ids)
    if count == most and far >= x.far[count - 1]:
        return count
    at = count if count < most else count - 1
    while at > 0 and x.far[at - 1] > far:
        x.far[at], x.ids[at], x.done[at], x.hop[at] = x.far[at - 1], x.ids[at - 1], x.done[at - 1], x.hop[at - 1]
        at -= 1
    x.far[at], x.ids[at], x.done[at], x.hop[at] = far, node, False, hop
    return min(count + 1, most)


@njit(cache=True)
def _row(x, key, span, place, sums, files):
    """The row of a page (and those behind it) of this walk, begun to be read if it is new; -1 where all are taken."""
    mask = len(x.row_at) - 1
    at = (key * 40503) & mask
    while x.row_at[at] != -1:
        if x.page_of[x.row_at[at]] == key:
            return x.row_at[at]
        at = (at + 1) & mask
    row = x.tally[ROWS]
    if row + span > len(x.page_of) or x.tally[QUEUED] + span > QUEUE:
        return -1
    x.tally[ROWS] += span
    x.row_at[at] = row
    for i in range(span):
        where = place[(key >> 1) + i]
        x.page_of[row + i] = key + 2 * i
        x.wanted_sum[row + i] = sums[(key >> 1) + i]
        x.came[row + i] = False
        buffer = x.pages.ctypes.data + (row + i) * PAGE
        offset = (where & ((1 << FILE) - 1)) * PAGE
        x.tally[REQUESTS] += 1
        if x.tally[CONTEXT] == 0:
            if _pread(np.int32(files[where >> FILE]), buffer, PAGE, offset) != PAGE:
                x.tally[BAD] = key + 1
            _arrived(x, row + i)
            continue
        block = x.blocks[x.tally[QUEUED]]
        block[0], block[1], block[2] = row + i, 0, files[where >> FILE] << 32
        block[3], block[4], block[5], block[6], block[7] = buffer, PAGE, offset, 0, 0
        x.pointers[x.tally[QUEUED]] = x.blocks.ctypes.data + 64 * x.tally[QUEUED]
        x.tally[QUEUED] += 1
    return row


@njit(cache=True)
def _arrived(x, row):
    x.came[row] = True
    if checksum(x.pages[row * WORDS : (row + 1) * WORDS]) != x.wanted_sum[row]:
        x.tally[BAD] = x.page_of[row] + 1


@njit(cache=True)
def _begin(x):
    """Hand the queued reads to the kernel."""
    sent = 0
    while sent < x.tally[QUEUED]:
        taken = _syscall(_SUBMIT, x.tally[CONTEXT], x.tally[QUEUED] - sent, x.pointers.ctypes.data + 8 * sent, 0, 0)
        if taken <= 0:
            x.tally[BAD] = -1
            break
        sent += taken
    x.tally[FLYING] += sent
    x.tally[QUEUED] = 0


@njit(cache=True)
def _wait(x):
    """One or more reads come in."""
    got = _syscall(_EVENTS, x.tally[CONTEXT], 1, QUEUE, x.events.ctypes.data, 0)
    if got <= 0:
        x.tally[BAD] = -1
        x.tally[FLYING] = 0
        return
    x.tally[FLYING] -= got
    for i in range(got):
        row = x.events[i, 0]
        if x.events[i, 2] != PAGE:
            x.tally[BAD] = x.page_of[row] + 1
        _arrived(x, row)


@njit(cache=True)
def _wait_for(x, row, span):
    while x.tally[FLYING] > 0 and not x.came[row : row + span].all():
        _wait(x)


@njit(cache=True)
def _take(v, x, node, row, source, step):
    """Copy a node's list out of wherever it is."""
    geo = v.geo
    slot = np.int64(v.slots[node])
    at = (slot % geo.per) * geo.words + geo.list_at
    if source == RAM:
        x.lists[step] = v.fresh[row]
    elif source == READ:
        begin = row * WORDS + at
        x.lists[step] = x.pages[begin : begin + geo.degree + 1]
    elif geo.by_page:
        x.lists[step] = v.pool[row, at : at + geo.degree + 1]
    else:
        x.lists[step] = v.pool[row]
    x.source[step], x.vector_row[step] = source, row


@njit(cache=True)
def _want_vectors(v, x, start, stop):
    """Begin to read the vectors of some of the list, unless they are in memory or on the way."""
    for i in range(start, stop):
        node = x.ids[i]
        if node < v.first_fresh and not v.geo.packed:
            page = (np.int64(v.slots[node]) // v.geo.vector_per) * v.geo.vector_span
            _row(x, 2 * page + 1, v.geo.vector_span, v.vector_place, v.vector_sum, v.files)
    _begin(x)


@njit(cache=True)
def _vector(v, x, i, every):
    """Copy the i-th vector of the list to its place; whether it could be had."""
    geo, node = v.geo, x.ids[i]
    slot = np.int64(v.slots[node])
    if node >= v.first_fresh:
        x.vectors[i] = v.fresh_vectors[node - v.first_fresh]
        return True
    at = (slot % geo.per) * geo.words
    if not geo.packed:
        page = (slot // geo.vector_per) * geo.vector_span
        row = _row(x, 2 * page + 1, geo.vector_span, v.vector_place, v.vector_sum, v.files)
        at, span = (slot % geo.vector_per) * geo.width, geo.vector_span
    else:
        step = 0
        while x.expanded[step] != node:
            step += 1
        row, span = np.int64(x.vector_row[step]), geo.span
        if x.source[step] == CACHED and geo.by_page:
            x.vectors[i] = v.pool[row, at : at + geo.width].view(np.float32)
            return True
        if x.source[step] != READ:  # the list is in memory, its vector is not
            if not every:
                return False
            row = _row(x, 2 * ((slot // geo.per) * span), span, v.edge_place, v.edge_sum, v.files)
    if row < 0:
        return False
    _begin(x)
    _wait_for(x, row, span)
    x.vectors[i] = x.pages[row * WORDS + at : row * WORDS + at + geo.width].view(np.float32)
    return True


@njit(cache=True)
def _vectors(v, x, query, top, first, most, every):
    """Exact vectors and distances of the first of the list, then of more, as long as these change the `top` nearest."""
    best = np.full(top, np.inf, np.float32)
    done, stop = 0, min(first, most)
    while done < stop:
        _want_vectors(v, x, done, stop)
        better = 0
        for i in range(done, stop):
            x.exact[i] = squared(x.vectors[i], query) if _vector(v, x, i, every) else np.float32(-1)
            if 0 <= x.exact[i] < best[top - 1]:
                better += 1
                at = top - 1
                while at > 0 and best[at - 1] > x.exact[i]:
                    best[at] = best[at - 1]
                    at -= 1
                best[at] = x.exact[i]
        done = stop
        if better:
            stop = min(stop + top, most)
    x.tally[WANTED] = done


@njit(cache=True)
def _pick(v, x, count, steps, rows, sources):
    """Expand the nearest that were not, a beam of them, next; begin to read what is not in memory. How many."""
    picked = 0
    for at in range(count):
        if picked == len(rows) or steps + picked == len(x.expanded):
            break
        if x.done[at]:
            continue
        x.done[at] = True
        rows[picked], sources[picked] = _find(v, x, np.int64(x.ids[at]))
        x.expanded[steps + picked], x.expanded_far[steps + picked] = x.ids[at], x.far[at]
        x.expanded_hop[steps + picked] = x.hop[at]
        picked += rows[picked] >= 0
    return picked


@njit(cache=True, nogil=True)
def seek(v, x, query, table, entries, beam, top, settle, first, most, every):
    """Walk from the entries; what was found, expanded and read is in the scratch.

    The vectors of the `first` nearest begin to be read when the `top` nearest stood still for `settle` expansions; at
    the end more are read, `most` of them, while they change the `top`. In the packed layout a list may be in memory
    without its vector, which is read where `every` one is needed.
    """
    x.seen[:] = -1
    x.row_at[:] = -1
    context = x.tally[CONTEXT]
    x.tally[:] = 0
    x.tally[CONTEXT] = context
    x.head[:] = -1
    count = steps = still = 0
    begun = False
    rows, sources = np.empty(beam, np.int64), np.empty(beam, np.int8)
    for node in entries:
        if node >= 0 and _fresh(x.seen, node):
            count = _offer(x, count, node, _coded(table, v.codes[node]), np.int16(0))
    while x.tally[BAD] == 0:
        picked = _pick(v, x, count, steps, rows, sources)
        if picked == 0:
            break
        _begin(x)
        for i in range(picked):
            if sources[i] == READ:
                _wait_for(x, rows[i], v.geo.span)
            if x.tally[BAD] != 0:  # what a damaged page says leads anywhere
                break
            _take(v, x, x.expanded[steps], rows[i], sources[i], steps)
            hop = np.int16(x.expanded_hop[steps] + 1)
            for j in range(1, 1 + min(max(x.lists[steps, 0], 0), v.geo.degree)):
                other = x.lists[steps, j]
                if _fresh(x.seen, other):
                    count = _offer(x, count, other, _coded(table, v.codes[other]), hop)
            steps += 1
        moved = 0
        for i in range(min(top, count)):
            moved += x.head[i] != x.ids[i]
            x.head[i] = x.ids[i]
        still = 0 if moved else still + picked
        if still >= settle and first and not begun:
            _want_vectors(v, x, 0, min(first, count))
            begun = True
    x.tally[STEPS], x.tally[LENGTH] = steps, count
    if first:
        _vectors(v, x, query, top, first, min(most, count), every)
    while x.tally[FLYING] > 0:
        _wait(x)
    return x.tally[BAD]


@njit(cache=True)
def _find(v, x, node):
    if v.fresh_row[node] >= 0:
        return np.int64(v.fresh_row[node]), np.int8(RAM)
    unit = np.int64(v.slots[node]) // v.geo.per if v.geo.by_page else node
    if v.row_of[unit] >= 0:
        return np.int64(v.row_of[unit]), np.int8(CACHED)
    page = (np.int64(v.slots[node]) // v.geo.per) * v.geo.span
    return np.int64(_row(x, 2 * page, v.geo.span, v.edge_place, v.edge_sum, v.files)), np.int8(READ)

"""One pass of a radix sort over memory: keys to the bins of one digit, block by block.

A block fits into the second-level cache. It is put in order of the digit there, where a scattered write costs little,
and then leaves as one run a bin: whole lines, which go past the caches, so that memory is not read before it is
written. What a block has of each digit is counted once, for the places of all bins and again when the block is put in
order. Ours makes one such pass, the radix sorts it is compared with one a digit.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.fractalsort.keys import FLOAT, of_float, straight, top_of
from assay.sim.compiled import njit
from assay.sim.past_caches import WORD, settled, streamed

BLOCK = 1 << 19  # bytes: half of a second-level cache, the other half is for what streams through it
LINE = 64  # bytes
WORDS = LINE // 8


@njit(cache=True)
def blocks_of(n, threads, size):
    """Into how many blocks each thread's share is cut, keys being of so many bytes."""
    return n // threads // (BLOCK // size) + 1


@njit(cache=True)
def border(n, threads, t, each, k):
    """The first key of block k of thread t, of `each` blocks."""
    first, last = n * t // threads, n * (t + 1) // threads
    return first + (last - first) * k // each


@njit(cache=True)
def tally(words, a, b, kind, sign, infinity, low, by, mask, tables):
    """Count the digits of words[a:b] in four tables in turn, so that equal neighbours do not wait for each other."""
    if kind == FLOAT:
        top = top_of(sign)
        for i in range(a, b):
            tables[i & 3, ((of_float(words[i], top, infinity) - low) >> by) & mask] += np.uint32(1)
        return
    flip, less = straight(kind, sign, low)
    one, two, three, four = tables[0], tables[1], tables[2], tables[3]
    whole = a + (b - a) // 4 * 4
    for i in range(a, whole, 4):
        one[(((np.uint64(words[i]) ^ flip) - less) >> by) & mask] += np.uint32(1)
        two[(((np.uint64(words[i + 1]) ^ flip) - less) >> by) & mask] += np.uint32(1)
        three[(((np.uint64(words[i + 2]) ^ flip) - less) >> by) & mask] += np.uint32(1)
        four[(((np.uint64(words[i + 3]) ^ flip) - less) >> by) & mask] += np.uint32(1)
    for i in range(whole, b):
        one[(((np.uint64(words[i]) ^ flip) - less) >> by) & mask] += np.uint32(1)


@njit(cache=True)
def place(words, a, b, kind, sign, infinity, low, by, mask, keep, placed, entries):
    """Put the entries of words[a:b] where `placed` has it for their digits."""
    if kind == FLOAT:
        top = top_of(sign)
        for i in range(a, b):
            key = of_float(words[i], top, infinity) - low
            digit = (key >> by) & mask
            at = placed[digit]
            entries[at] = key & keep
            placed[digit] = at + np.uint32(1)
        return
    flip, less = straight(kind, sign, low)
    for i in range(a, b):
        key = (np.uint64(words[i]) ^ flip) - less
        digit = (key >> by) & mask
        at = placed[digit]
        entries[at] = key & keep
        placed[digit] = at + np.uint32(1)


@njit(cache=True, parallel=True)
def count_blocks(words, kind, sign, infinity, low, by, bins, threads):
    """How many keys of each thread's blocks have each value of the digit: of `bins` values, from bit `by` up."""
    n, mask = len(words), np.uint64(bins - 1)
    each = blocks_of(n, threads, words.itemsize)
    counts = np.empty((threads, each, bins), np.uint32)
    for t in prange(threads):
        tables = np.empty((4, bins), np.uint32)
        for k in range(each):
            a, b = border(n, threads, t, each, k), border(n, threads, t, each, k + 1)
            tables[:] = 0
            tally(words, a, b, kind, sign, infinity, low, by, mask, tables)
            mine = counts[t, k]
            for digit in range(bins):
                mine[digit] = tables[0, digit] + tables[1, digit] + tables[2, digit] + tables[3, digit]
    return counts


@njit(cache=True)
def lines(n):
    """Room for so many lines, each of which begins where a line of the cache does."""
    room = np.empty((n + 1) * WORDS, np.uint64)
    ahead = (-np.int64(room.ctypes.data) & (LINE - 1)) // 8
    return room[ahead : ahead + n * WORDS]


@njit(cache=True)
def entered(tails, to, counts, line, size, room, placed):
    """Lay out a block: of each bin the line that it has begun, and room for what follows."""
    at = 0
    for b in range(len(counts)):
        word = at * size >> 3  # a division would take as long as the copy
        for j in range(WORDS):
            room[word + j] = tails[b * WORDS + j]
        held = to[b] & (line - 1)
        placed[b] = at + held
        at += (held + np.int64(counts[b]) + line - 1) & -line


@njit(cache=True)
def left(room, entries, begins, to, counts, line, size, base, lead, tails, out):
    """Write the whole lines of a block past the caches; of each bin the line that it has begun stays."""
    first, origin = 0, np.int64(room.ctypes.data)
    for b in range(len(counts)):
        at, end = to[b] & -line, to[b] + np.int64(counts[b])
        source, first = first, first + ((end - at + line - 1) & -line)
        if at < begins[b] and at + line <= end:  # the bin's first line, which begins with another's
            for i in range(begins[b], at + line):
                out[i - lead] = entries[source + i - at]
            at, source = at + line, source + line
        while at + line <= end:
            for part in range(0, LINE, WORD):
                streamed(base + at * size + part, origin + source * size + part)
            at, source = at + line, source + line
        word = source * size >> 3
        for j in range(WORDS):
            tails[b * WORDS + j] = room[word + j]
        to[b] = end


@njit(cache=True, parallel=True)
def scatter(words, kind, sign, infinity, low, by, keep, counts, starts, out):
    """Append every key's bits of `keep` to its bin, in order; `starts` has where each thread's part of a bin begins."""
    threads, each, bins = counts.shape
    n, mask, size = len(words), np.uint64(bins - 1), out.itemsize
    line, lead = LINE // size, np.int64(out.ctypes.data) % LINE // size
    base = np.int64(out.ctypes.data) - lead * size  # from here lines are counted
    for t in prange(threads):
        # A bin's entries in a block begin and end within a line; and rounding makes some blocks larger by two.
        room, tails = lines((n // threads // each + 2) // line + 2 * bins + 1), lines(bins)
        entries, rest = room.view(out.dtype), tails.view(out.dtype)
        begins, placed = starts[t] + lead, np.empty(bins, np.uint32)
        to = begins.copy()
        for k in range(each):
            entered(tails, to, counts[t, k], line, size, room, placed)
            a, b = border(n, threads, t, each, k), border(n, threads, t, each, k + 1)
            place(words, a, b, kind, sign, infinity, low, by, mask, keep, placed, entries)
            left(room, entries, begins, to, counts[t, k], line, size, base, lead, tails, out)
        for b in range(bins):
            for i in range(max(begins[b], to[b] & -line), to[b]):
                out[i - lead] = rest[b * line + (i & (line - 1))]
        settled()

"""Keys of many bits: bins by the top bits, and of each key only the bits that its bin does not tell.

What is left of a key is its entry. A bin is small enough for the second-level cache, and is sorted there by its
entries' digits; whole keys come into being when they are written. An index that is kept, or set aside on disk, packs up
to four entries into a 64-bit word. A sort in memory leaves each in a word of its own: packing takes this processor
longer than the bytes it saves would.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.fractalsort.keys import FLOAT, coded, decoded, straight, to_float, top_of
from assay.sim.compiled import njit

DIGIT = 12  # bits of a digit inside a bin, at most
MOST_PACKED = 4
FEW = 48  # entries that are put in order one by one


@njit(cache=True)
def places(counts, each):
    """The first packed word of every thread's part of every bin: bin by bin, within a bin thread by thread."""
    threads, bins = counts.shape
    starts, at = np.empty((threads, bins), np.int64), 0
    for b in range(bins):
        for t in range(threads):
            starts[t, b] = at
            at += (counts[t, b] + each - 1) // each
    return starts, at


@njit(cache=True, parallel=True)
def scatter_packed(words, kind, sign, infinity, low, shift, each, starts, packed):
    """Append every key's entry to its bin, `each` in a word; a word is written when it is full."""
    threads, bins = starts.shape
    n, mask = len(words), (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    full = np.uint64(each * shift)
    for t in prange(threads):
        # Of each bin side by side: the word being filled, where it goes, and how far it is filled.
        state, filled = np.zeros((bins, 2), np.uint64), np.zeros(bins, np.uint64)
        for i in range(bins):
            state[i, 1] = np.uint64(starts[t, i])
        for i in range(n * t // threads, n * (t + 1) // threads):
            key = coded(words[i], kind, sign, infinity) - low
            place = np.int64(key >> np.uint64(shift))
            word = state[place, 0] | ((key & mask) << filled[place])
            upto = filled[place] + np.uint64(shift)
            if upto == full:
                packed[np.int64(state[place, 1])] = word
                state[place, 1] += np.uint64(1)
                state[place, 0] = np.uint64(0)
                filled[place] = np.uint64(0)
            else:
                state[place, 0] = word
                filled[place] = upto
        for i in range(bins):
            if filled[i]:
                packed[np.int64(state[i, 1])] = state[i, 0]


@njit(cache=True)
def unpack(packed, start, count, shift, each, entries, at):
    """Entries of one thread's part of a bin, to `entries[at:]`."""
    mask = (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    whole = count // each
    if each == 1:
        entries[at : at + count] = packed[start : start + count]
        return at + count
    if each == 3:
        one, two = np.uint64(shift), np.uint64(2 * shift)
        for i in range(whole):
            word = packed[start + i]
            entries[at + 3 * i] = word & mask
            entries[at + 3 * i + 1] = (word >> one) & mask
            entries[at + 3 * i + 2] = (word >> two) & mask
    else:
        for i in range(whole):
            word = packed[start + i]
            for j in range(each):
                entries[at + each * i + j] = (word >> np.uint64(j * shift)) & mask
    for j in range(count - whole * each):
        entries[at + whole * each + j] = (packed[start + whole] >> np.uint64(j * shift)) & mask
    return at + count


@njit(cache=True)
def tallied(entries, passes, width, tallies):
    """How many entries have each value of each digit: one read for all digits."""
    n, mask, two = len(entries), np.uint64((1 << width) - 1), np.uint64(width)
    tallies[:passes, : 1 << width] = 0
    if passes == 2:
        for i in range(n):
            entry = np.uint64(entries[i])
            tallies[0, np.int64(entry & mask)] += 1
            tallies[1, np.int64((entry >> two) & mask)] += 1
        return
    for i in range(n):
        entry = np.uint64(entries[i])
        for number in range(passes):
            tallies[number, np.int64(entry & mask)] += 1
            entry >>= two


@njit(cache=True)
def placed_by(entries, by, mask, at, other):
    """Entries in order of one digit; `at` has where those of each value begin."""
    for i in range(len(entries)):
        entry = entries[i]
        digit = (np.uint64(entry) >> by) & mask
        to = at[digit]
        other[to] = entry
        at[digit] = to + np.uint32(1)


@njit(cache=True)
def written_by(entries, by, mask, at, base, kind, sign, nan, out):
    """The same for the last digit: entries become keys, and these the words of values."""
    if kind == FLOAT:
        top = top_of(sign)
        for i in range(len(entries)):
            entry = np.uint64(entries[i])
            digit = (entry >> by) & mask
            to = at[digit]
            out[to] = to_float(base + entry, top, nan)
            at[digit] = to + np.uint32(1)
        return
    flip, more = straight(kind, sign, base)
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        digit = (entry >> by) & mask
        to = at[digit]
        out[to] = (entry + more) ^ flip
        at[digit] = to + np.uint32(1)


@njit(cache=True)
def write_few(source, room, base, kind, sign, nan, out):
    """Put entries in order one by one."""
    n = len(source)
    room[:n] = source
    for i in range(1, n):
        entry = room[i]
        j = i - 1
        while j >= 0 and room[j] > entry:
            room[j + 1] = room[j]
            j -= 1
        room[j + 1] = entry
    for i in range(n):
        out[i] = decoded(base + np.uint64(room[i]), kind, sign, nan)


@njit(cache=True)
def write_sorted(source, first, second, shift, tallies, base, kind, sign, nan, out):
    """Write entries of `shift` bits to `out` as keys, in order: by their digits, the last of which goes there.

    `source` may be `first`, and it may be `out`; else it is left as it is.
    """
    n, passes = len(source), (shift + DIGIT - 1) // DIGIT
    if n < FEW or passes == 0:
        write_few(source, first, base, kind, sign, nan, out)
        return
    width = (shift + passes - 1) // passes
    if n < 1 << (width - 2):  # few entries: smaller digits, whose counters cost less than the entries
        width, passes = 8, (shift + 7) // 8
    tallied(source, passes, width, tallies)
    mask, one, last = np.uint64((1 << width) - 1), np.uint64(source[0]), 0
    for number in range(passes):
        if tallies[number, (one >> np.uint64(number * width)) & mask] < n:
            last = number  # where all are alike there is nothing to do
    entries, other, spare, moved = source, second[:n], first[:n], False
    for number in range(last + 1):
        by, at = np.uint64(number * width), tallies[number]
        if number < last and at[(one >> by) & mask] == n:
            continue
        begin = 0
        for d in range(1 << width):
            at[d], begin = begin, begin + at[d]
        if number < last:
            placed_by(entries, by, mask, at, other)
            entries, other, spare, moved = other, spare, other, True
    if not moved:  # from a place of its own, for `out` may be where the entries are
        second[:n] = source
        entries = second[:n]
    written_by(entries, by, mask, at, base, kind, sign, nan, out)


@njit(cache=True, parallel=True)
def sort_bins(packed, counts, starts, shift, each, borders, most, kind, sign, nan, low, whole, out):
    """Sort each bin's entries and write them, as whole keys if so wanted; thread t takes bins borders[t] and on.

    It has room for most[t] of them, and leaves larger bins alone.
    """
    threads, bins = counts.shape
    offsets = np.zeros(bins + 1, np.int64)
    for b in range(bins):
        offsets[b + 1] = offsets[b] + counts[:, b].sum()
    for t in prange(len(borders) - 1):
        first, second = np.empty(most[t], packed.dtype), np.empty(most[t], packed.dtype)
        tallies = np.empty((8, 1 << DIGIT), np.uint32)
        for b in range(borders[t], borders[t + 1]):
            n = offsets[b + 1] - offsets[b]
            if n == 0 or n > most[t]:
                continue
            base = low + (np.uint64(b) << np.uint64(shift)) if whole else low
            mine = out[offsets[b] : offsets[b + 1]]
            if each == 1 and starts[-1, b] + counts[-1, b] - starts[0, b] == n:  # all threads' parts in a row
                source = packed[starts[0, b] : starts[0, b] + n]
                write_sorted(source, first, second, shift, tallies, base, kind, sign, nan, mine)
                continue
            at = 0
            for part in range(threads):
                at = unpack(packed, starts[part, b], counts[part, b], shift, each, first, at)
            write_sorted(first[:n], first, second, shift, tallies, base, kind, sign, nan, mine)


@njit(cache=True)
def repack(entries, counts, starts, shift, each, packed):
    """Entries that lie bin after bin into words, each bin from a word of its own."""
    at = 0
    for b in range(len(counts)):
        for i in range(counts[b]):
            word, slot = starts[b] + i // each, i % each
            value = entries[at] << np.uint64(slot * shift)
            packed[word] = value if slot == 0 else packed[word] | value
            at += 1

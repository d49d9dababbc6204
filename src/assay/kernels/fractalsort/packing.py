"""Keys of many bits: bins by the top bits, and of each key only the bits that its bin does not tell.

What is left of a key is its entry. A bin is small enough for the second-level cache, and is sorted there by its
entries' digits; whole keys come into being when they are written. An index that is kept, or set aside on disk, packs up
to four entries into a 64-bit word. A sort in memory leaves each in a word of its own: packing takes this processor
longer (7 ns a key against 5) than the bytes it saves would.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.fractalsort.keys import coded, decoded
from assay.sim.compiled import njit

DIGIT = 12  # bits of a digit inside a bin, at most
MOST_PACKED = 4
FEW = 48  # entries that are put in order one by one


@njit(cache=True, parallel=True)
def count_bins(words, kind, sign, infinity, low, shift, bins, threads):
    """How many keys of each thread's share fall into each bin."""
    counts, n = np.zeros((threads, bins), np.int64), len(words)
    for t in prange(threads):
        a, b = n * t // threads, n * (t + 1) // threads
        mine = np.zeros((2, bins), np.int64)
        whole = a + (b - a) // 2 * 2
        for i in range(a, whole, 2):
            mine[0, np.int64((coded(words[i], kind, sign, infinity) - low) >> shift)] += 1
            mine[1, np.int64((coded(words[i + 1], kind, sign, infinity) - low) >> shift)] += 1
        for i in range(whole, b):
            mine[0, np.int64((coded(words[i], kind, sign, infinity) - low) >> shift)] += 1
        counts[t] = mine[0] + mine[1]
    return counts


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
def scatter(words, kind, sign, infinity, low, shift, starts, entries):
    """Append every key's entry to its bin, each in a word of its own."""
    threads, n, by = len(starts), len(words), np.uint64(shift)
    mask = (np.uint64(1) << by) - np.uint64(1)
    for t in prange(threads):
        at = starts[t].copy()
        for i in range(n * t // threads, n * (t + 1) // threads):
            key = coded(words[i], kind, sign, infinity) - low
            place = np.int64(key >> by)
            entries[at[place]] = key & mask
            at[place] += 1


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
def write_sorted(source, first, second, shift, tallies, base, kind, sign, nan, out):
    """Write entries of `shift` bits to `out` as keys, in order: by their digits, the last of which goes there.

    `source` is left as it is, unless it is `first`.
    """
    n, passes = len(source), (shift + DIGIT - 1) // DIGIT
    if n < FEW or passes == 0:
        first[:n] = source
        for i in range(1, n):
            entry = first[i]
            j = i - 1
            while j >= 0 and first[j] > entry:
                first[j + 1] = first[j]
                j -= 1
            first[j + 1] = entry
        for i in range(n):
            out[i] = decoded(base + np.uint64(first[i]), kind, sign, nan)
        return
    width = (shift + passes - 1) // passes
    if n < 1 << (width - 2):  # few entries: smaller digits, whose counters cost less than the entries
        width, passes = 8, (shift + 7) // 8
    tallied(source, passes, width, tallies)
    mask, last = np.uint64((1 << width) - 1), 0
    for number in range(passes):
        if tallies[number, np.int64((np.uint64(source[0]) >> np.uint64(number * width)) & mask)] < n:
            last = number  # where all are alike there is nothing to do
    entries, other, spare = source, second, first
    for number in range(last + 1):
        by, placed = np.uint64(number * width), tallies[number]
        if number < last and placed[np.int64((np.uint64(source[0]) >> by) & mask)] == n:
            continue
        at = 0
        for d in range(1 << width):
            placed[d], at = at, at + placed[d]
        for i in range(n):
            entry = entries[i]
            digit = np.int64((np.uint64(entry) >> by) & mask)
            if number == last:
                out[placed[digit]] = decoded(base + np.uint64(entry), kind, sign, nan)
            else:
                other[placed[digit]] = entry
            placed[digit] += 1
        entries, other, spare = other, spare, other


@njit(cache=True, parallel=True)
def sort_bins(packed, counts, starts, shift, each, borders, most, kind, sign, nan, low, whole, out):
    """Sort each bin's entries and write them, as whole keys if so wanted; thread t takes bins borders[t] and on."""
    threads, bins = counts.shape
    offsets = np.zeros(bins + 1, np.int64)
    for b in range(bins):
        offsets[b + 1] = offsets[b] + counts[:, b].sum()
    for t in prange(len(borders) - 1):
        first, second = np.empty(most[t], packed.dtype), np.empty(most[t], packed.dtype)
        tallies = np.empty((8, 1 << DIGIT), np.uint32)
        for b in range(borders[t], borders[t + 1]):
            n = offsets[b + 1] - offsets[b]
            if n == 0:
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

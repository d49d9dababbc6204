"""Keys of few bits: their histogram is the sorted array.

Counters are one byte wide; the rare one that overflows adds 256 to its wide parent. 65,536 counters then take 64 KB,
a fourth of plain ones, and stay nearer to the core. One table: several in turn, so that equal neighbours do not wait
for each other, take the room again that one byte saves.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.fractalsort.keys import FLOAT, decoded, of_float, straight, top_of
from assay.sim.compiled import njit


@njit(cache=True)
def _count(key, narrow, parents):
    count = np.uint8(narrow[key] + np.uint8(1))
    narrow[key] = count
    if count == 0:
        parents[key] += 256


@njit(cache=True, parallel=True)
def histogram(words, kind, sign, infinity, low, bits, threads):
    """How often each key, less `low`, occurs; threads count for themselves."""
    size, n = 1 << bits, len(words)
    top, (flip, less) = top_of(sign), straight(kind, sign, low)
    totals = np.zeros((threads, size), np.int64)
    for t in prange(threads):
        a, b = n * t // threads, n * (t + 1) // threads
        narrow, parents = np.zeros(size, np.uint8), totals[t]
        if kind == FLOAT:
            for i in range(a, b):
                _count(of_float(words[i], top, infinity) - low, narrow, parents)
        else:
            for i in range(a, b):
                _count((np.uint64(words[i]) ^ flip) - less, narrow, parents)
        for key in range(size):
            parents[key] += np.int64(narrow[key])
    return totals.sum(axis=0)


@njit(cache=True, parallel=True)
def expand(ends, out, kind, sign, nan, low, threads):
    """Write each key as often as it was counted; `ends[key]` is where its run ends."""
    n = len(out)
    for t in prange(threads):
        a, b = n * t // threads, n * (t + 1) // threads
        key = np.searchsorted(ends, a, side="right")
        at = a
        while at < b:
            end = min(ends[key], b)
            word = decoded(low + np.uint64(key), kind, sign, nan)
            for i in range(at, end):
                out[i] = word
            at = end
            key += 1

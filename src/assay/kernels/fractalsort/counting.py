"""Keys of few bits: their histogram is the sorted array.

Counters are one byte wide; the rare one that overflows adds 256 to its wide parent. 65,536 counters then take 64 KB,
which stay near the core, where four-byte ones would not; two tables in turn, so that equal neighbours do not wait for
each other.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.fractalsort.keys import coded, decoded
from assay.sim.compiled import njit


@njit(cache=True, parallel=True)
def histogram(words, kind, sign, infinity, low, bits, threads):
    """How often each key, less `low`, occurs; threads count for themselves."""
    size, n = 1 << bits, len(words)
    totals = np.zeros((threads, size), np.int64)
    for t in prange(threads):
        a, b = n * t // threads, n * (t + 1) // threads
        narrow, parents = np.zeros((4, size), np.uint8), np.zeros(size, np.int64)
        whole = a + (b - a) // 4 * 4
        for i in range(a, whole, 4):
            for lane in range(4):
                key = np.int64(coded(words[i + lane], kind, sign, infinity) - low)
                count = np.uint8(narrow[lane, key] + np.uint8(1))
                narrow[lane, key] = count
                if count == 0:
                    parents[key] += 256
        for i in range(whole, b):
            parents[np.int64(coded(words[i], kind, sign, infinity) - low)] += 1
        for key in range(size):
            total = parents[key]
            for lane in range(4):
                total += np.int64(narrow[lane, key])
            totals[t, key] = total
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

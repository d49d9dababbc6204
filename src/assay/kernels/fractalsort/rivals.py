"""Sorts that FractalSort is compared with, with as many threads: radix sorts, and counting in plain counters."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from assay.kernels.fractalsort import blocks, counting, packing
from assay.kernels.fractalsort.keys import FLOAT, keys_of, marks, of_float, straight, to_float, top_of, values_of
from assay.sim.compiled import njit


@njit(cache=True, parallel=True)
def _decoded(words, kind, sign, nan):
    flip, more = straight(kind, sign, np.uint64(0))
    top = top_of(sign)
    if kind == FLOAT:
        for i in prange(len(words)):
            words[i] = to_float(np.uint64(words[i]), top, nan)
    else:
        for i in prange(len(words)):
            words[i] = (np.uint64(words[i]) + more) ^ flip


@njit(cache=True, parallel=True)
def _plain_histogram(words, kind, sign, infinity, bits, threads):
    size, n = 1 << bits, len(words)
    top, (flip, less) = top_of(sign), straight(kind, sign, np.uint64(0))
    counts = np.zeros((threads, size), np.uint32)
    for t in prange(threads):
        a, b, mine = n * t // threads, n * (t + 1) // threads, counts[t]
        if kind == FLOAT:
            for i in range(a, b):
                mine[of_float(words[i], top, infinity)] += np.uint32(1)
        else:
            for i in range(a, b):
                mine[(np.uint64(words[i]) ^ flip) - less] += np.uint32(1)
    totals = np.zeros(size, np.int64)
    for t in range(threads):
        totals += counts[t]
    return totals


def vectors(bits: int) -> bool:
    """Whether NumPy sorts keys of so many bits by vector code here; without, its sort is no rival worth a claim.

    >>> vectors(32) in (True, False)
    True
    """
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    able = {*simd.get("baseline", ()), *simd.get("found", ())}
    wide = {"AVX512_ICL", "AVX512_SPR"} if bits == 16 else {"AVX2", "AVX512_SKX", "X86_V3", "X86_V4"}
    return bool(able & (wide | {"ASIMD", "VSX2", "VX"}))


def counted(x: NDArray[Any], threads: int | None = None) -> NDArray[Any]:
    """Counting sort of keys of up to 16 bits, in counters of four bytes.

    >>> counted(np.array([3, 1, 2], np.uint16)).tolist()
    [1, 2, 3]
    """
    keys = keys_of(x)
    team = threads or numba.get_num_threads()
    sign, infinity, nan = marks(keys)
    ends = np.cumsum(_plain_histogram(keys.words, keys.kind, sign, infinity, keys.bits, team))
    out = np.empty_like(keys.words)
    counting.expand(ends, out, keys.kind, sign, nan, np.uint64(0), team)
    return values_of(out, keys.dtype)


def lsd(x: NDArray[Any], digit: int = 8, threads: int | None = None) -> NDArray[Any]:
    """Least-significant digit radix sort, a digit of `digit` bits a pass over all keys.

    >>> lsd(np.array([3, 1, 2], np.uint16)).tolist()
    [1, 2, 3]
    """
    keys = keys_of(x)
    team = threads or numba.get_num_threads()
    sign, infinity, nan = marks(keys)
    words, out, spare = keys.words, np.empty_like(keys.words), np.empty_like(keys.words)
    low, every = np.uint64(0), np.uint64(2**64 - 1)
    for by in range(0, keys.bits, digit):
        kind = keys.kind if by == 0 else 0  # from the first pass on, words are keys
        which = kind, sign, infinity, low, np.uint64(by)
        counts = blocks.count_blocks(words, *which, 1 << min(digit, keys.bits - by), team)
        starts, _ = packing.places(counts.sum(axis=1, dtype=np.int64), 1)
        blocks.scatter(words, *which, every, counts, starts, out)
        words, out, spare = out, spare, out
    if keys.kind:
        _decoded(words, keys.kind, sign, nan)
    return values_of(words, keys.dtype)

"""Sorts that FractalSort is compared with: least-significant digit first, by 8 or 11 bits, with as many threads."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from assay.kernels.fractalsort.keys import coded, decoded, keys_of, marks, values_of
from assay.sim.compiled import njit


@njit(cache=True, parallel=True)
def _pass(words, out, by, mask, threads):
    """One digit: threads count their shares, then place them."""
    n, size = len(words), mask + 1
    counts = np.zeros((threads, size), np.int64)
    for t in prange(threads):
        mine = np.zeros(size, np.int64)
        for i in range(n * t // threads, n * (t + 1) // threads):
            mine[np.int64(np.uint64(words[i]) >> by) & mask] += 1
        counts[t] = mine
    at = 0
    for d in range(size):
        for t in range(threads):
            counts[t, d], at = at, at + counts[t, d]
    for t in prange(threads):
        mine = counts[t].copy()
        for i in range(n * t // threads, n * (t + 1) // threads):
            digit = np.int64(np.uint64(words[i]) >> by) & mask
            out[mine[digit]] = words[i]
            mine[digit] += 1


@njit(cache=True, parallel=True)
def _coded(words, out, kind, sign, infinity):
    for i in prange(len(words)):
        out[i] = coded(words[i], kind, sign, infinity)


@njit(cache=True, parallel=True)
def _decoded(words, kind, sign, nan):
    for i in prange(len(words)):
        words[i] = decoded(np.uint64(words[i]), kind, sign, nan)


def lsd(x: NDArray[Any], digit: int = 8, threads: int | None = None) -> NDArray[Any]:
    """Least-significant digit radix sort, a digit of `digit` bits a pass over all keys.

    >>> lsd(np.array([3, 1, 2], np.uint16)).tolist()
    [1, 2, 3]
    """
    keys = keys_of(x)
    team = threads or numba.get_num_threads()
    sign, infinity, nan = marks(keys)
    words, other = keys.words.copy(), np.empty_like(keys.words)
    if keys.kind:
        _coded(keys.words, words, keys.kind, sign, infinity)
    for by in range(0, keys.bits, digit):
        _pass(words, other, np.uint64(by), (1 << min(digit, keys.bits - by)) - 1, team)
        words, other = other, words
    if keys.kind:
        _decoded(words, keys.kind, sign, nan)
    return values_of(words, keys.dtype)

"""Sorts that FractalSort is compared with: least-significant digit first, by 8 or 11 bits, with as many threads."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from assay.kernels.fractalsort import blocks, packing
from assay.kernels.fractalsort.keys import FLOAT, keys_of, marks, straight, to_float, top_of, values_of
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

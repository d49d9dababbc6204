"""What both sieves start from: primes, bit patterns of the smallest ones, and the arguments of the CUDA kernels.

Only NumPy is imported: `benchmarks/h200_goldbach.py` reads this file on machines that have no assay.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WHEELS = ((3, 5, 7, 11), (13, 17, 19), (23, 29), (31, 37), (41, 43))  # primes crossed out together, by pattern
BACK = 16384  # how far below an even number its larger prime may lie: no n up to 4e18 needs a smaller prime over 9,781
CAREFUL = 90  # from this odd prime on (467), the least n that needs it is noted; smaller ones have theirs below 2^20
MOST_LEFT = 1023


def primes_below(limit: int) -> NDArray[np.int64]:
    """All primes below `limit`.

    >>> primes_below(20).tolist()
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    if limit <= 2:
        return np.empty(0, np.int64)
    odd = np.ones(limit // 2, np.bool_)  # odd[i]: 2 i + 1
    odd[0] = False
    for i in range(1, math.isqrt(limit - 1) // 2 + 1):
        if odd[i]:
            odd[2 * i * (i + 1) :: 2 * i + 1] = False
    return np.concatenate([[2], 2 * np.flatnonzero(odd).astype(np.int64) + 1])


def wheel(primes: tuple[int, ...], width: int = 32) -> NDArray[Any]:
    """Which odd numbers from 1 on a group of primes divides, a bit each: as many words as there are before it repeats.

    >>> [int(word) for word in wheel((3,))][:2]  # 3, 9, 15, ...: bits 1, 4, 7, ...
    [2454267026, 613566756]
    """
    length = math.prod(primes)
    numbers = 1 + 2 * np.arange(length * width, dtype=np.int64)
    hit = np.zeros(length * width, np.bool_)
    for p in primes:
        hit |= numbers % p == 0
    packed = np.packbits(hit, bitorder="little")
    return packed.view(np.uint32 if width == 32 else np.uint64)


class Tables(NamedTuple):
    """Arguments of the kernels, in their order."""

    wheels: NDArray[np.uint32]
    lengths: NDArray[np.int32]
    primes: NDArray[np.uint32]  # above the wheels', up to the square root
    inverses: NDArray[np.float64]
    by_warp: int  # how many of them have so many multiples in a tile that a warp shares them
    small: NDArray[np.uint32]  # the odd primes tried as the smaller of a pair


def tables(limit: int, words: int, back: int = BACK) -> Tables:
    """For even numbers below `limit` in tiles of `words` words."""
    groups = [wheel(group) for group in WHEELS]
    every = primes_below(max(math.isqrt(limit) + 1, back)).astype(np.uint32)
    primes = every[(every > WHEELS[-1][-1]) & (every <= math.isqrt(limit))]
    return Tables(
        np.concatenate(groups), np.array([len(group) for group in groups], np.int32), primes,
        1.0 / primes.astype(np.float64), int(np.searchsorted(primes, words)), every[(every > 2) & (every < back)],
    )  # fmt: skip

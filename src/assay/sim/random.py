"""Randomness by name: the same seed and names give the same numbers, in any process and in any order.

Two forms. :func:`stream` is a NumPy generator for code that draws arrays. :func:`bits` is a
counter-based word for compiled loops: word ``i`` of a key is a pure function of the two, so a
simulation may be cut, resumed or spread over processes without changing what it draws.

- Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox, counters).
- Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).
- Lemire, "Fast random integer generation in an interval", TOMACS 2019 (multiply-shift).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.sim.streams import key, stream

__all__ = ["Word", "below", "bits", "digit", "key", "stream"]

Word = Any  # uint64 in compiled code, int outside


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: counters visit every word once
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def bits(key: Word, counter: Word) -> Word:
    """Return word ``counter`` of ``key``: 64 random bits (SplitMix64's finaliser of a Weyl sequence).

    Two keys walk one cycle of 2**64 words from two random points: R keys of L words each share
    some stretch, shifted, with probability below R**2 L / 2**64.

    >>> hex(bits(np.uint64(0), np.uint64(1)))  # the first output of SplitMix64 seeded with 0
    '0xe220a8397b1dcdaf'
    """
    z = np.uint64(key) + np.uint64(counter) * _GOLDEN
    z = (z ^ (z >> _30)) * _MIX_A
    z = (z ^ (z >> _27)) * _MIX_B
    return z ^ (z >> _31)


@njit(cache=True, nogil=True)
def below(word: Word, n: Word) -> Word:
    """Return an integer in [0, n), uniform if the 64-bit ``word`` is; 0 < n < 2**32.

    >>> below(np.uint64(2**63), np.uint64(10))
    5
    """
    # Exactly floor(word * n / 2**64), without 128-bit arithmetic. Each result is hit by floor or
    # ceil of 2**64 / n words: a relative bias below n / 2**64.
    w, m = np.uint64(word), np.uint64(n)
    return ((w >> _32) * m + (((w & _LOW_32) * m) >> _32)) >> _32


@njit(cache=True, nogil=True)
def digit(word: Word, n: Word) -> tuple[Word, Word]:
    """Return ``below(word, n)`` and what is left of the word, itself a word to draw from.

    Read word / 2**64 as a fraction: this is its first digit in base n and the fraction behind it.
    Digits n1, n2, ... of one word are jointly uniform with a relative bias below n1 n2 ... / 2**64.

    >>> digit(np.uint64(2**63 + 2**62), np.uint64(6))
    (4, 9223372036854775808)
    """
    return below(word, n), np.uint64(word) * np.uint64(n)

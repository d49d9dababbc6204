"""Pairs to divide: random ones, and those that divisions get wrong.

Only NumPy is imported: `benchmarks/h200_bigint_div.py` reads this file on machines that have no assay.
"""

from __future__ import annotations

import numpy as np

Pairs = list[tuple[int, int]]


def bits_of(random: np.random.Generator, bits: int) -> int:
    """A number of exactly so many bits.

    >>> bits_of(np.random.default_rng(0), 100).bit_length()
    100
    """
    raw = int.from_bytes(random.bytes((bits + 7) // 8), "little") >> (-bits % 8)
    return raw | 1 << (bits - 1) if bits else 0


def halves(random: np.random.Generator, bits: int, count: int) -> Pairs:
    """Dividends of so many bits by divisors of half as many: the pairs that times are told for."""
    return [(bits_of(random, bits), bits_of(random, bits // 2)) for _ in range(count)]


def anyhow(random: np.random.Generator, bits: int, count: int) -> Pairs:
    """Both of any length up to so many bits; a divisor is not zero."""
    lengths = random.integers(1, bits + 1, (count, 2)).tolist()
    return [(bits_of(random, a), bits_of(random, b)) for a, b in lengths]


def runs(random: np.random.Generator, bits: int) -> int:
    """A number of long runs of ones and zeros: carries go far."""
    value, length = 0, 0
    while length < bits:
        step = min(int(random.integers(1, 200)), bits - length)
        value, length = value << step | (((1 << step) - 1) * int(random.integers(0, 2))), length + step
    return value | 1 << (bits - 1)


def adversarial(random: np.random.Generator, bits: int, count: int) -> Pairs:
    """Powers of 2^32 and their neighbours, multiples and their neighbours, ones only, long runs, tiny and too large
    divisors, the upper limbs of a divisor just below or above a power."""
    made: Pairs = []
    while len(made) < count:
        n = int(random.integers(2, max(3, bits // 32) + 1))  # limbs of the dividend
        k = int(random.integers(1, n))
        power, v, q = 1 << (32 * k), bits_of(random, 32 * k), bits_of(random, max(1, 32 * (n - k)))
        ones, top = (1 << (32 * n)) - 1, bits_of(random, 32 * n)
        near = (power << 32) - 1 - bits_of(random, int(random.integers(1, 32 * k + 1)))
        rough, other = runs(random, 32 * k), runs(random, 32 * (n - k))
        made += [
            (top, power), (top, power - 1), (top, power + 1), (v * q, v), (v * q - 1, v), (v * q + v - 1, v), (ones, v),
            (ones, (1 << (32 * k)) - 1), (ones, power + 1), (top, int(random.integers(1, 1 << 32))), (top, 1), (v, top),
            (v, v), (v - 1, v), (0, v), (near * q - 1, near), (near * q, near), (rough * other, rough),
            (rough * other - 1, rough), (runs(random, 32 * n), rough), ((power - 1) * q - 1, power - 1), (v * v, v),
            ((power + 1) * q - 1, power + 1), (ones, ones >> (32 * (n - k) - 1)),
        ]  # fmt: skip
    return made[:count]

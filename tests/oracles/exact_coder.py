"""What a coder would need that rounds nothing, and wavelets by the taps of their filters."""

from __future__ import annotations

import math
from fractions import Fraction

ONE = 1 << 16


def information(decisions: list[tuple[int, int]]) -> float:
    """Bits of decisions (share of a 1, what was decided): how narrow the last interval is, exactly."""
    width = Fraction(1)
    for share, bit in decisions:
        width *= Fraction(share if bit else ONE - share, ONE)
    return math.log2(width.denominator) - math.log2(width.numerator)


def lifted(row: list[float]) -> tuple[list[float], list[float]]:
    """One level of CDF 9/7, by the taps of its two filters, written out, with mirrored edges; scaled to unit norm."""
    low = (0.026748757410810, -0.016864118442875, -0.078223266528988, 0.266864118442872, 0.602949018236358)
    high = (0.091271763114250, -0.057543526228500, -0.591271763114247, 1.115087052456994)
    taps = {0: [*low, *low[-2::-1]], 1: [*high, *high[-2::-1]]}
    n = len(row)

    def at(i: int) -> float:
        i = abs(i)
        return row[i if i < n else 2 * (n - 1) - i]

    halves = [], []
    for centre in range(n):
        side = taps[centre % 2]
        reach = len(side) // 2
        value = sum(tap * at(centre + k - reach) for k, tap in enumerate(side))
        halves[centre % 2].append(value * (2**0.5 if centre % 2 == 0 else 2**-0.5))
    return halves

"""A range coder without limits: intervals are fractions, nothing is rounded but the shares, no byte leaves early."""

from __future__ import annotations

from fractions import Fraction

ONE = 1 << 16


def length(decisions: list[tuple[int, int]]) -> int:
    """Bytes that name some number inside the last interval, for decisions (share of a 1, what was decided)."""
    low, width = Fraction(0), Fraction(1)
    for share, bit in decisions:
        part = width * share / ONE
        low, width = (low, part) if bit else (low + part, width - part)
    count = 0
    while True:
        unit = Fraction(1, 256**count)
        value = -(-low // unit) * unit  # the first multiple that is not below
        if value < low + width:
            return count
        count += 1


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

"""Finite fields by the book: multiplication in GF(2^16) bit by bit, and Reed–Solomon as values of a polynomial."""

from __future__ import annotations

from collections.abc import Sequence

POLYNOMIAL = 0x1100B


def times(a: int, b: int) -> int:
    """The product in GF(2^16): shift, add, reduce."""
    total = 0
    while b:
        if b & 1:
            total ^= a
        a <<= 1
        if a >> 16:
            a ^= POLYNOMIAL
        b >>= 1
    return total


def inverse(a: int) -> int:
    """a to the power 2^16 - 2."""
    result, power = 1, 0xFFFE
    while power:
        if power & 1:
            result = times(result, a)
        a = times(a, a)
        power >>= 1
    return result


def value_at(values: Sequence[int], x: int) -> int:
    """The value at x of the polynomial with these values at 0, 1, 2, …"""
    total = 0
    for here, value in enumerate(values):
        term = value
        for other in range(len(values)):
            if other != here:
                term = times(term, times(x ^ other, inverse(here ^ other)))
        total ^= term
    return total

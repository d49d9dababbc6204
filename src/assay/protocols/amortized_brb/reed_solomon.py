"""Reed–Solomon: n fragments, any k of which give the message back. Over the field of 2¹⁶ elements, so n ≤ 65,536.

The message is cut into k rows of 16-bit symbols. Column by column a row is the value of one polynomial of degree below
k at the points 0 … k - 1; the further fragments are its values at k … n - 1. The first k fragments are the message.

>>> fragments = encode(b"erasure codes", n=7, k=3)
>>> decode({6: fragments[6], 1: fragments[1], 4: fragments[4]}, k=3)
b'erasure codes'

Reed and Solomon, Polynomial Codes over Certain Finite Fields, SIAM 1960.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x1100B  # x^16 + x^12 + x^3 + x + 1, primitive: x generates all elements but zero
_ORDER = (1 << 16) - 1
_LENGTH = 4
"""Bytes in front of the message that say how long it is."""

Symbols = npt.NDArray[np.uint16]


@lru_cache(maxsize=1)
def _tables() -> tuple[npt.NDArray[np.int64], Symbols]:
    """Logarithms, and powers of x up to twice the order, so that sums of two logarithms need no remainder."""
    log, power = np.zeros(_ORDER + 1, np.int64), np.zeros(2 * _ORDER, np.uint16)
    value = 1
    for exponent in range(_ORDER):
        power[exponent] = power[exponent + _ORDER] = value
        log[value] = exponent
        value <<= 1
        if value > _ORDER:
            value ^= _POLYNOMIAL
    return log, power


def _times(scalar: int, row: Symbols) -> Symbols:
    """Every symbol of a row times a scalar."""
    if scalar == 0:
        return np.zeros_like(row)
    log, power = _tables()
    product: Symbols = power[log[row] + log[scalar]]
    product[row == 0] = 0
    return product


def _weights(points: Sequence[int], ats: Sequence[int]) -> list[list[int]]:
    """Lagrange: for each place of `ats` (none of them a point), what to multiply the values at the points with."""
    log, power = _tables()
    given = np.asarray(points, np.int64)
    between = log[given[:, None] ^ given[None, :]].sum(axis=1)  # the logarithm of zero, on the diagonal, is stored as 0
    rows = []
    for at in ats:
        away = log[at ^ given]
        rows.append(power[(away.sum() - away - between) % _ORDER].tolist())
    return rows


def _combine(rows: Sequence[Symbols], weights: Sequence[int]) -> Symbols:
    total = np.zeros_like(rows[0])
    for row, weight in zip(rows, weights, strict=True):
        total ^= _times(weight, row)
    return total


def _rows(message: bytes, k: int) -> list[Symbols]:
    framed = len(message).to_bytes(_LENGTH, "big") + message
    width = -(-len(framed) // (2 * k))
    padded = framed.ljust(2 * k * width, b"\0")
    return list(np.frombuffer(padded, ">u2").astype(np.uint16).reshape(k, width))


@lru_cache(maxsize=8)  # in a simulation many nodes encode the same message
def encode(message: bytes, n: int, k: int) -> tuple[bytes, ...]:
    """The n fragments of a message."""
    if not 1 <= k <= n <= _ORDER + 1:
        raise ValueError(f"{n} fragments of which {k} suffice; 1 <= k <= n <= {_ORDER + 1} expected")
    rows = _rows(message, k)
    weights = _weights(range(k), range(k, n))
    rows += [_combine(rows[:k], row) for row in weights]
    return tuple(row.astype(">u2").tobytes() for row in rows)


def decode(fragments: Mapping[int, bytes], k: int) -> bytes:
    """The message, from the fragments with the k lowest numbers; ValueError for what `encode` cannot have made."""
    if len(fragments) < k:
        raise ValueError(f"{len(fragments)} fragments; {k} needed")
    points = sorted(fragments)[:k]
    if len({len(fragments[point]) for point in points}) != 1 or len(fragments[points[0]]) % 2:
        raise ValueError("fragments of different or odd lengths")
    rows = [np.frombuffer(fragments[point], ">u2").astype(np.uint16) for point in points]
    given = dict(zip(points, rows, strict=True))
    lost = [at for at in range(k) if at not in given]
    given |= {at: _combine(rows, row) for at, row in zip(lost, _weights(points, lost), strict=True)}
    whole = [given[at] for at in range(k)]
    framed = b"".join(row.astype(">u2").tobytes() for row in whole)
    length = int.from_bytes(framed[:_LENGTH], "big")
    if length > len(framed) - _LENGTH:
        raise ValueError(f"a message of {length} bytes in fragments of {len(framed) - _LENGTH}")
    return framed[_LENGTH : _LENGTH + length]

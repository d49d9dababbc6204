"""How numbers lie in memory, and what the transforms start from: limbs of 32 bits, roots of unity, room for a block.

Only NumPy is imported: `benchmarks/h200_bigint_div.py` reads this file on machines that have no assay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Limbs = NDArray[np.uint32]  # a number a row, the least limb first

SPILL = 16  # limbs by which a product may be longer than its transform, as in divide.cu
PLANES = 9  # numbers that a block works on, as in divide.cu
BLOCK = 512  # limbs of the quotient of a short divisor that are found at a time, as in divide.cu
SHORT = 8192  # limbs of the longest transform with digits of 16 bits whose rounding is proven exact


def limbs_of(numbers: Sequence[int]) -> Limbs:
    """Natural numbers as rows of limbs, as long as the longest.

    >>> limbs_of([1, 2**32 + 7]).tolist()
    [[1, 0], [7, 1]]
    """
    width = max(1, *((number.bit_length() + 31) // 32 for number in numbers)) if numbers else 1
    joined = b"".join(number.to_bytes(4 * width, "little") for number in numbers)
    return np.frombuffer(joined, "<u4").reshape(-1, width).astype(np.uint32)


def numbers_of(limbs: Limbs) -> list[int]:
    """Rows of limbs as numbers.

    >>> numbers_of(limbs_of([0, 3 << 70]))
    [0, 3541774862152233910272]
    """
    size, raw = 4 * limbs.shape[1], np.ascontiguousarray(limbs, "<u4").tobytes()
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)]


def roots(points: int) -> NDArray[np.complex128]:
    """By what each split of X^points - i turns its upper half: X^(2 d) - c^2 = (X^d - c)(X^d + c), node n's c at n.

    Node 1 splits the whole; nodes 2 n and 2 n + 1 split what n left. Each is the nearest double to the true one, from
    angles in the first octant with the precision that the machine has.

    >>> bool(abs(roots(4)[1] ** 2 - 1j) < 1e-15), bool(abs(roots(4)[3] ** 2 + roots(4)[1]) < 1e-15)
    (True, True)
    """
    turns = np.zeros(points, np.longdouble)  # in half turns
    if points > 1:
        turns[1] = 0.25
    size = 2
    while size < points:
        above = turns[size // 2 : size]
        turns[size : 2 * size : 2], turns[size + 1 : 2 * size : 2] = above / 2, above / 2 + 0.5
        size *= 2
    quarter, rest = np.divmod(turns, np.longdouble(0.5))
    flipped = rest > 0.25
    angle = np.where(flipped, 0.5 - rest, rest) * (4 * np.arctan(np.longdouble(1)))
    small, large = np.sin(angle), np.cos(angle)
    re, im = np.where(flipped, small, large), np.where(flipped, large, small)
    found: NDArray[np.complex128] = re.astype(np.float64) + 1j * im.astype(np.float64)
    found[quarter.astype(np.int64) % 2 == 1] *= 1j
    found[0] = 1
    return found


def proven(points: int, digit: int, longer: int = 2 * SPILL) -> float:
    """A bound on how far a sum of a transformed product is from its integer: below a half, rounding is exact.

    Brent, Percival and Zimmermann, Math. Comp. 2007, theorem 5.1: |error| <= |x| |y| ((1 + e)^3n (1 + e sqrt 5)^(3n+1)
    (1 + m)^3n - 1) for 2^n points, with e = 2^-53 and roots off by m. Digits lie in [-2^(digit-1), 2^(digit-1)];
    `longer` of them may have been folded onto others.

    >>> proven(8192, 16) < 0.35, proven(16384, 16) < 0.5, proven(1 << 24, 8) < 0.02
    (True, False, True)
    """
    n, e, most = int(points).bit_length() - 1, 2.0**-53, 2.0 ** (digit - 1)
    norm = (2 * points + 3 * longer) * most**2  # |x| |y|; a folded digit is at most twice as large
    grown = 3 * n * np.log1p(e) + (3 * n + 1) * np.log1p(e * 5**0.5) + 3 * n * np.log1p(e)
    return float(norm * np.expm1(grown))


class Room(NamedTuple):
    """What the kernels are given beside the numbers."""

    words: int  # of a plane of a block's work
    most: int  # limbs of the quotient a block finds at a time
    longest: int  # limbs of a transform: LIMBS of divide.cu


def room(nu: int, nv: int) -> Room:
    """For dividends of `nu` limbs and divisors of `nv`.

    >>> room(2048, 1024)
    Room(words=5184, most=1029, longest=2048)
    """
    longest = transform(max(2 * min(nu, max(nv + 1, BLOCK)) + 6, nv + 2), SHORT)
    return Room(2 * nu + nv + 64, longest // 2 + 5, longest)


def transform(limbs: int, most: int = 1 << 40) -> int:
    """The shortest transform for a product of so many limbs.

    >>> transform(1030), transform(1041)
    (1024, 2048)
    """
    points = 64
    while points < most and points + SPILL < limbs:
        points *= 2
    return points


class Setting(NamedTuple):
    """How divide.cu is compiled: its THREADS, CLASSICAL, RADIX and BLOCKS."""

    threads: int
    classical: int = 64
    radix: int = 3
    blocks: int = 1

    def defines(self, at: Room) -> dict[str, int]:
        """What the source is compiled with."""
        return {"THREADS": self.threads, "CLASSICAL": self.classical, "RADIX": self.radix, "BLOCKS": self.blocks,
                "LIMBS": at.longest}  # fmt: skip

    def shared(self, at: Room) -> int:
        """Bytes of shared memory: a transform with one point in nine left free, or a classical product's factors."""
        return max(18 * at.longest, 8 * min(self.classical, at.words) + 512)


def usual(at: Room) -> Setting:
    """A setting for a transform of that length: sixteen points a thread, and as many blocks as their registers allow.

    With eight points a thread and twice the threads a division takes a third longer: most of its products are short.
    """
    threads = min(512, max(64, at.longest // 16))
    return Setting(threads, 96, 3, max(1, min(65536 // (128 * threads), 220_000 // (18 * at.longest + 3072), 16)))


def arguments(arrays: Any, at: Room, grid: int) -> tuple[Any, Any, Any]:
    """Roots, room for transforms and room for numbers, for so many blocks, as arrays of NumPy or CuPy."""
    made = arrays.asarray(roots(at.longest).view(np.float64).copy())
    saved = arrays.empty(grid * at.longest * 2, np.float64)
    return made, saved, arrays.empty(grid * PLANES * at.words, np.uint32)

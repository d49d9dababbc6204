"""Whole numbers of any length, one pair or many: quotients, products, remainders of products, greatest common divisors.

Pairs of like lengths are divided together: a thread a pair on the CPU, a block a pair on a GPU.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from assay.kernels.bigint_div import layout, limbs
from assay.kernels.bigint_div.layout import Limbs
from assay.kernels.engine import cuda
from assay.kernels.engine.arrays import plain as plain_array
from assay.record.errors import BadInput

SOURCE = Path(__file__).with_name("divide.cu")
MANY = 256  # pairs from which on a GPU is asked, where there is one
PLAIN = 1 << 27  # bits of the quotient times bits of the divisor up to which Python's own division is taken instead:
# a dividend of 2^14 bits by half as many, where one pair took 1.7 times Python's time, and 0.7 times at 2^15
OFF = 1  # by how much a quotient may be off before it is corrected: proven in limbs.py, and checked each time


class DividedByZero(BadInput, ZeroDivisionError):  # noqa: N818 - read as a sentence
    """A divisor is zero: the line says which."""


class Divided(NamedTuple):
    """Rows of quotients and remainders, what was corrected and what was counted."""

    q: Limbs
    r: Limbs
    fixes: NDArray[Any]  # the least and the largest correction of each pair's quotient
    counts: NDArray[Any]  # products, limbs of their transforms, products of limbs


@cache
def _roots(points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    made = layout.roots(points)
    return made.real.copy(), made.imag.copy()


def _roots_for(product: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For transforms of products up to so many limbs."""
    length = layout.transform(product)
    return _roots(length if length <= layout.SHORT else 2 * length)


def on_cpu(u: Limbs, v: Limbs) -> Divided:
    """Divide rows of limbs by Numba, on as many threads as it has."""
    longest = max(2 * min(u.shape[1], max(v.shape[1] + 1, layout.BLOCK)) + 6, v.shape[1] + 2)
    found = Divided(
        np.empty_like(u), np.empty_like(v), np.zeros((len(u), 2), np.int64), np.zeros((len(u), 3), np.int64)
    )
    limbs.divide_rows(u, v, found.q, found.r, *_roots_for(longest), found.counts, found.fixes)
    return found


def on_device(
    u: Limbs, v: Limbs, make: Callable[..., Any], setting: layout.Setting | None = None, grid: int = 0
) -> Divided:
    """Divide rows of limbs by divide.cu: `make` is `cuda.Gpu`, or `cuda.OnCpu` without one."""
    at = layout.room(u.shape[1], v.shape[1])
    chosen = setting or layout.usual(at)
    device = _device(make, tuple(chosen.defines(at).items()))
    xp, pairs = device.arrays, len(u)
    blocks = min(pairs, grid or 132 * chosen.blocks)
    q, r = xp.empty(u.shape, np.uint32), xp.empty(v.shape, np.uint32)
    fixes, counts = xp.zeros((pairs, 2), np.int32), xp.zeros((pairs, 3), np.uint64)
    roots, saved, work = layout.arguments(xp, at, blocks)
    device.launch(
        "divide", blocks, chosen.threads, xp.asarray(u), u.shape[1], xp.asarray(v), v.shape[1], q, r, pairs, roots,
        saved, work, at.words, at.most, fixes, counts, shared=chosen.shared(at),
    )  # fmt: skip
    host = getattr(xp, "asnumpy", np.asarray)
    return Divided(*(host(part) for part in (q, r, fixes, counts)))


@cache
def _device(make: Callable[..., Any], defines: tuple[tuple[str, int], ...]) -> Any:
    return make(SOURCE, **dict(defines))


def divide_limbs(u: Limbs, v: Limbs, device: str = "auto") -> Divided:
    """Divide each row of `u` by that of `v`: limbs of 32 bits, the least first. No row of `v` is zero.

    >>> divide_limbs(np.array([[5, 1]], np.uint32), np.array([[2]], np.uint32)).q.tolist()
    [[2147483650, 0]]
    """
    if device not in ("auto", "cpu", "gpu"):
        raise BadInput(f"no device {device!r}: auto, cpu or gpu")
    u, v = _rows(u, "u"), _rows(v, "v")
    if len(u) != len(v):
        raise BadInput(f"{len(u)} dividends, but {len(v)} divisors")
    if not len(u):
        return Divided(u, v, np.zeros((0, 2), np.int64), np.zeros((0, 3), np.int64))
    zero = np.flatnonzero(~v.any(1))
    if len(zero):
        raise DividedByZero(f"divisor {zero[0]} is zero")
    fits = v.shape[1] + 2 <= layout.SHORT + layout.SPILL
    if device == "gpu" and not fits:
        raise BadInput(f"a divisor of {32 * v.shape[1]} bits is too long for the GPU (2^18); device='cpu' divides it")
    if device == "gpu" or (device == "auto" and fits and len(u) >= MANY and not cuda.missing()):
        found = on_device(u, v, cuda.Gpu)
    else:
        found = on_cpu(u, v)
    if np.abs(found.fixes).max() > OFF:
        raise ArithmeticError("a quotient was further off than is proven possible: please report the numbers")
    return found


def _rows(a: Any, name: str) -> Limbs:
    if isinstance(a, np.ma.MaskedArray):
        plain_array(a, name)
    if not isinstance(a, np.ndarray) or a.ndim != 2 or a.dtype != np.uint32 or not a.shape[1]:
        raise BadInput(f"{name} is no array of 32-bit limbs: give uint32, a number a row, the least limb first")
    rows: Limbs = np.array(a, order="C") if not (a.flags.c_contiguous and a.flags.writeable) else a
    return rows


def _whole(values: Any, name: str) -> list[int]:
    """A row of whole numbers as Python's own, or one line that says which is none."""
    made = []
    if isinstance(values, np.ndarray):
        values = plain_array(values, name, "iu").tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise BadInput(f"{name} is {type(values).__name__}, not a list of whole numbers")
    for at, value in enumerate(values):
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            raise BadInput(f"{name}[{at}] is {type(value).__name__}, not a whole number")
        try:
            made.append(operator.index(value))
        except TypeError:  # a tensor of floats has the method, too
            raise BadInput(f"{name}[{at}] is {value!r}, not a whole number") from None
    return made


@overload
def divide(u: int, v: int, device: str = "auto") -> tuple[int, int]:
    """The quotient and the remainder of two numbers."""


@overload
def divide(u: Sequence[int], v: Sequence[int] | int, device: str = "auto") -> tuple[list[int], list[int]]:
    """Those of lists of numbers, or of a list by one number."""


@overload
def divide(u: Limbs, v: Limbs, device: str = "auto") -> tuple[Limbs, Limbs]:
    """Those of rows of limbs."""


def divide(u: Any, v: Any, device: str = "auto") -> Any:
    """Quotients and remainders, as `divmod` gives them: of two numbers, of lists of them, or of rows of limbs.

    One divisor serves a list of dividends. Quotients are rounded down, remainders have the divisor's sign. Lists of
    ints that are short (`plain`) go to Python's own division, which is faster there, unless a device is named.

    Raises:
        BadInput: the lists differ in length, or hold something else than whole numbers.
        DividedByZero: a `BadInput` that is a `ZeroDivisionError`, too.

    >>> divide(10**40, 3 * 10**18)
    (3333333333333333333333, 1000000000000000000)
    >>> divide([7, -7, 7], [2, 2, -2])
    ([3, -4, -4], [1, 1, -1])
    """
    if isinstance(u, np.ndarray) and u.ndim == 2:
        found = divide_limbs(u, v, device)
        return found.q, found.r
    if _is_number(u):
        (q,), (r,) = divide([u], [v], device)
        return q, r
    dividends = _whole(u, "u")
    divisors = _whole([v], "v") * len(dividends) if _is_number(v) else _whole(v, "v")
    if len(dividends) != len(divisors):
        raise BadInput(f"{len(dividends)} dividends, but {len(divisors)} divisors")
    if 0 in divisors:
        raise DividedByZero(f"divisor {divisors.index(0)} is zero")
    quotients, remainders = [0] * len(dividends), [0] * len(dividends)
    for group in _alike(dividends, divisors):
        many = len(group) >= MANY and not cuda.missing()
        if device == "auto" and not many and all(plain(dividends[i], divisors[i]) for i in group):
            for i in group:
                quotients[i], remainders[i] = divmod(dividends[i], divisors[i])
            continue
        rows = layout.limbs_of([abs(dividends[i]) for i in group]), layout.limbs_of([abs(divisors[i]) for i in group])
        found = divide_limbs(*rows, device)
        for i, q, r in zip(group, layout.numbers_of(found.q), layout.numbers_of(found.r), strict=True):
            quotients[i], remainders[i] = _signed(dividends[i], divisors[i], q, r)
    return quotients, remainders


def _is_number(x: Any) -> bool:
    """Whether it stands for one whole number; arrays say so of themselves, and mean those without dimensions."""
    return hasattr(x, "__index__") and not getattr(x, "ndim", 0)


def plain(u: int, v: int) -> bool:
    """Whether Python's own division of two ints is taken to be the faster one.

    >>> plain(10**100, 10**50), plain(2**40_000, 2**20_000)
    (True, False)
    """
    return max(u.bit_length() - v.bit_length(), 0) * v.bit_length() < PLAIN


def _alike(u: list[int], v: list[int]) -> list[list[int]]:
    """Pairs by the size classes of both: padding to the longest of a group at most doubles it."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (a, b) in enumerate(zip(u, v, strict=True)):
        groups.setdefault((max(a.bit_length() - 1, 0).bit_length(), (b.bit_length() - 1).bit_length()), []).append(i)
    return list(groups.values())


def _signed(u: int, v: int, q: int, r: int) -> tuple[int, int]:
    """What `divmod` makes of the quotient and the remainder of absolute values."""
    if (u < 0) != (v < 0):
        q, r = (-q - 1, abs(v) - r) if r else (-q, 0)
    return q, -r if v < 0 else r


def multiply(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Products of natural numbers by the multiplier that the division is made of.

    >>> multiply([3, 10**20], [5, 10**20]) == [15, 10**40]
    True
    """
    a, b = _whole(a, "a"), _whole(b, "b")
    if len(a) != len(b):
        raise BadInput(f"{len(a)} first factors, but {len(b)} second ones")
    if any(x < 0 for x in (*a, *b)):
        raise BadInput("a factor is negative: give its absolute value")
    if not a:
        return []
    return layout.numbers_of(multiply_limbs(layout.limbs_of(a), layout.limbs_of(b))[0])


def multiply_limbs(a: Limbs, b: Limbs) -> tuple[Limbs, NDArray[Any]]:
    """Products of rows of limbs, and what was counted."""
    out, counts = np.empty((len(a), a.shape[1] + b.shape[1]), np.uint32), np.zeros((len(a), 3), np.int64)
    limbs.multiply_rows(a, b, out, *_roots_for(out.shape[1] + 1), counts)
    return out, counts


def mulmod(a: Sequence[int], b: Sequence[int], m: Sequence[int] | int) -> list[int]:
    """Remainders of products of natural numbers.

    >>> mulmod([10**30], [10**30], 10**9 + 7) == [10**60 % (10**9 + 7)]
    True
    """
    return divide(multiply(a, b), m)[1]


def gcd(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Greatest common divisors by Euclid: all pairs take a step together until each has come to zero.

    >>> gcd([12, 7, 0], [18, 0, 0])
    [6, 7, 0]
    """
    x, y = [abs(value) for value in _whole(a, "a")], [abs(value) for value in _whole(b, "b")]
    if len(x) != len(y):
        raise BadInput(f"{len(x)} first numbers, but {len(y)} second ones")
    while left := [i for i, value in enumerate(y) if value]:
        _, rest = divide([x[i] for i in left], [y[i] for i in left])
        for i, r in zip(left, rest, strict=True):
            x[i], y[i] = y[i], r
    return x

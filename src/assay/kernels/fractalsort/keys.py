"""Keys as unsigned words whose order is the values' own, and back.

Whole numbers with a sign get it turned; floats as IEEE has them, negative ones turned whole, and every NaN last, as
NumPy sorts them; dates as numbers with NaT last; byte strings of up to eight bytes as big-endian words.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import ArrayLike, NDArray

from assay.kernels.engine.arrays import plain
from assay.record.errors import BadInput
from assay.sim.compiled import njit

PLAIN, SIGNED, FLOAT, DATE = 0, 1, 2, 3
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
PIECE = 1 << 16  # keys that are looked at at once
INLINE: Any = {"cache": True, "inline": "never"}


class Keys(NamedTuple):
    """An array as unsigned words, and how these become keys whose order is the values'."""

    words: NDArray[Any]
    kind: int
    dtype: np.dtype[Any]  # of the values, in the caller's byte order

    @property
    def bits(self) -> int:
        """Of a key."""
        return 8 * self.words.itemsize


def keys_of(x: ArrayLike) -> Keys:
    """The array's keys, or one clear complaint.

    >>> keys_of([3, -1]).kind == SIGNED
    True
    >>> keys_of(np.zeros((2, 2)))
    Traceback (most recent call last):
    assay.record.errors.BadInput: only one row of keys can be sorted, this has shape (2, 2); sort its rows one by one
    """
    array = plain(x, "x")
    asked = array.dtype if not isinstance(x, np.ndarray) else x.dtype
    if array.ndim != 1:
        raise BadInput(f"only one row of keys can be sorted, this has shape {array.shape}; sort its rows one by one")
    array = np.ascontiguousarray(array)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "S" and size <= 8:
        padded = np.zeros((len(array), 8), np.uint8)
        padded[:, :size] = array.view(np.uint8).reshape(len(array), size)
        return Keys(padded.view(">u8").ravel().astype(np.uint64), PLAIN, asked)
    kinds = {"b": PLAIN, "u": PLAIN, "i": SIGNED, "f": FLOAT, "M": DATE, "m": DATE}
    if kind not in kinds or size not in WORDS:
        raise BadInput(
            f"{array.dtype} has no order of bits; give whole numbers, floats, dates or up to 8 bytes of text"
        )
    return Keys(array.view(WORDS[size]), kinds[kind], asked)


def values_of(words: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The words of sorted values as the values they are."""
    if dtype.kind == "S":
        raw = words.astype(">u8").view(np.uint8).reshape(len(words), 8)[:, : dtype.itemsize]
        return np.ascontiguousarray(raw).view(dtype).ravel()
    return words.view(dtype.newbyteorder("=")).astype(dtype, copy=False)


def own_nans(out: NDArray[Any], keys: Keys) -> NDArray[Any]:
    """Sorted words with the NaNs, which are last and have one key, as the caller's own: sign and payload are kept."""
    floats = keys.dtype.newbyteorder("=")
    if keys.kind == FLOAT and len(out) and np.isnan(out[-1:].view(floats)[0]):
        own = keys.words[np.isnan(keys.words.view(floats))]
        out[len(out) - len(own) :] = own
    return out


@njit(**INLINE)
def top_of(sign):
    """The number of the top bit."""
    top = 0
    while sign >> np.uint64(top) > np.uint64(1):
        top += 1
    return np.uint64(top)


@njit(**INLINE)
def of_float(word, top, infinity):
    """The key of a float's word, whose sign is bit `top`: in sums, for branches on signs would be guessed wrong.

    >>> hex(of_float(0x3F800000, np.uint64(31), np.uint64(0x7F800000)))
    '0xbf800000'
    """
    key, one = np.uint64(word), np.uint64(1)
    sign = one << top
    every = sign | (sign - one)
    if (key & (sign - one)) > infinity:  # NaN, of either sign: last
        return every
    return key ^ (sign | (every & (np.uint64(0) - (key >> top))))


@njit(**INLINE)
def to_float(key, top, nan):
    """The word of a float's key."""
    one = np.uint64(1)
    sign = one << top
    every = sign | (sign - one)
    if key == every:
        return nan
    return key ^ (sign | (every & ((key >> top) - one)))


@njit(**INLINE)
def coded(word, kind, sign, infinity):
    """The key of a word: unsigned, in the values' order. `sign` is the top bit, `infinity` that of its kind."""
    key, one = np.uint64(word), np.uint64(1)
    if kind == PLAIN:
        return key
    if kind == SIGNED:
        return key ^ sign
    if kind == FLOAT:
        if key & (sign - one) > infinity:  # NaN, of either sign: last
            return (sign - one) + sign
        return key ^ sign if key < sign else (sign - one) + sign - key
    return (key ^ sign) - one  # NaT is the least whole number: it becomes the largest


@njit(cache=True)
def straight(kind, sign, low):
    """Of all kinds but floats: (flip, less) such that a word's key, less `low`, is (word ^ flip) - less.

    Loops over words are written for these and for floats apart: a look at the kind of each word would take half as long
    as what is done with it.
    """
    flip = np.uint64(0) if kind == PLAIN else sign
    return flip, low + np.uint64(1) if kind == DATE else low


@njit(**INLINE)
def decoded(key, kind, sign, nan):
    """The word of a key."""
    one = np.uint64(1)
    if kind == PLAIN:
        return key
    if kind == SIGNED:
        return key ^ sign
    if kind == FLOAT:
        if key == (sign - one) + sign:
            return nan
        return key ^ sign if key >= sign else (sign - one) + sign - key
    return (key + one) ^ sign


def marks(keys: Keys) -> tuple[Any, Any, Any]:
    """The top bit, the bits of infinity and those of NaN."""
    sign = np.uint64(1 << (keys.bits - 1))
    if keys.kind != FLOAT:
        return sign, np.uint64(0), np.uint64(0)
    infinity, nan = (
        np.uint64(np.array([value], keys.dtype.newbyteorder("=")).view(keys.words.dtype)[0])
        for value in (np.inf, np.nan)
    )
    return sign, infinity, nan


def order(keys: Keys) -> int:
    """1 where no value is less than the one before, -1 where none is greater, 0 else, seen at the first that is.

    >>> [order(keys_of(x)) for x in ([1, 1, 2.5, np.nan], [3, 2, 2], [1, 3, 2], [np.nan, 1.0])]
    [1, -1, 0, 0]
    """
    x = keys.words if keys.dtype.kind == "S" else keys.words.view(keys.dtype.newbyteorder("="))
    end = len(x) if x[-1] == x[-1] else int(np.searchsorted(x, x[-1]))  # NaN and NaT are last
    if _rising(x[:end]) and (end == len(x) or bool(np.isnan(x[end:]).all())):
        return 1
    return -1 if end == len(x) and _rising(x[::-1]) else 0


def _rising(x: NDArray[Any]) -> bool:
    last = len(x) - 1
    return all(bool((x[a : min(a + PIECE, last)] <= x[a + 1 : a + PIECE + 1]).all()) for a in range(0, last, PIECE))


@njit(cache=True, parallel=True)
def extremes(words, kind, sign, infinity, threads):
    """The least and the largest key."""
    low, high = np.empty(threads, np.uint64), np.empty(threads, np.uint64)
    n, top = len(words), top_of(sign)
    flip, less = straight(kind, sign, np.uint64(0))
    for t in prange(threads):
        a, b = n * t // threads, n * (t + 1) // threads
        least, most = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
        if kind == FLOAT:
            for i in range(a, b):
                key = of_float(words[i], top, infinity)
                least, most = min(least, key), max(most, key)
        else:
            for i in range(a, b):
                key = (np.uint64(words[i]) ^ flip) - less
                least, most = min(least, key), max(most, key)
        low[t], high[t] = least, most
    return low.min(), high.max()

"""From floats to whole numbers that may be summed, once, and back, once.

Error-bounded: a number becomes the nearest multiple of a step, so the sum of n ranks' codes is off the sum of their
numbers by n half steps at most, in whatever order they are summed. The step is a little less than 2 eps: what rounding
the result to float32 adds is taken off beforehand. Differences of neighbouring codes (Lorenzo's predictor on whole
numbers) are summable as well, and small where a field is smooth. What is not finite, or so large that codes would not
fit, is an outlier: it travels as it is.

QSGD: a number becomes one of its bucket's 2^(b-1) - 1 levels above or below it, at random and right in the mean. Ranks
must agree on a bucket's scale, or their levels could not be summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import bits

Floats = NDArray[np.floating[Any]]  # of 32 or 64 bits
Codes = NDArray[np.int32]
KINDS = np.float32, np.float64

LARGEST = 2.0**20  # of eps: what is larger is an outlier
MOST_RANKS = 512  # whose sums of differences fit 32 bits
BUCKET = 512  # numbers that share a scale in QSGD
OUTLIERS = {word: np.dtype([("at", "<i8"), ("value", f"<f{word}")]) for word in (4, 8)}  # by bytes of a number
# Of the largest term: half a unit in the last place of a float32, and a little; for a float64 also what is rounded
# while it is divided by the step and multiplied again.
ROUNDING = {4: 2.0**-24 * (1 + 2.0**-10), 8: 2.0**-51}
LEAST = {4: 2.0**-150, 8: 2.0**-1074}  # by which the smallest numbers are rounded
TINIEST = {4: 2.0**-148, 8: 2.0**-1000}  # of an eps, of which there are multiples to be had


def flat(x: Any) -> Floats:
    """One row of float32 or float64; shorter floats become float32, which holds them exactly.

    >>> flat([[1.0, 2.0]])
    array([1., 2.])

    Raises:
        ValueError: numbers that are no floats of 16 to 64 bits.
    """
    x = np.asarray(x)
    if x.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"numbers are {x.dtype}, should be float32 or float64")
    return np.ascontiguousarray(x, np.result_type(x.dtype, np.float32)).reshape(-1)


def words(x: Floats) -> tuple[Any, Any]:
    """The bits of numbers, and the mask of all but their sign: whole numbers order floats, and NaN above all."""
    kind: Any = np.uint32 if x.itemsize == 4 else np.uint64
    return x.view(kind), kind(np.iinfo(kind).max >> 1)


@dataclass(frozen=True)
class Grid:
    """Multiples of `step`; floats whose bits are above `most`, without the sign, are outliers."""

    step: float
    most: int


def surveyed(x: Floats, eps: float) -> tuple[float, int]:
    """The largest number that is no outlier, and how many are.

    >>> surveyed(np.array([1, -3, np.nan, 1e30], np.float32), eps=0.1)
    (3.0, 2)
    """
    peak, outliers = _survey(*words(x), _most(eps, x.dtype))
    return float(np.array([peak]).astype(words(x)[0].dtype).view(x.dtype)[0]), int(outliers)


def grid(eps: float, peak: float, word: int = 4) -> Grid:
    """The widest step that keeps a sum of n within n eps, its rounding to numbers of so many bytes included.

    >>> grid(0.5, peak=0.0).step
    1.0
    """
    most = int(_most(eps, np.dtype(f"f{word}")))
    return Grid(2 * (eps - ROUNDING[word] * peak - LEAST[word]) if most else 1.0, most)


def _most(eps: float, kind: Any) -> Any:
    if eps < TINIEST[np.dtype(kind).itemsize]:  # all but 0 are outliers
        return words(np.zeros(1, kind))[0][0]
    with np.errstate(over="ignore"):
        return words(np.array([min(eps * LARGEST, float(np.finfo(kind).max) * 0.9)], kind))[0][0]


@njit(cache=True, nogil=True)
def _survey(words, mask, most):  # type: ignore[no-untyped-def]
    none = mask ^ mask
    peak, outliers = none, 0
    for i in range(len(words)):
        size = words[i] & mask
        inside = size <= most
        peak = max(peak, size if inside else none)
        outliers += 0 if inside else 1
    return peak, outliers


@njit(cache=True, nogil=True)
def _round(x, words, mask, inverse, most, out):  # type: ignore[no-untyped-def]
    magic = 6755399441055744.0  # adding 1.5 * 2^52 rounds to the nearest, the even one of two
    for i in range(len(x)):
        inside = (words[i] & mask) <= most
        value = np.float64(x[i]) * inverse if inside else 0.0
        out[i] = np.int32((value + magic) - magic)


@njit(cache=True, nogil=True)
def _difference(codes, out):  # type: ignore[no-untyped-def]
    if len(codes):
        out[0] = codes[0]
    for i in range(1, len(codes)):
        out[i] = codes[i] - codes[i - 1]


@njit(cache=True, nogil=True)
def _accumulate(codes, step, out):  # type: ignore[no-untyped-def]
    total = np.int32(0)
    for i in range(len(codes)):
        total += codes[i]
        out[i] = total * step


@njit(cache=True, nogil=True)
def _scale(codes, step, out):  # type: ignore[no-untyped-def]
    for i in range(len(codes)):
        out[i] = codes[i] * step


def quantised(x: Floats, on: Grid, predict: bool) -> Codes:
    """Codes of a frame, or their differences; outliers are 0.

    >>> quantised(np.array([1.0, 1.9, 4.1, np.inf], np.float32), grid(0.5, 0.0), predict=False).tolist()
    [1, 2, 4, 0]
    """
    out = np.empty(len(x), np.int32)
    bits_of, mask = words(x)
    _round(x, bits_of, mask, 1.0 / on.step, type(mask)(on.most), out)
    return differences(out) if predict else out


def differences(codes: Codes) -> Codes:
    """Each code less the one before.

    >>> differences(np.array([5, 6, 4], np.int32)).tolist()
    [5, 1, -2]
    """
    out = np.empty_like(codes)
    _difference(codes, out)
    return out


def restored(codes: Codes, step: float, predict: bool, out: Floats) -> None:
    """Numbers of a frame's codes, or of their differences."""
    (_accumulate if predict else _scale)(codes, step, out)


def outliers(x: Floats, most: int) -> NDArray[np.uint8]:
    """Where numbers are whose bits are above `most`, and what they are, as bytes.

    >>> len(outliers(np.array([1, np.nan], np.float32), grid(0.1, 1.0).most))
    12
    """
    bits_of, mask = words(x)
    at = np.flatnonzero((bits_of & mask) > type(mask)(most))
    found = np.empty(len(at), OUTLIERS[x.itemsize])
    found["at"], found["value"] = at, x[at]
    return found.view(np.uint8)


def add_outliers(parts: list[NDArray[np.uint8]], into: Floats) -> None:
    """Add all ranks' outliers to what their codes gave; sorted first, so that the order of ranks changes nothing."""
    found = np.concatenate([np.ascontiguousarray(part).view(OUTLIERS[into.itemsize]) for part in parts])
    found = np.sort(found, order=("at", "value"))
    at, begins = np.unique(found["at"], return_index=True)
    if len(at):
        with np.errstate(all="ignore"):
            sums = np.add.reduceat(found["value"].astype(np.float64), begins)
            into[at] = (into[at] + sums).astype(into.dtype)


def put_outliers(part: NDArray[np.uint8], into: Floats) -> None:
    """Write outliers over what their codes gave.

    Raises:
        IndexError: one lies beyond the numbers.
    """
    found = np.ascontiguousarray(part).view(OUTLIERS[into.itemsize])
    into[found["at"]] = found["value"]


# ----------------------------------------------------------------------------------------------------------- QSGD


def scales(x: Floats) -> Floats:
    """The largest finite number of every bucket, without its sign.

    >>> scales(np.array([1, -3, np.nan] + [0] * 509 + [2], np.float32)).tolist()
    [3.0, 2.0]
    """
    found = np.zeros(-(-len(x) // BUCKET), x.dtype)
    _largest(x, found)
    return found


def infinite(x: Floats) -> int:
    """The bits that those of every number which is not finite are above.

    >>> len(outliers(x := np.array([1, np.nan, -np.inf], np.float32), infinite(x)))
    24
    """
    return int(words(np.array([np.finfo(x.dtype).max], x.dtype))[0][0])


@njit(cache=True, nogil=True)
def _largest(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        size = abs(x[i])
        if size < np.inf:
            out[i // BUCKET] = max(out[i // BUCKET], size)


@njit(cache=True, nogil=True)
def _levels(x, start, scale, levels, key, out):  # type: ignore[no-untyped-def]
    at = 0
    while at < len(x):
        bucket = (start + at) // BUCKET
        stop = min((bucket + 1) * BUCKET - start, len(x))
        one = np.float64(scale[bucket])
        for i in range(at, stop):
            place = np.uint64(start + i)
            word = bits(key, place >> np.uint64(1))  # serves two neighbours, half of it each
            chance = np.float64((word >> (np.uint64(32) * (place & np.uint64(1)))) & np.uint64(0xFFFFFFFF)) * 2.0**-32
            usable = one > 0.0 and abs(x[i]) < np.inf
            level = math.floor(np.float64(x[i]) / one * levels + chance) if usable else 0.0
            out[i] = np.int32(min(max(level, -levels), levels))
        at = stop


@njit(cache=True, nogil=True)
def _of_levels(codes, start, scale, levels, out):  # type: ignore[no-untyped-def]
    at = 0
    while at < len(codes):
        bucket = (start + at) // BUCKET
        stop = min((bucket + 1) * BUCKET - start, len(codes))
        step = np.float64(scale[bucket]) / levels
        for i in range(at, stop):
            out[i] = codes[i] * step
        at = stop


def levelled(x: Floats, start: int, scale: Floats, levels: int, key: int) -> Codes:
    """QSGD's codes of a frame that begins at `start`: -levels to levels, rounded at random as `key` says.

    >>> levelled(np.array([1, -1, 0], np.float32), 0, np.array([1], np.float32), levels=7, key=1).tolist()
    [7, -7, 0]
    """
    out = np.empty(len(x), np.int32)
    _levels(x, start, scale, levels, np.uint64(key), out)
    return out


def unlevelled(codes: Codes, start: int, scale: Floats, levels: int, out: Floats) -> None:
    """Numbers of summed levels."""
    _of_levels(codes, start, scale, levels, out)

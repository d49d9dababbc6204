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

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import bits

Floats = NDArray[np.float32]
Codes = NDArray[np.int32]

LARGEST = 2.0**20  # of eps: what is larger is an outlier
MOST_RANKS = 512  # whose sums of differences fit 32 bits
BUCKET = 512  # numbers that share a scale in QSGD
OUTLIER = np.dtype([("at", "<i8"), ("value", "<f4")])
ROUNDING = 2.0**-24 * (1 + 2.0**-10)  # of the largest term: half a unit in the last place of a float32, and a little


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
    peak, outliers = _survey(x.view(np.uint32), _most(eps))
    return float(np.array([peak], np.uint32).view(np.float32)[0]), int(outliers)


def grid(eps: float, peak: float) -> Grid:
    """The widest step that keeps a sum of n within n eps, its rounding to float32 included.

    >>> grid(0.5, peak=0.0).step
    1.0
    """
    return Grid(2 * (eps - ROUNDING * peak - 2.0**-150), _most(eps))


def _most(eps: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.array([min(eps * LARGEST, 3e38)], np.float32).view(np.uint32)[0])


@njit(cache=True, nogil=True)
def _survey(words, most):  # type: ignore[no-untyped-def]
    peak, outliers, most = np.uint32(0), np.uint32(0), np.uint32(most)
    for i in range(len(words)):
        size = words[i] & np.uint32(0x7FFFFFFF)  # whole numbers order floats, and NaN above all
        inside = size <= most
        peak = max(peak, size if inside else np.uint32(0))
        outliers += np.uint32(0) if inside else np.uint32(1)
    return peak, outliers


@njit(cache=True, nogil=True)
def _round(x, inverse, most, out):  # type: ignore[no-untyped-def]
    words, magic = x.view(np.uint32), 6755399441055744.0  # adding 1.5 * 2^52 rounds to the nearest, the even one of two
    for i in range(len(x)):
        inside = (words[i] & np.uint32(0x7FFFFFFF)) <= np.uint32(most)
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
        out[i] = np.float32(total * step)


@njit(cache=True, nogil=True)
def _scale(codes, step, out):  # type: ignore[no-untyped-def]
    for i in range(len(codes)):
        out[i] = np.float32(codes[i] * step)


def quantised(x: Floats, on: Grid, predict: bool) -> Codes:
    """Codes of a frame, or their differences; outliers are 0.

    >>> quantised(np.array([1.0, 1.9, 4.1, np.inf], np.float32), grid(0.5, 0.0), predict=False).tolist()
    [1, 2, 4, 0]
    """
    out = np.empty(len(x), np.int32)
    _round(x, 1.0 / on.step, on.most, out)
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


def outliers(x: Floats, on: Grid) -> NDArray[np.uint8]:
    """Where the outliers are and what: an index and a float32 each, as bytes.

    >>> len(outliers(np.array([1, np.nan], np.float32), grid(0.1, 1.0)))
    12
    """
    at = np.flatnonzero((x.view(np.uint32) & np.uint32(0x7FFFFFFF)) > np.uint32(on.most))
    found = np.empty(len(at), OUTLIER)
    found["at"], found["value"] = at, x[at]
    return found.view(np.uint8)


def add_outliers(parts: list[NDArray[np.uint8]], into: Floats) -> None:
    """Add all ranks' outliers to what their codes gave; sorted first, so that the order of ranks changes nothing."""
    found = np.concatenate([np.ascontiguousarray(part).view(OUTLIER) for part in parts])
    found = np.sort(found, order=("at", "value"))
    at, begins = np.unique(found["at"], return_index=True)
    if len(at):
        with np.errstate(all="ignore"):
            sums = np.add.reduceat(found["value"].astype(np.float64), begins)
            into[at] = (into[at] + sums).astype(np.float32)


def put_outliers(part: NDArray[np.uint8], into: Floats) -> None:
    """Write outliers over what their codes gave.

    Raises:
        IndexError: one lies beyond the numbers.
    """
    found = np.ascontiguousarray(part).view(OUTLIER)
    into[found["at"]] = found["value"]


# ----------------------------------------------------------------------------------------------------------- QSGD


def scales(x: Floats) -> Floats:
    """The largest number of every bucket; NaN or infinite where the bucket has such.

    >>> scales(np.array([1, -3] + [0] * 510 + [2], np.float32)).tolist()
    [3.0, 2.0]
    """
    whole = len(x) // BUCKET * BUCKET
    found = np.abs(x[:whole]).reshape(-1, BUCKET).max(axis=1)
    return np.append(found, np.abs(x[whole:]).max()) if whole < len(x) else found


@njit(cache=True, nogil=True)
def _levels(x, start, scale, levels, key, out):  # type: ignore[no-untyped-def]
    at = 0
    while at < len(x):
        bucket = (start + at) // BUCKET
        stop = min((bucket + 1) * BUCKET - start, len(x))
        one = np.float64(scale[bucket])
        usable = one > 0.0 and one < np.inf
        times = levels / one if usable else 0.0
        for i in range(at, stop):
            place = np.uint64(start + i)
            word = bits(key, place >> np.uint64(1))  # serves two neighbours, half of it each
            chance = np.float64((word >> (np.uint64(32) * (place & np.uint64(1)))) & np.uint64(0xFFFFFFFF)) * 2.0**-32
            level = math.floor(np.float64(x[i]) * times + chance) if usable else 0.0
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
            out[i] = np.float32(codes[i] * step)
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

"""Hypergeometric and binomial draws for compiled loops, accurate for populations beyond 10⁹.

A draw with a small mean walks up from zero (inversion); any other is a ratio of uniforms under a hat that is right for
every parameter (Stadlober's HRUA and BRUA), in constant time. Both compare probabilities by differences of log
factorials, taken *before* rounding: ln a! at a = 10⁹ is known to 4·10⁻⁶ only, ln a! − ln b! with a near b to 10⁻¹⁵.

A source of randomness is an array of two words: a key of :func:`assay.sim.random.key`, and a counter.

- Stadlober, "The ratio of uniforms approach for generating discrete random variates", J. Comput. Appl. Math. 31, 1990.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit
from assay.sim.random import Word, bits, key

Source = npt.NDArray[np.uint64]

_SMALL = 4096
_LOG_FACTORIALS = np.array([math.lgamma(k + 1) for k in range(_SMALL)])
_HAT_SLOPE = 2 * math.sqrt(2 / math.e)
_HAT_SHIFT = 3 - 2 * math.sqrt(3 / math.e)
_FEW = 10.0  # a mean below which walking up from zero is quicker than rejection
_LOW_32, _32, _11 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(11)


def source(seed: int, *names: str | bytes | int) -> Source:
    """The source of randomness that belongs to this seed and these names.

    >>> 0 <= hypergeometric(source(0, "a"), 5, 5, 3) <= 3
    True
    """
    return np.array([key(seed, *names), 0], np.uint64)


@njit(cache=True, nogil=True)
def word(draw: Any) -> Word:
    """The next 64 random bits."""
    draw[1] += np.uint64(1)
    return bits(draw[0], draw[1])


@njit(cache=True, nogil=True)
def uniform(draw: Any) -> float:
    """A number strictly between 0 and 1."""
    return (float(word(draw) >> _11) + 0.5) * 2.0**-53


@njit(cache=True, nogil=True)
def integer(draw: Any, n: int) -> Any:
    """An integer in [0, n) for any n below 2⁶³: the high half of a 128-bit product."""
    w, m = word(draw), np.uint64(n)
    low, high = w & _LOW_32, w >> _32
    if m <= _LOW_32:
        return np.int64((high * m + ((low * m) >> _32)) >> _32)
    below, above = m & _LOW_32, m >> _32
    middle = high * below + ((low * below) >> _32)
    carry = low * above + (middle & _LOW_32)
    return np.int64(high * above + (middle >> _32) + (carry >> _32))


@njit(cache=True, nogil=True)
def _tail(a: float) -> float:
    """What Stirling's formula leaves out of ln a!."""
    inverse = 1.0 / a
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


@njit(cache=True, nogil=True)
def log_ratio(a: int, b: int) -> float:
    """ln(a!/b!), without the cancellation of two large logarithms.

    >>> round(log_ratio(5, 3), 12) == round(math.log(20), 12)
    True
    """
    if a < _SMALL and b < _SMALL:
        return float(_LOG_FACTORIALS[a] - _LOG_FACTORIALS[b])
    if min(a, b) < 10:  # far apart, so nothing cancels
        return math.lgamma(a + 1.0) - math.lgamma(b + 1.0)
    x, y = float(a), float(b)
    gap = x - y
    return (y + 0.5) * math.log1p(gap / y) + gap * (math.log(x) - 1.0) + _tail(x) - _tail(y)


@njit(cache=True, nogil=True)
def hypergeometric(draw: Any, good: int, bad: int, sample: int) -> int:
    """How many good ones are among ``sample`` drawn without replacement.

    >>> hypergeometric(source(0, "a"), 4, 0, 3), hypergeometric(source(0, "a"), 4, 7, 11)
    (3, 4)
    """
    total = good + bad
    if sample == 0 or good == 0:
        return 0
    if bad == 0:
        return sample
    if sample == total:
        return good
    # Count the rarer kind in the smaller part; the rest follows by subtraction.
    rare, small = min(good, bad), min(sample, total - sample)
    common = total - rare
    if float(small) * (rare / total) < _FEW:
        found = _hypergeometric_walk(draw, rare, common, small)
    else:
        found = _hypergeometric_hat(draw, rare, common, small)
    if good > bad:
        found = small - found
    return good - found if small < sample else found


@njit(cache=True, nogil=True)
def _hypergeometric_walk(draw: Any, rare: int, common: int, sample: int) -> int:
    total = rare + common
    few, many = min(rare, sample), max(rare, sample)  # the distribution is symmetric in the two
    chance = math.exp(log_ratio(total - many, total - many - few) - log_ratio(total, total - few))
    left = uniform(draw)
    found = 0
    while left > chance and found < few:
        left -= chance
        chance *= float(rare - found) * float(sample - found) / (float(found + 1) * float(common - sample + found + 1))
        found += 1
    return found


@njit(cache=True, nogil=True)
def _hypergeometric_hat(draw: Any, rare: int, common: int, sample: int) -> int:
    total = float(rare + common)
    mean = sample * (rare / total)
    spread = math.sqrt(mean * (common / total) * ((total - sample) / (total - 1.0)) + 0.5)
    width = _HAT_SLOPE * spread + _HAT_SHIFT
    mode = int((sample + 1) * ((rare + 1) / (total + 2.0)))
    end = min(float(min(rare, sample) + 1), mean + 0.5 + 16 * spread)
    while True:
        u = uniform(draw)
        x = mean + 0.5 + width * (uniform(draw) - 0.5) / u
        if x < 0.0 or x >= end:
            continue
        k = int(x)
        height = log_ratio(mode, k) + log_ratio(rare - mode, rare - k)
        height += log_ratio(sample - mode, sample - k) + log_ratio(common - sample + mode, common - sample + k)
        if _under(u, height):
            return k


@njit(cache=True, nogil=True)
def _under(u: float, height: float) -> bool:
    """Whether u² lies below exp(height); two squeezes spare most logarithms."""
    if u * (4.0 - u) - 3.0 <= height:
        return True
    if u * (u - height) >= 1.0:
        return False
    return 2.0 * math.log(u) <= height


@njit(cache=True, nogil=True)
def binomial(draw: Any, trials: int, chance: float) -> int:
    """How many of ``trials`` succeed, each with this chance.

    >>> binomial(source(0, "a"), 9, 1.0), binomial(source(0, "a"), 9, 0.0)
    (9, 0)
    """
    if trials == 0 or chance <= 0.0:
        return 0
    if chance >= 1.0:
        return trials
    rare = min(chance, 1.0 - chance)
    found = _binomial_walk(draw, trials, rare) if trials * rare < _FEW else _binomial_hat(draw, trials, rare)
    return trials - found if chance > 0.5 else found


@njit(cache=True, nogil=True)
def _binomial_walk(draw: Any, trials: int, rare: float) -> int:
    odds = rare / (1.0 - rare)
    chance = math.exp(trials * math.log1p(-rare))
    left = uniform(draw)
    found = 0
    while left > chance and found < trials:
        left -= chance
        chance *= float(trials - found) / float(found + 1) * odds
        found += 1
    return found


@njit(cache=True, nogil=True)
def _binomial_hat(draw: Any, trials: int, rare: float) -> int:
    mean = trials * rare
    spread = math.sqrt(mean * (1.0 - rare) + 0.5)
    width = _HAT_SLOPE * spread + _HAT_SHIFT
    mode = int((trials + 1) * rare)
    logit = math.log(rare) - math.log1p(-rare)
    end = min(float(trials + 1), mean + 0.5 + 16 * spread)
    while True:
        u = uniform(draw)
        x = mean + 0.5 + width * (uniform(draw) - 0.5) / u
        if x < 0.0 or x >= end:
            continue
        k = int(x)
        if _under(u, log_ratio(mode, k) + log_ratio(trials - mode, trials - k) + float(k - mode) * logit):
            return k

"""Intervals for measured values: Student's t, the bootstrap, Clopper–Pearson, and a slope with its t interval.

All are deterministic: the bootstrap resamples with a fixed stream, so the same table always gives the same interval.

They hold the truth about as often as they say. Of fewer than eight observations a resampled mean knows too little of
the spread, so their intervals are Student's, on the scale of the effect; ratios are compared as logarithms, pair by
pair. One or two observations tell no spread that anybody should trust: nothing is certain of them. What is told of the
best or of all of k cases is true only if it is for each of them, so each is held to a level k times as strict
(:func:`family`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.types import Estimate

Floats = NDArray[np.floating[Any]]
RESAMPLES = 10_000
LEVEL = 0.95
FEW = 8  # observations below which resampling covers too little
_RESOLVED = 5  # resampled values beyond an end, below which the percentile is a matter of luck
_cases: ContextVar[int] = ContextVar("cases of a family", default=1)


@contextmanager
def family(cases: int) -> Iterator[None]:
    """Every interval made inside is one of so many that are told together (Bonferroni); families within one multiply.

    >>> with family(10):
    ...     wide = bootstrap([1.0, 2.0, 3.0, 4.0])
    >>> wide.low < bootstrap([1.0, 2.0, 3.0, 4.0]).low
    True
    """
    token = _cases.set(_cases.get() * max(1, cases))
    try:
        yield
    finally:
        _cases.reset(token)


def _tail() -> float:
    """The chance of a truth beyond one end."""
    return (1 - LEVEL) / 2 / _cases.get()


def _student(freedom: float) -> float:
    from scipy import special  # `scipy.stats` has the same under clearer names, for a second of import

    return -float(special.stdtrit(freedom, _tail()))


def _indices(n: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(n)).integers(0, n, size=(RESAMPLES, n))


def unknown(value: float, n: int) -> Estimate:
    """A value of one or two observations: its interval holds everything.

    >>> unknown(5.0, 1)
    Estimate(value=5.0, low=-inf, high=inf, n=1, cases='')
    """
    return Estimate(float(value), -math.inf, math.inf, n)


def of_resampled(value: float, resampled: Floats, n: int) -> Estimate:
    """A value with the interval of what resampling its `n` observations gives.

    >>> of_resampled(2.0, np.array([1.0, 2.0, 3.0]), n=2)  # two observations tell no spread
    Estimate(value=2.0, low=-inf, high=inf, n=2, cases='')
    """
    if n <= 2:
        return unknown(value, n)
    from scipy import special

    # Of few observations the plain percentiles cover too little: Hesterberg's expanded ones widen them as Student's t
    # does the normal interval. Of very few, or far out, even those lie among the last of the resampled values.
    widened = _student(n - 1) * math.sqrt(n / (n - 1))
    tail = float(special.ndtr(-widened))
    if n < FEW or tail * len(resampled) < _RESOLVED:
        half = widened * float(np.std(resampled))
        return Estimate(float(value), float(value) - half, float(value) + half, n)
    low, high = np.percentile(resampled, [100 * tail, 100 - 100 * tail])
    return Estimate(float(value), float(low), float(high), n)


def bootstrap(values: ArrayLike, statistic: Callable[..., Any] = np.mean) -> Estimate:
    """A statistic of independent observations (one per seed) with its interval: from eight on the bootstrap's.

    `statistic` takes an array and `axis`. Below eight the interval is Student's. One observation tells no spread, and
    two hardly any: their interval holds everything.

    >>> bootstrap([1.0, 2.0, 3.0]).value
    2.0
    >>> bootstrap([5.0])
    Estimate(value=5.0, low=-inf, high=inf, n=1, cases='')
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError("bootstrap needs at least one observation")
    value = float(statistic(sample, axis=0))
    if sample.size <= 2:
        return unknown(value, sample.size)
    if sample.size < FEW and statistic is np.mean:
        half = _half(sample)
        return Estimate(value, value - half, value + half, sample.size)
    return of_resampled(value, statistic(sample[_indices(sample.size)], axis=1), sample.size)


def _half(sample: Floats) -> float:
    """Half of Student's interval of a mean; equal observations have none, whatever the last digit says."""
    half = _student(sample.size - 1) * float(np.std(sample, ddof=1)) / math.sqrt(sample.size)
    return half if half > 1e-13 * float(np.abs(sample).max()) else 0.0


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
    """The ratio of two means over paired observations, with Student's interval of the logarithms of the pairs' ratios.

    "How many times" has two readings: the ratio of the means, which is the value, and the geometric mean of the pairs'
    ratios. Where they differ, the interval reaches below the smaller and above the larger one. Observations without a
    logarithm are compared as they are.

    >>> ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    Estimate(value=2.0, low=2.0, high=2.0, n=3, cases='')
    """
    a, b = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or a.size == 0:
        raise ValueError(f"ratio needs the same seeds on both sides, got {a.size} and {b.size} observations")
    value = float(a.mean() / b.mean())
    if a.size <= 2 or not math.isfinite(value):
        return unknown(value, a.size)
    if a.min() <= 0 or b.min() <= 0:
        half = _half((a - value * b) / b.mean())
        return Estimate(value, value - half, value + half, a.size)
    logs = np.log(a) - np.log(b)
    half, off = _half(logs), float(logs.mean()) - math.log(value)
    off = off if abs(off) > 1e-12 else 0.0
    with np.errstate(over="ignore", under="ignore"):  # of a hundred cases and three wild seeds an end may be infinite
        low, high = np.exp([min(off, 0.0) - half, max(off, 0.0) + half]).tolist()
    return Estimate(value, value * low, value * high, a.size)


def clopper_pearson(successes: int, trials: int) -> Estimate:
    """A probability with its exact binomial interval.

    >>> estimate = clopper_pearson(10, 10)
    >>> estimate.value, round(estimate.low, 3), estimate.high
    (1.0, 0.692, 1.0)
    """
    from scipy import special

    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"clopper_pearson needs 0 <= successes <= trials and a trial, got {successes} of {trials}")
    tail = _tail()
    low = 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(special.betaincinv(successes + 1, trials - successes, 1 - tail))
    return Estimate(successes / trials, low, high, trials)


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The exponent b of y ~ a·x^b: the least-squares slope of log y on log x with its t interval.

    An x that is repeated counts once, with the mean of its logarithms: twenty seeds at three sizes are three points of
    a line, and say little of whether it is straight.

    >>> slope([1, 2, 4, 8], [3, 12, 48, 192]).value
    2.0
    >>> slope([1, 2, 4, 4], [2, 4, 8, 8]).n
    3
    """
    from scipy import stats  # a second of import that most commands never need

    if min(x, default=0) <= 0 or min(y, default=0) <= 0:
        raise ValueError("slope needs positive values: it is fitted to logarithms")
    places, which = np.unique(np.asarray(x, dtype=float), return_inverse=True)
    if places.size < 3:
        raise ValueError(f"slope needs at least three different x, got {places.size}")
    heights = np.bincount(which, np.log(np.asarray(y, dtype=float))) / np.bincount(which)
    fit = stats.linregress(np.log(places), heights)
    half = _student(places.size - 2) * float(fit.stderr)
    value = round(float(fit.slope), 12)  # the last digits depend on the BLAS at hand, the result must not
    half = 0.0 if math.isnan(half) or half < 1e-12 else half
    return Estimate(value, value - half, value + half, int(places.size))

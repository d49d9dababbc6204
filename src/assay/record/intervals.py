"""Intervals for measured values: bootstrap, Clopper–Pearson, and a slope with its t interval.

All are deterministic: the bootstrap resamples with a fixed stream, so the same table always gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.types import Estimate

Floats = NDArray[np.floating[Any]]
RESAMPLES = 10_000
LEVEL = 0.95


def _indices(n: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.Philox(n)).integers(0, n, size=(RESAMPLES, n))


def of_resampled(value: float, resampled: Floats, n: int) -> Estimate:
    """A value with the interval of what resampling its `n` observations gives.

    >>> of_resampled(2.0, np.array([1.0, 2.0, 3.0]), n=1)  # one observation tells no spread
    Estimate(value=2.0, low=-inf, high=inf, n=1, cases='')
    """
    if n == 1:
        return Estimate(float(value), -math.inf, math.inf, 1)
    from scipy import special  # `scipy.stats` has the same under clearer names, for a second of import

    # Of few observations the plain percentiles cover too little: Hesterberg's expanded ones widen them as Student's t
    # does the normal interval. Five seeds then give nearly the whole range of the resampled means.
    widened = float(special.stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(n / (n - 1))
    tail = 100 * float(special.ndtr(-widened))
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Estimate(float(value), float(low), float(high), n)


def bootstrap(values: ArrayLike, statistic: Callable[..., Any] = np.mean) -> Estimate:
    """A statistic of independent observations (one per seed) with its percentile bootstrap interval.

    `statistic` takes an array and `axis`. One observation tells no spread: its interval holds everything.

    >>> bootstrap([1.0, 2.0, 3.0]).value
    2.0
    >>> bootstrap([5.0])
    Estimate(value=5.0, low=-inf, high=inf, n=1, cases='')
    """
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError("bootstrap needs at least one observation")
    return of_resampled(statistic(sample, axis=0), statistic(sample[_indices(sample.size)], axis=1), sample.size)


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Estimate:
    """The ratio of two means over paired observations: both are resampled together, seed by seed.

    >>> ratio([2.0, 4.0], [1.0, 2.0])
    Estimate(value=2.0, low=2.0, high=2.0, n=2, cases='')
    """
    a, b = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or a.size == 0:
        raise ValueError(f"ratio needs the same seeds on both sides, got {a.size} and {b.size} observations")
    rows = _indices(a.size)
    return of_resampled(a.mean() / b.mean(), a[rows].mean(axis=1) / b[rows].mean(axis=1), a.size)


def clopper_pearson(successes: int, trials: int) -> Estimate:
    """A probability with its exact binomial interval.

    >>> estimate = clopper_pearson(10, 10)
    >>> estimate.value, round(estimate.low, 3), estimate.high
    (1.0, 0.692, 1.0)
    """
    from scipy import special

    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"clopper_pearson needs 0 <= successes <= trials and a trial, got {successes} of {trials}")
    tail = (1 - LEVEL) / 2
    low = 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(special.betaincinv(successes + 1, trials - successes, 1 - tail))
    return Estimate(successes / trials, low, high, trials)


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The exponent b of y ~ a·x^b: the least-squares slope of log y on log x with its t interval.

    The interval holds the scatter over seeds and the misfit of a straight line alike.

    >>> slope([1, 2, 4, 8], [3, 12, 48, 192]).value
    2.0
    """
    from scipy import stats  # a second of import that most commands never need

    if min(x, default=0) <= 0 or min(y, default=0) <= 0:
        raise ValueError("slope needs positive values: it is fitted to logarithms")
    if len(set(x)) < 3:
        raise ValueError(f"slope needs at least three different x, got {len(set(x))}")
    fit = stats.linregress(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 2)) * float(fit.stderr)
    value = round(float(fit.slope), 12)  # the last digits depend on the BLAS at hand, the result must not
    half = 0.0 if math.isnan(half) else half
    return Estimate(value, value - half, value + half, len(x))

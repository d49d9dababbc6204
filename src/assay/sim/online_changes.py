"""Change points of a series that is still growing, and what all ways of finding change points share.

:func:`bocpd` says how likely a change was, :func:`cusum` when a drift has added up, :func:`mad_z` which single values
are odd. Use them through :mod:`assay.sim.changepoints`, which tells their sources.

>>> cusum([0.0, 1.0] * 10 + [9.0, 10.0] * 4)
[(20, 20)]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit

Floats = NDArray[np.float64]
MAD_TO_SIGMA = 1.4826  # the median absolute deviation of a normal law, as its standard deviation
LOOK = 3  # values behind a change that are seen before it is judged: one alone cannot be told from an outlier


def series(values: ArrayLike) -> Floats:
    """The values as a flat array of finite numbers; ValueError where one is not.

    >>> series([1, 2]).tolist()
    [1.0, 2.0]
    """
    array = np.ascontiguousarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"a series has one dimension, not {array.ndim}")
    if not np.isfinite(array).all():
        raise ValueError(f"value {int(np.flatnonzero(~np.isfinite(array))[0])} of the series is not a finite number")
    return array


def noise(values: ArrayLike) -> float:
    """The standard deviation around the level, from neighbours' differences: level shifts hardly touch it.

    >>> round(noise([0.0, 1.0, 0.0, 1.0, 100.0, 101.0, 100.0, 101.0]), 3)
    1.048
    """
    array = series(values)
    if len(array) < 2:
        return 0.0
    return float(MAD_TO_SIGMA * np.median(np.abs(np.diff(array))) / math.sqrt(2))


def bocpd(values: ArrayLike, *, every: float = 100.0, scale: float | None = None) -> Floats:
    """For each position, how likely a new segment has begun there, as seen three values later. Online, Bayesian.

    Normal values of unknown mean and variance; a change comes once in `every` values. `scale` is the standard
    deviation expected beforehand; without it, :func:`noise` of the whole series.

    >>> chance = bocpd([0.0, 0.1, -0.1, 0.0, 0.1, 5.0, 5.1, 4.9, 5.0, 5.1], every=50)
    >>> int(chance.argmax())
    5
    """
    array = series(values)
    if not every > 1:
        raise ValueError(f"a change must come once in more than 1 value, not {every}")
    spread = noise(array) if scale is None else scale
    if not spread > 0:
        spread = float(array.std()) or 1.0
    centre = float(np.median(array)) if len(array) else 0.0
    chance: Floats = _bocpd((array - centre) / spread, 1 / every, LOOK)
    return chance


@njit(cache=True, nogil=True)
def _bocpd(x: Floats, hazard: float, look: int) -> Any:
    n = len(x)
    chance = np.zeros(n)
    # Normal-gamma posteriors by run length: mean, weight of the mean, shape, rate. The prior is wide in the mean.
    mean, weight, shape, rate = np.zeros(n + 1), np.full(n + 1, 0.05), np.full(n + 1, 1.0), np.full(n + 1, 1.0)
    log_run = np.full(n + 1, -np.inf)
    log_run[0] = 0.0
    log_hazard, log_stay = math.log(hazard), math.log1p(-hazard)
    for t in range(n):
        runs = t + 1
        grown = np.empty(runs + 1)
        top = -np.inf
        for r in range(runs):
            spread = rate[r] * (weight[r] + 1) / (shape[r] * weight[r])
            freedom = 2 * shape[r]
            z = (x[t] - mean[r]) ** 2 / (spread * freedom)
            grown[r + 1] = (
                log_run[r] + math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
                - 0.5 * math.log(math.pi * freedom * spread) - (freedom + 1) / 2 * math.log1p(z)
            )  # fmt: skip
            top = max(top, grown[r + 1])
        total = 0.0
        for r in range(1, runs + 1):
            total += math.exp(grown[r] - top)
        evidence = top + math.log(total)
        for r in range(runs, 0, -1):  # from the longest, so that each posterior is read before it is overwritten
            log_run[r] = grown[r] - evidence + log_stay
            mean[r] = (weight[r - 1] * mean[r - 1] + x[t]) / (weight[r - 1] + 1)
            rate[r] = rate[r - 1] + weight[r - 1] * (x[t] - mean[r - 1]) ** 2 / (2 * (weight[r - 1] + 1))
            weight[r] = weight[r - 1] + 1
            shape[r] = shape[r - 1] + 0.5
        mean[0], weight[0], shape[0], rate[0] = 0.0, 0.05, 1.0, 1.0
        log_run[0] = log_hazard
        # A run of `look` values now began `look` values ago.
        if t >= look:
            chance[t - look + 1] = math.exp(log_run[look])
    return chance


def cusum(values: ArrayLike, *, drift: float = 0.5, threshold: float = 5.0, warm_up: int = 20) -> list[tuple[int, int]]:
    """Two-sided CUSUM: (alarm, onset) of every change of level, the sums starting anew behind each alarm.

    Level and spread are learned, robustly, from the first `warm_up` values and again from those behind an alarm.
    `drift` and `threshold` are in standard deviations: a shift of twice the drift is found soonest.

    >>> cusum([0.0, 1.0] * 10 + [9.0, 10.0] * 4)
    [(20, 20)]
    """
    array = series(values)
    if warm_up < 4:
        raise ValueError(f"warm_up must be 4 or more, not {warm_up}")
    alarms: list[tuple[int, int]] = []
    begin = 0
    while begin + warm_up < len(array):
        learned = array[begin : begin + warm_up]
        level = float(np.median(learned))
        spread = float(MAD_TO_SIGMA * np.median(np.abs(learned - level))) or float(learned.std()) or 1e-300
        found = _first_alarm((array[begin + warm_up :] - level) / spread, drift, threshold)
        if found is None:
            break
        alarms.append((begin + warm_up + found[0], begin + warm_up + found[1]))
        begin = alarms[-1][0]
    return alarms


def _first_alarm(z: Floats, drift: float, threshold: float) -> tuple[int, int] | None:
    """Where a one-sided sum first passes the threshold, and where that sum last was zero."""
    first: tuple[int, int] | None = None
    for side in (z, -z):
        steps = np.cumsum(side - drift)
        lowest = np.minimum.accumulate(np.concatenate(([0.0], steps)))[:-1]
        over = np.flatnonzero(steps - np.minimum(lowest, steps) > threshold)
        if len(over) and (first is None or over[0] < first[0]):
            alarm = int(over[0])
            onset = int(np.concatenate(([0.0], steps[:alarm])).argmin())
            first = alarm, onset
    return first


def mad_z(values: ArrayLike, window: int | None = None) -> Floats:
    """How many robust standard deviations each value is from the median of all, or of the `window` values before it.

    With a window the first values have no past: NaN until half a window is there. No spread at all: 0 where the value
    equals the median, else infinity.

    >>> mad_z([1.0, 2.0, 3.0, 2.0, 50.0]).round(1).tolist()
    [-0.7, 0.0, 0.7, 0.0, 32.4]
    """
    array = series(values)
    if window is None:
        return _robust_z(array, array)
    if window < 4:
        raise ValueError(f"the window must be 4 or more, not {window}")
    scores = np.full(len(array), np.nan)
    for at in range(window // 2, len(array)):
        scores[at] = _robust_z(array[max(0, at - window) : at], array[at : at + 1])[0]
    return scores


def _robust_z(past: Floats, values: Floats) -> Floats:
    if not len(past):
        return np.zeros(0)
    centre = np.median(past)
    spread = MAD_TO_SIGMA * np.median(np.abs(past - centre))
    away = values - centre
    if spread > 0:
        away /= spread
        return away
    return np.where(away == 0, 0.0, np.copysign(np.inf, away))

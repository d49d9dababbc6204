"""Change points: where a series begins to behave otherwise.

Five ways that differ in what they assume. :func:`pelt` finds the segmentation of least squared error plus a penalty
for each change, exactly, in about linear time. :func:`e_divisive` asks nothing of the noise: it compares distributions
by their energy distance and tests each change by permutation. :func:`bocpd` follows the series online and says how
likely a change was; :func:`cusum` raises an alarm as soon as a drift adds up; :func:`mad_z` marks single odd values.

All return positions of the first value that is different, never 0 nor the length.

>>> series = [1.0, 1.1, 0.9, 1.0, 1.1, 1.0, 0.9, 1.1, 3.0, 3.1, 2.9, 3.0, 3.1, 3.0, 2.9, 3.1]
>>> pelt(series, penalty=1.0), e_divisive(series)
([8], [8])

- Killick, Fearnhead, Eckley, "Optimal detection of changepoints with a linear computational cost", JASA 2012.
- Matteson, James, "A nonparametric approach for multiple change point analysis of multivariate data", JASA 2014.
- Adams, MacKay, "Bayesian online changepoint detection", arXiv:0710.3742.
- Page, "Continuous inspection schemes", Biometrika 1954 (CUSUM).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from assay.sim.compiled import njit
from assay.sim.online_changes import MAD_TO_SIGMA, Floats, bocpd, cusum, mad_z, noise, series
from assay.sim.random import stream

__all__ = ["MAD_TO_SIGMA", "bic", "bocpd", "cusum", "e_divisive", "mad_z", "noise", "pelt", "series"]


# ------------------------------------------------------------------------------------------------ PELT


def bic(values: ArrayLike) -> float:
    """A penalty for `pelt`: three parameters a change (a level, a place, a share of the noise), each worth σ² log n.

    >>> round(bic([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]), 2)
    6.86
    """
    array = series(values)
    return 3 * noise(array) ** 2 * math.log(max(len(array), 2))


def pelt(values: ArrayLike, penalty: float | None = None, min_size: int = 2) -> list[int]:
    """The changes of the mean that minimise squared error + penalty × changes; exact. Without a penalty: :func:`bic`.

    >>> pelt([0.0] * 20 + [5.0] * 20 + [0.0] * 20, penalty=10.0)
    [20, 40]
    """
    array = series(values)
    if min_size < 1:
        raise ValueError(f"min_size must be 1 or more, not {min_size}")
    if penalty is None:
        penalty = bic(array)
    if not penalty >= 0:
        raise ValueError(f"the penalty must be 0 or more, not {penalty}")
    if len(array) < 2 * min_size:
        return []
    centred = array - array.mean()  # sums of squares keep their digits
    return [int(at) for at in _pelt(centred, float(penalty), min_size)]


@njit(cache=True, nogil=True)
def _pelt(x: Floats, penalty: float, min_size: int) -> Any:
    n = len(x)
    sums, squares = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        sums[i + 1] = sums[i] + x[i]
        squares[i + 1] = squares[i] + x[i] * x[i]
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, np.int64)
    # A start that loses at t to "a change at t" can only be dropped once a segment from t on is long enough.
    dropped_from = np.full(n + 1, n + 1)
    starts = np.empty(n + 1, np.int64)
    starts[0], count = 0, 1
    costs = np.empty(n + 1)
    for t in range(min_size, n + 1):
        kept = 0
        for k in range(count):
            s = starts[k]
            if dropped_from[s] <= t:
                continue
            starts[kept] = s
            total = sums[t] - sums[s]
            costs[kept] = best[s] + max(squares[t] - squares[s] - total * total / (t - s), 0.0)
            if costs[kept] + penalty < best[t]:
                best[t] = costs[kept] + penalty
                last[t] = s
            kept += 1
        for k in range(kept):
            if costs[k] > best[t] and dropped_from[starts[k]] > t + min_size:
                dropped_from[starts[k]] = t + min_size
        count = kept
        if t + 1 - min_size >= min_size:  # the next end admits a segment that begins here
            starts[count] = t + 1 - min_size
            count += 1
    changes = []
    at = n
    while at > 0:
        at = last[at]
        if at > 0:
            changes.append(at)
    return np.array(changes[::-1], dtype=np.int64)


# ------------------------------------------------------------------------------------------ E-divisive


def e_divisive(
    values: ArrayLike, *, min_size: int = 3, significance: float = 0.01, permutations: int = 199, seed: int = 0
) -> list[int]:
    """The changes of the distribution, the clearest first cut first, each one tested by permutation.

    A cut's strength is the energy distance between the values before and behind it, times m·n/(m+n); the part behind
    may end before the segment does, so that a passing change is seen too. A cut stays if shuffling the values within
    their segments gives one as strong in less than `significance` of the cases. `permutations` must allow that: the
    smallest p-value is 1/(permutations + 1).

    >>> e_divisive([1, 2, 1, 2, 1, 2, 9, 8, 9, 8, 9, 8])
    [6]
    """
    array = series(values)
    if min_size < 2:
        raise ValueError(f"min_size must be 2 or more, not {min_size}")
    if not 1 / (permutations + 1) <= significance < 1:
        raise ValueError(f"{permutations} permutations cannot show a significance of {significance}")
    bounds = [0, len(array)]
    best = {(0, len(array)): _strongest(array, min_size)}
    random = stream(seed, "e-divisive", len(array))
    allowed = math.floor(significance * (permutations + 1)) - 1  # shuffles that may be as strong
    while True:
        segments = list(pairwise(bounds))
        for low, high in segments:
            if (low, high) not in best:
                best[low, high] = _strongest(array[low:high], min_size)
        strength, cut, begin = max((best[s][0], s[0] + best[s][1], s[0]) for s in segments)
        if cut == begin or not _stands_out(array, segments, strength, min_size, permutations, allowed, random):
            return bounds[1:-1]
        bounds = sorted([*bounds, cut])


def _stands_out(
    array: Floats, segments: list[tuple[int, int]], strength: float, min_size: int, permutations: int, allowed: int,
    random: np.random.Generator,
) -> bool:  # fmt: skip
    exceeded = 0
    for _ in range(permutations):
        for low, high in segments:
            if _strongest(random.permutation(array[low:high]), min_size)[0] >= strength:
                exceeded += 1
                break
        if exceeded > allowed:
            return False
    return True


@njit(cache=True, nogil=True)
def _strongest(x: Floats, min_size: int) -> tuple[float, int]:
    """The greatest strength over all (cut, end), and its cut; (0, 0) where there is none. O(n²).

    A cut at t divides x[:t] from x[t:end]. `before[e]` is the distance of x[e] to all values before the cut,
    `earlier[e]` that to all values before e: their difference is what x[e] adds to the distances behind the cut.
    """
    n = len(x)
    best, at = 0.0, 0
    if n < 2 * min_size:
        return best, at
    earlier, before = np.zeros(n), np.zeros(n)
    for e in range(n):
        for i in range(e):
            earlier[e] += abs(x[e] - x[i])
    within = 0.0
    for t in range(1, n - min_size + 1):
        within += before[t - 1]
        for e in range(t, n):
            before[e] += abs(x[e] - x[t - 1])
        if t < min_size:
            continue
        behind, between = 0.0, 0.0
        for e in range(t, n):
            between += before[e]
            behind += earlier[e] - before[e]
            size = e - t + 1
            if size < min_size:
                continue
            energy = 2 * between / (t * size) - 2 * within / (t * (t - 1)) - 2 * behind / (size * (size - 1))
            strength = t * size / (t + size) * energy
            if strength > best:
                best, at = strength, t
    return best, at

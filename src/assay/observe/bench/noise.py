"""The noise of a history: how far a point remembers the ones before it, and what a step between two levels is worth.

A shared machine has good and bad days: its noise is a state that fades slowly, and a part that is new at every run.
So neighbours are alike, and a test that takes them for independent finds steps in every slow wave. Here the correlation
between two points of distance k is `share` · `fading`^k, fitted to what is left when each level's mean is taken out.
Such means follow the noise and make it look less correlated than it is: the fit allows for that.

- Chakar, Lebarbier, Lévy-Leduc, Robin, "A robust approach for estimating change-points in the mean of an AR(1)
  process", 2017 (steps and slow noise must be told apart).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Floats = NDArray[np.float64]
LAGS = 10  # distances that the fit looks at
FADINGS = (*np.arange(0.0, 0.9, 0.05).tolist(), 0.9, 0.925, 0.95, 0.965, 0.98)
SHARES = tuple(np.arange(0.1, 1.0, 0.1).tolist())
COST = 2.0  # what a share of its own must gain in the fit (Akaike)
FLAT = 1e-9  # of a value: what rounding may differ by


@dataclass(frozen=True, slots=True)
class Noise:
    """The correlation of noise: its share that fades slowly, and how much of it is left a point later."""

    share: float
    fading: float


def fit(levels: Sequence[Floats]) -> Noise:
    """The noise around the means of the levels: one that fades as a whole, unless a share of it explains more."""
    rests = [level - level.mean() for level in levels]
    sizes = np.array([len(rest) for rest in rests])
    lags = np.arange(1, min(LAGS, int(sizes.max()) - 1) + 1)
    scale = sum(float(rest @ rest) for rest in rests)
    if scale <= FLAT**2 * sizes.sum() or not len(lags):
        return Noise(1.0, 0.0)
    seen = np.array([sum(float(rest[k:] @ rest[:-k]) for rest in rests if len(rest) > k) for k in lags]) / scale

    models = [Noise(share, fading) for share in (*SHARES, 1.0) for fading in FADINGS]
    misfit = sizes.sum() * ((seen - _expected(models, sizes, lags)) ** 2).sum(axis=1)
    mixed, whole = (int(np.argmin(part)) for part in np.split(misfit, [-len(FADINGS)]))
    whole += len(models) - len(FADINGS)
    return models[mixed if misfit[mixed] < misfit[whole] - COST else whole]


def _expected(models: Sequence[Noise], sizes: NDArray[Any], lags: NDArray[Any]) -> Floats:
    """The correlations that each kind of noise shows about once every level's own mean is taken out."""
    share, f = (np.array([[getattr(model, name)] for model in models]) for name in ("share", "fading"))
    waves = 1 + 2 * f / (1 - f) - 2 * f * (1 - f**sizes) / (sizes * (1 - f) ** 2)  # of one level's mean, times its size
    means = (1 - share + share * waves) / sizes
    pairs = np.maximum(sizes - lags[:, None], 0)
    between = share * f**lags * pairs.sum(axis=1) - means @ pairs.T
    return np.asarray(between / ((1 - means) @ sizes)[:, None], float)


def cost(levels: Sequence[Floats], noise: Noise) -> float:
    """What it takes to describe a series as these levels in such noise (Bayes): slow noise against many steps."""
    points = sum(map(len, levels))
    rest = np.concatenate([level - level.mean() for level in levels])
    errors, spread = _whitened(rest, noise.share, noise.fading)
    variance = max(float(errors @ errors) / points, FLAT**2)
    return points * math.log(variance) + spread + 2 * len(levels) * math.log(points)  # of each its place and its height


def step(left: Floats, right: Floats, noise: Noise) -> float:
    """How often chance alone makes two levels differ so much: Welch's test, for noise that may be correlated.

    Each side has a spread of its own. Generalised least squares weigh the points, so that those beside the step, which
    share the machine's state, tell the most. Without correlation it is Welch's test. A shuffle has then accounted for
    the choice of the place; the more a point is like the one before it, the more places chance had to choose from.
    """
    from scipy import stats

    if max(left.std(), right.std()) < FLAT:
        return 0.0 if abs(right.mean() - left.mean()) > FLAT else 1.0
    sides, sizes = (left, right), [len(left), len(right)]
    spreads = np.array([_spread(side, noise) for side in sides])
    spreads = np.maximum(spreads, 1e-6 * spreads.max())  # a side that repeats one value is not known for sure
    each = np.repeat(spreads, sizes)
    columns = np.ones(sum(sizes)), np.repeat([0.0, 1.0], sizes), np.concatenate(sides)
    base, behind, values = (_whitened(column / each, noise.share, noise.fading)[0] for column in columns)
    design = np.column_stack([base, behind])
    certain = np.linalg.inv(design.T @ design)
    size = float((certain @ (design.T @ values))[1])
    shares = spreads**2 / sizes
    freedom = float(shares.sum() ** 2 / (shares**2 / (np.array(sizes) - 1)).sum())
    chance = float(2 * stats.t.sf(abs(size) / math.sqrt(certain[1, 1]), freedom))
    return min(1.0, chance * float(sum(sizes) ** (noise.share * noise.fading)))


def _spread(side: Floats, noise: Noise) -> float:
    """The noise's standard deviation on one side of a step."""
    base, values = (_whitened(column, noise.share, noise.fading)[0] for column in (np.ones(len(side)), side))
    rest = values - base * float(base @ values) / float(base @ base)
    return math.sqrt(float(rest @ rest) / (len(side) - 1))


@njit(cache=True, nogil=True)
def _whitened(values: Floats, share: float, fading: float) -> tuple[Floats, float]:
    """Each value less what those before it foretell, in standard deviations (Kalman); and how sure that is in all."""
    errors = np.empty(len(values))
    state, doubt, spread = 0.0, share, 0.0
    for i in range(len(values)):
        variance = doubt + 1.0 - share
        error = values[i] - state
        errors[i] = error / math.sqrt(variance)
        spread += math.log(variance)
        gain = doubt / variance
        state = fading * (state + gain * error)
        doubt = fading**2 * (1.0 - gain) * doubt + (1.0 - fading**2) * share
    return errors, spread

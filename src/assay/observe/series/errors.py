"""What a forecast may be off by: how the last errors fade, and paths of errors drawn from those of the past."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.observe.series.cycles import Cycle
from assay.observe.series.decompose import Decomposition
from assay.sim.random import stream

Floats = NDArray[np.float64]
PATHS = 400


def autoregression(rest: Floats, most: int = 3) -> tuple[int, Floats, Floats]:
    """Order, coefficients and shocks (NaN where unknown) of the rest, fitted where no gap is in the way.

    >>> order, coefficients, _ = autoregression(np.tile([1.0, -1.0], 250))
    >>> order, coefficients.round(2).tolist()
    (1, [-1.0])
    """
    values = rest - np.nanmean(rest)
    best: tuple[float, int, Floats, Floats] = (math.inf, 0, np.zeros(0), values)
    total = int((~np.isnan(values)).sum())
    for order in range(most + 1):
        shocks, coefficients = values, np.zeros(0)
        if order:
            columns = np.stack([np.concatenate((np.full(k, np.nan), values[:-k])) for k in range(1, order + 1)], axis=1)
            known = ~np.isnan(columns).any(axis=1) & ~np.isnan(values)
            if known.sum() < 10 * (order + 1):
                break
            coefficients = np.linalg.lstsq(columns[known], values[known], rcond=None)[0]
            if np.abs(np.roots(np.concatenate(([1.0], -coefficients)))).max(initial=0.0) > 1.0 + 1e-9:
                break  # it would run away
            shocks = np.where(known, values - columns @ coefficients, np.nan)
        size = float(np.nanvar(shocks)) + 1e-300
        cost = total * math.log(size) + order * math.log(max(2, total))
        if cost < best[0] - 1e-9:
            best = (cost, order, coefficients, shocks)
    return best[1], best[2], best[3]


def fading(last: Floats, coefficients: Floats, horizon: int) -> Floats:
    """How the last errors fade; an unknown one counts as none."""
    order = len(coefficients)
    if not order:
        return np.zeros(horizon)
    sigma = float(np.nanstd(last)) if (~np.isnan(last)).any() else 0.0
    past: list[float] = np.clip(np.nan_to_num(last)[-order:], -3 * sigma, 3 * sigma).tolist()
    made = np.zeros(horizon)
    for step in range(min(horizon, 200)):
        made[step] = sum(c * v for c, v in zip(coefficients, reversed(past[-order:]), strict=False))
        past.append(made[step])
    return made


def paths(
    made: Decomposition,
    cycles: Sequence[Cycle],
    astray: Floats,
    coefficients: Floats,
    shocks: Floats,
    horizon: int,
    seed: int,
) -> Floats:
    """Errors that may come: shocks of the same phase, remembered as fitted, on a level that goes astray as before."""
    random = stream(seed, "forecast paths", made.grid.name)
    n = len(made.observed)
    drawn = np.empty((PATHS, horizon))
    phase = _quarter_phase(cycles, np.arange(n + horizon))
    pools = [shocks[(phase[:n] == q) & ~np.isnan(shocks)] for q in range(4)]
    everything = shocks[~np.isnan(shocks)]
    for q in range(4):
        where = phase[n:] == q
        pool = pools[q] if len(pools[q]) >= 30 else everything
        drawn[:, where] = random.choice(pool - np.median(pool), (PATHS, int(where.sum())))
    noise = drawn
    for step in range(1, horizon):  # every path remembers its own last errors
        for lag, coefficient in enumerate(coefficients[:step], start=1):
            noise[:, step] += coefficient * noise[:, step - lag]
    return noise + _drifts(astray, noise, made, horizon, random)


def _quarter_phase(cycles: Sequence[Cycle], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    if not cycles:
        return np.zeros(len(steps), dtype=np.int64)
    leading = max(cycles, key=lambda cycle: cycle.strength)
    return (steps / leading.period % 1.0 * 4).astype(np.int64)


def _drifts(astray: Floats, noise: Floats, made: Decomposition, horizon: int, random: np.random.Generator) -> Floats:
    """How far the level may be off at each lead: as far as at one of the earlier origins, either way."""
    smooth = np.zeros((0, horizon))
    if len(astray):
        halves = np.array_split(np.arange(horizon), min(4, horizon))
        means = np.array([[np.nanmedian(row[part]) if (~np.isnan(row[part])).any() else 0.0 for part in halves]
                          for row in astray])  # fmt: skip
        centres = [float(part.mean()) for part in halves]
        smooth = np.stack([np.interp(np.arange(horizon), centres, row) for row in means])
    if not len(smooth):
        sigma = float(np.nanstd(made.rest)) / 2
        return random.normal(0, sigma, (len(noise), 1)) * np.sqrt(np.arange(1, horizon + 1) / horizon)
    picked = smooth[random.integers(0, len(smooth), len(noise))]
    return np.asarray(picked * random.choice([-1.0, 1.0], (len(noise), 1)) * random.uniform(0.5, 1.5, (len(noise), 1)))

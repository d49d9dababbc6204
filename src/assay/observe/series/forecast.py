"""Forecast a series from its parts: a damped trend, the cycles that still run, and what is left of the last errors.

The level is the median of the recent past without its cycles; how recent, and how far its drift goes on, is chosen by
forecasting months that are known already (rolling origin, inside the given series only). So is which cycles to carry
on: each must pay for itself. A cycle that has not run for two periods is dropped. The last errors fade as an
autoregression of order three or less says. Quantiles come from paths: errors of the same phase drawn anew, on top of
how far the level went astray at earlier origins.

>>> t = np.arange(24.0 * 60)
>>> grid = Grid("demo", 0.0, 3600.0, 50 + 3 * np.sin(2 * np.pi * t / 24) + 0.3 * np.cos(t * t))
>>> ahead = forecast(decompose.automatic(grid), 48)
>>> bool(np.abs(ahead.median - (50 + 3 * np.sin(2 * np.pi * np.arange(1440, 1488) / 24))).max() < 0.5)
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import decompose
from assay.observe.series.cycles import Cycle
from assay.observe.series.decompose import Decomposition
from assay.observe.series.errors import autoregression, fading, paths
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MEMORIES = (1 / 30, 1 / 10, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the horizon: how long a past the level is the median of
DAMPINGS = (0.0, 1 / 3, 1.0, 4.0)  # of the horizon: how long a drift goes on
ORIGINS = 6
COST = 0.01  # what a cycle must save of the error to be carried on


@dataclass(frozen=True)
class Choice:
    """What earlier origins taught: the level's memory and the drift's damping (steps), and the cycles worth it."""

    memory: float
    damping: float
    cycles: tuple[Cycle, ...]
    astray: Floats  # a row for each origin: how far the level was off, by lead, on the fitted scale


@dataclass(frozen=True)
class Forecast:
    """The steps behind a series: their times, and quantiles of the values there."""

    grid: Grid  # the series it was made from
    quantiles: dict[float, Floats]
    choice: Choice

    @property
    def median(self) -> Floats:
        """The middle of the paths."""
        return self.quantiles[0.5]

    @property
    def times(self) -> Floats:
        """When each step begins, in seconds since 1970."""
        return np.asarray(
            self.grid.start + self.grid.step * (len(self.grid.values) + np.arange(len(self.median))), float
        )


def forecast(made: Decomposition, horizon: int, *, choose_cycles: bool = True, seed: int = 0) -> Forecast:
    """Forecast so many steps. `choose_cycles=False` carries on all that still run: an analyst's word is kept."""
    n = len(made.observed)
    choice = learn(made, horizon, choose_cycles)
    season = _ahead(choice.cycles, n, horizon)
    plain = made.observed - made.spikes - sum((c.values(n) for c in made.cycles), np.zeros(n))
    level = _level(plain, choice.memory, choice.damping, horizon, _since(made.shifts, n))
    _, coefficients, shocks = autoregression(made.rest)
    memory = fading(plain[-8:] - level[0], coefficients, horizon)
    off = paths(made, choice.cycles, choice.astray, coefficients, shocks, horizon, seed)
    ahead = level + season + memory
    quantiles = {q: ahead + np.quantile(off, q, axis=0) for q in QUANTILES}
    quantiles[0.5] = ahead  # the paths' own middle differs by luck only
    ordered = np.sort(np.stack([quantiles[q] for q in QUANTILES]), axis=0)
    back = np.exp if made.multiplicative else lambda values: values
    least = 0.0 if float(np.nanmin(made.grid.values)) >= 0.0 else -math.inf  # counts and times are never negative
    named = {q: np.maximum(back(row), least) for q, row in zip(QUANTILES, ordered, strict=True)}
    return Forecast(made.grid, named, choice)


def _since(shifts: Sequence[int], origin: int) -> int:
    """The last jump of the level that the origin has seen some of."""
    return max((shift for shift in shifts if shift <= origin - 4), default=0)


def _level(plain: Floats, memory: float, damping: float, horizon: int, since: int) -> Floats:
    """The level and its damped drift over the steps behind `plain`."""
    n = len(plain)
    begin = max(since, n - max(4, math.ceil(memory)))
    recent = plain[begin:]
    while np.isnan(recent).all() and begin > 0:  # a gap at the end: what was known before it
        begin = max(0, begin - max(4, math.ceil(memory)))
        recent = plain[begin:]
    level = float(np.nanmedian(recent))
    if damping == 0.0:
        return np.full(horizon, level)
    past = plain[max(since, n - 3 * horizon) :]
    third = len(past) // 3
    ends = past[:third], past[-third:] if third else past
    if third < 4 or np.isnan(ends[0]).all() or np.isnan(ends[1]).all():
        return np.full(horizon, level)
    slope = float(np.nanmedian(ends[1]) - np.nanmedian(ends[0])) / (2 * third)
    lead = np.arange(1, horizon + 1)
    return level + slope * damping * (1 - np.exp(-lead / damping))


def _ahead(cycles: Sequence[Cycle], origin: int, horizon: int) -> Floats:
    """The cycles that still run, carried on."""
    made = np.zeros(horizon)
    for cycle in cycles:
        piece = max(cycle.pieces, key=lambda piece: piece.stop)
        if piece.stop >= origin - 2 * cycle.period:
            made += piece.profile.at((origin + np.arange(horizon)) / cycle.period)
    return made


# ---------------------------------------------------------------------------------------- earlier origins


def learn(made: Decomposition, horizon: int, choose_cycles: bool = True) -> Choice:
    """Forecast stretches that are known already, from before them, and keep what did best."""
    n = len(made.observed)
    running = [c for c in made.cycles if max(p.stop for p in c.pieces) >= n - 2 * c.period] if made.cycles else []
    origins = [n - horizon * k for k in range(1, ORIGINS + 1) if n - horizon * k >= max(2 * horizon, 32)]
    if not origins:
        return Choice(max(4.0, horizon / 2), 0.0, tuple(running), np.zeros((0, horizon)))
    scenes = [_scene(made, running, origin, horizon) for origin in origins]
    memory, damping = _best_level(scenes, horizon)
    kept = list(range(len(running)))
    if choose_cycles:
        kept = _best_cycles(scenes, len(running), memory, damping, horizon)
        memory, damping = _best_level(scenes, horizon, kept)
    astray = np.stack([_astray(scene, kept, memory, damping, horizon) for scene in scenes])
    return Choice(memory, damping, tuple(running[k] for k in kept), astray)


@dataclass(frozen=True)
class Scene:
    """An earlier origin: the series without cycles as known then, each cycle carried on, and what came."""

    plain: Floats  # with all cycles taken out
    cycles: list[Floats]  # each cycle's part up to the origin
    carried: list[Floats]  # each cycle's part behind it
    truth: Floats
    since: int

    def without(self, kept: Sequence[int]) -> Floats:
        """The series with only the kept cycles taken out."""
        back = [self.cycles[k] for k in range(len(self.cycles)) if k not in kept]
        return self.plain + sum(back, np.zeros(len(self.plain)))

    def season(self, kept: Sequence[int]) -> Floats:
        """The kept cycles behind the origin."""
        return sum((self.carried[k] for k in kept), np.zeros(len(self.truth)))


def _scene(made: Decomposition, running: Sequence[Cycle], origin: int, horizon: int) -> Scene:
    then = decompose.again(made, made.grid.until(origin), made.cycles)
    by_period = {cycle.period: cycle for cycle in then.cycles}
    known = [by_period.get(cycle.period) for cycle in running]
    total = sum((cycle.values(origin) for cycle in then.cycles), np.zeros(origin))
    truth = made.observed[origin : origin + horizon] - made.spikes[origin : origin + horizon]
    return Scene(
        then.observed - then.spikes - total,
        [np.zeros(origin) if cycle is None else cycle.values(origin) for cycle in known],
        [np.zeros(horizon) if cycle is None else _ahead([cycle], origin, horizon) for cycle in known],
        truth,
        _since(then.shifts, origin),
    )


def _astray(scene: Scene, kept: Sequence[int], memory: float, damping: float, horizon: int) -> Floats:
    ahead = _level(scene.without(kept), memory, damping, horizon, scene.since)
    return scene.truth - ahead - scene.season(kept)


def _error(scenes: Sequence[Scene], kept: Sequence[int], memory: float, damping: float, horizon: int) -> float:
    off = [np.abs(_astray(scene, kept, memory, damping, horizon)) for scene in scenes]
    means = [float(np.nanmean(o)) for o in off if not np.isnan(o).all()]
    return float(np.mean(means)) if means else math.inf


def _best_level(scenes: Sequence[Scene], horizon: int, kept: Sequence[int] | None = None) -> tuple[float, float]:
    """The memory and damping with the least error; a drift must pay, being wrong costs more the farther it goes."""
    chosen = range(len(scenes[0].cycles)) if kept is None else kept
    scored = [
        (
            _error(scenes, chosen, share * horizon, fade * horizon, horizon) * (1.0 + (0.03 if fade else 0.0)),
            share,
            fade,
        )
        for share in MEMORIES
        for fade in DAMPINGS
    ]
    _, share, fade = min(scored)
    return share * horizon, fade * horizon


def _best_cycles(scenes: Sequence[Scene], count: int, memory: float, damping: float, horizon: int) -> list[int]:
    """Drop the cycle whose loss costs least, as long as the error, with each cycle's cost, falls."""
    kept = list(range(count))

    def score(some: Sequence[int]) -> float:
        return _error(scenes, some, memory, damping, horizon) * (1.0 + COST * len(some))

    best = score(kept)
    while kept:
        tried = [(score([k for k in kept if k != out]), out) for out in kept]
        least, out = min(tried)
        if least >= best:
            break
        best = least
        kept.remove(out)
    return kept

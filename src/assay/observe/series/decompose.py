"""Take a long series apart: trend, several cycles that may come and go, spikes, and a rest that hides nothing.

Two ways to the same parts. :func:`automatic` finds the cycles itself: peaks of the spectrum (in parts of the series
too), confirmed by autocorrelation, kept where they are strong enough, calendar periods tried beside them.
:func:`guided` takes an analyst's list of periods, of when they ran, and of how smooth they are
(:mod:`assay.observe.series.guides`). Both then smooth one part at a time from what the others leave over, robustly,
until nothing changes (backfitting): trend by local lines, each cycle by its shape on its own stretches.

Where the spread grows with the level the parts multiply instead: logarithms are taken apart, and :meth:`parts` hands
them out in the units of the series, adding up to it all the same.

- Cleveland, Cleveland, McRae, Terpenning, "STL: a seasonal-trend decomposition procedure based on Loess", 1990.
- Bandara, Hyndman, Bergmeir, "MSTL: a seasonal-trend decomposition algorithm for time series with multiple seasonal
  patterns", 2021.

>>> t = np.arange(24.0 * 60)
>>> grid = Grid("demo", 0.0, 3600.0, 50 + 0.01 * t + 3 * np.sin(2 * np.pi * t / 24) + np.cos(t * t))
>>> made = automatic(grid)
>>> [round(cycle.period, 2) for cycle in made.cycles], made.shifts
([24.0], ())
>>> bool(np.allclose(sum(made.parts().values()), grid.values, rtol=1e-12))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import seasons, trends
from assay.observe.series.cycle_search import CALENDAR, DAY, pursue, total
from assay.observe.series.cycles import ACTIVE, Cycle
from assay.record.errors import BadInput
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
FEWEST = 16  # samples
LARGEST = 1e100  # of a value; squares must not overflow
PASSES = 10
SPIKE = 5.0  # robust standard deviations of the rest


@dataclass(frozen=True)
class Decomposition:
    """The parts of a series on the scale they were fitted on: observed = trend + cycles + spikes + rest, at no gap."""

    grid: Grid
    multiplicative: bool
    observed: Floats
    trend: Floats
    cycles: tuple[Cycle, ...]
    spikes: Floats
    rest: Floats
    shifts: tuple[int, ...]  # steps at which the level jumps
    span: float  # of the trend, in steps

    @property
    def fitted(self) -> Floats:
        """Trend and cycles together."""
        made = self.trend.copy()
        for cycle in self.cycles:
            made += cycle.values(len(made))
        return made

    @property
    def names(self) -> list[str]:
        """The cycles' periods for people, a calendar word where it is one; no two alike."""
        made: list[str] = []
        for cycle in self.cycles:
            name = period_name(cycle.period * self.grid.step)
            made.append(name if name not in made else f"{name} ({made.count(name) + len(made) + 1})")
        return made

    def parts(self) -> dict[str, Floats]:
        """Trend, each cycle, spikes and rest in the units of the series; they add up to it wherever it is there.

        Parts that multiply are handed out one after another: what the trend alone would be, what the longest cycle
        adds to that, what the next adds to both.
        """
        back = np.exp if self.multiplicative else lambda values: values
        made: dict[str, Floats] = {"trend": back(self.trend)}
        so_far = self.trend.copy()
        for name, cycle in reversed(list(zip(self.names, self.cycles, strict=True))):
            more = so_far + cycle.values(len(so_far))
            made[name] = back(more) - back(so_far)
            so_far = more
        made["spikes"] = back(so_far + self.spikes) - back(so_far)
        total = np.sum(list(made.values()), axis=0)
        made["rest"] = self.grid.values - total
        return made


def period_name(seconds: float) -> str:
    """A period as people say it.

    >>> period_name(86400.0), period_name(7 * 86400.0), period_name(5.5 * 3600), period_name(31.0)
    ('day', 'week', '5.5 h', '31 s')
    """
    for name, exact in CALENDAR.items():
        if abs(seconds - exact) < 0.005 * exact:
            return name
    for unit, word in ((DAY, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= (2 * unit if unit == DAY else unit):
            return f"{seconds / unit:.3g} {word}"
    return f"{seconds:.3g} s"


def automatic(grid: Grid, *, multiplicative: bool | None = None) -> Decomposition:
    """Find the cycles, and take the series apart. Nothing about it is known beforehand but the calendar."""
    multiplicative, observed = _scaled(grid, multiplicative)
    there = (~np.isnan(observed)).astype(float)
    breaks: tuple[int, ...] = ()
    cycles: list[Cycle] = []
    for _ in range(2):
        level = observed - trends.loess(observed, there, 0.75 * len(observed), breaks)
        cycles = pursue(level, grid.step)
        found = trends.level_shifts(observed - total(cycles, len(observed)), _least(observed))
        if found == breaks:
            break
        breaks = found  # a jump fills the spectrum; without it fainter cycles show
    return _settled(grid, multiplicative, observed, cycles, breaks, prune=True)


def stated(
    grid: Grid,
    periods: Sequence[tuple[float, Sequence[tuple[int, int]], int]],
    *,
    shifts: tuple[int, ...] | None = None,
    multiplicative: bool | None = None,
) -> Decomposition:
    """Take the series apart by (period in steps, stretches in steps or none for always, most harmonics).

    Without `shifts` the jumps of the level are looked for.
    """
    multiplicative, observed = _scaled(grid, multiplicative)
    there = (~np.isnan(observed)).astype(float)
    breaks = shifts or ()
    cycles: list[Cycle] = []
    for _ in range(2 if shifts is None else 1):
        level = observed - trends.loess(observed, there, 0.75 * len(observed), breaks)
        cycles = []
        for period, spans, most in sorted(periods):
            whole = [(0, len(observed))]
            cycles.append(Cycle.stated(level, period, list(spans) or whole, most))
            level = level - cycles[-1].values(len(level))
        if shifts is None:
            breaks = trends.level_shifts(observed - total(cycles, len(observed)), _least(observed))
    return _settled(grid, multiplicative, observed, cycles, breaks, prune=False)


def _least(observed: Floats) -> float:
    """The smallest jump worth the name: where cycles explain all, what is left are errors of rounding."""
    return 1e-6 * float(np.nanmax(observed) - np.nanmin(observed))


def _rounding(observed: Floats) -> float:
    """What errors of rounding may amount to: a series without noise has no spikes that small."""
    return 1e-12 * float(np.nanmax(np.abs(observed)))


def again(made: Decomposition, grid: Grid, cycles: Sequence[Cycle]) -> Decomposition:
    """The same scale and these cycles on a shorter or longer stretch of the series: what a rolling origin needs."""
    observed = np.log(grid.values) if made.multiplicative else grid.values
    breaks = tuple(shift for shift in made.shifts if shift < len(observed) - FEWEST)
    cut = [_cut(cycle, len(observed)) for cycle in cycles]
    return _settled(grid, made.multiplicative, observed, [c for c in cut if c.pieces], breaks, prune=False, passes=3)


def _cut(cycle: Cycle, length: int) -> Cycle:
    pieces = [replace(p, stop=min(p.stop, length)) for p in cycle.pieces if p.start + 2 * cycle.period < length]
    return replace(cycle, pieces=tuple(pieces))


def _scaled(grid: Grid, multiplicative: bool | None) -> tuple[bool, Floats]:
    values = grid.values
    if int((~np.isnan(values)).sum()) < FEWEST:
        raise BadInput(f"series '{grid.name}' has fewer than {FEWEST} samples: too few to take apart")
    if not 1 / LARGEST < (largest := float(np.nanmax(np.abs(values)))) < LARGEST and largest > 0:
        raise BadInput(f"series '{grid.name}' has values of {largest:.2g}: another unit would be right")
    positive = bool(np.nanmin(values) > 0)
    if multiplicative and not positive:
        raise BadInput(f"series '{grid.name}' has values of zero or less: its parts cannot multiply")
    chosen = (positive and _grows(values)) if multiplicative is None else multiplicative
    return chosen, np.log(values) if chosen else values


def _grows(values: Floats) -> bool:
    """Whether the spread grows with the level, faster than as its root: over forty stretches of the series."""
    stretches = [part[~np.isnan(part)] for part in np.array_split(values, 40)]
    told = [(float(np.median(s)), seasons.spread(s)) for s in stretches if len(s) >= 8]
    level, size = np.array([pair for pair in told if pair[1] > 0]).reshape(-1, 2).T
    if len(level) < 10 or level.max() < 1.15 * level.min():
        return False
    slope = float(np.polyfit(np.log(level), np.log(size), 1)[0])
    return slope > 0.5


# ---------------------------------------------------------------------------------------------- smoothing


def _settled(
    grid: Grid,
    multiplicative: bool,
    observed: Floats,
    cycles: Sequence[Cycle],
    breaks: tuple[int, ...],
    prune: bool,
    passes: int = PASSES,
) -> Decomposition:
    """Backfit, drop cycles that turn out too faint beside the others, and set the spikes apart."""
    n = len(observed)
    while True:
        span = max([n / 10, *(1.5 * cycle.period for cycle in cycles)])
        trend, cycles = _backfitted(observed, list(cycles), span, breaks, passes)
        rest = observed - trend - total(cycles, n)
        calm = seasons.clipped(rest)
        cycles = [cycle.judged(calm) for cycle in cycles]
        faint = min(cycles, key=lambda cycle: cycle.strength, default=None)
        if not prune or faint is None or faint.strength >= 0.8 * ACTIVE:
            break
        cycles = [cycle for cycle in cycles if cycle is not faint]
    sigma = max(seasons.spread(rest), _rounding(observed))
    spikes = np.where(np.abs(np.nan_to_num(rest)) > SPIKE * sigma, np.nan_to_num(rest), 0.0)
    return Decomposition(
        grid, multiplicative, observed, trend, tuple(cycles), spikes, rest - spikes, breaks, span
    )  # fmt: skip


def _backfitted(
    observed: Floats, cycles: list[Cycle], span: float, breaks: tuple[int, ...], passes: int
) -> tuple[Floats, list[Cycle]]:
    """Smooth one part after another from what the others leave, until the parts change by less than 1 %."""
    n = len(observed)
    weights = (~np.isnan(observed)).astype(float)
    parts = [cycle.values(n) for cycle in cycles]
    trend = trends.loess(observed - _sum(parts, n), weights, span, breaks)
    for _ in range(passes):
        before = _sum(parts, n) + trend
        for k, cycle in enumerate(cycles):
            others = _sum([*parts[:k], *parts[k + 1 :]], n)
            cycles[k] = cycle.refit(observed - trend - others, weights)
            parts[k] = cycles[k].values(n)
        seasonal = _sum(parts, n)
        trend = trends.loess(observed - seasonal, weights, span, breaks)
        rest = observed - trend - seasonal
        weights = trends.bisquare(rest)
        moved = float(np.sqrt(np.mean((seasonal + trend - before) ** 2)))
        if moved < 0.01 * max(seasons.spread(rest), _rounding(observed)):
            break
    return trend, cycles


def _sum(parts: Sequence[Floats], length: int) -> Floats:
    return np.sum(parts, axis=0) if len(parts) else np.zeros(length)

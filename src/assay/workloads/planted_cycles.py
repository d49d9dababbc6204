"""Long latency records with known parts: trend, level shifts, cycles that come and go, heavy tails, gaps.

What a decomposition finds can only be judged where the truth is known. The shapes follow what is reported of public
serverless platforms: a day that is neither a sine nor symmetric, a week with a short weekend, a slow quarterly cycle,
and cycles that run for some weeks, stop, and start again out of step (a batch job, a neighbour). Noise is correlated
and heavy-tailed; some stretches are missing.

>>> trace = plant(seed=0, days=60)
>>> len(trace.grid.values), [round(cycle.period / DAY, 1) for cycle in trace.cycles][:2]
(1440, [1.0, 7.0])
>>> parts = trace.trend + sum(cycle.values for cycle in trace.cycles) + trace.noise
>>> bool(np.allclose(np.exp(parts[~np.isnan(trace.grid.values)]), trace.grid.values[~np.isnan(trace.grid.values)]))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
HOUR, DAY = 3600.0, 86400.0
WEEK, QUARTER = 7 * DAY, 365.25 / 4 * DAY
START = 1_700_000_000 // 86400 * DAY  # some midnight


@dataclass(frozen=True)
class Planted:
    """A cycle that is really there: its period in seconds, when it runs (seconds), and its part of log latency."""

    name: str
    period: float
    active: tuple[tuple[float, float], ...]
    values: Floats


@dataclass(frozen=True)
class Trace:
    """A record and its parts; trend, cycles and noise add up to the logarithm of the latency."""

    grid: Grid
    trend: Floats
    cycles: tuple[Planted, ...]
    noise: Floats


def plant(
    seed: int, days: int = 480, step: float = HOUR, kinds: Sequence[str] = ("daily", "weekly", "quarterly", "passing")
) -> Trace:
    """A record of so many days with these cycles; "passing" is one with a period of its own that comes and goes."""
    random = stream(seed, "planted cycles", days, round(step))
    times: Floats = np.arange(round(days * DAY / step), dtype=np.float64) * step
    makers = {"daily": _daily, "weekly": _weekly, "quarterly": _quarterly, "passing": _passing}
    cycles = tuple(makers[kind](times, random) for kind in kinds)
    trend = _trend(times, random)
    noise = _noise(len(times), random)
    log = trend + noise
    for cycle in cycles:
        log = log + cycle.values
    values = np.exp(log)
    values[_missing(len(times), step, random)] = np.nan
    return Trace(Grid(f"planted {seed}", START, step, values), trend, cycles, noise)


def _trend(times: Floats, random: np.random.Generator) -> Floats:
    """Slow drift with a bend, and in some records one lasting shift of level."""
    share = times / times[-1]
    slope, bend = random.normal(0, 0.08), random.normal(0, 0.06)
    level = np.log(0.12) + slope * share + bend * np.maximum(0.0, share - random.uniform(0.3, 0.7))
    if random.random() < 0.4:
        level = level + np.where(share > random.uniform(0.2, 0.8), random.choice([-1, 1]) * random.uniform(0.1, 0.2), 0)
    return np.asarray(level)


def _always(times: Floats) -> tuple[tuple[float, float], ...]:
    return ((float(times[0]), float(times[-1])),)


def _daily(times: Floats, random: np.random.Generator) -> Planted:
    """A steep morning, a long afternoon: three harmonics at random phases, ±10 to 20 %."""
    phase = 2 * np.pi * times / DAY
    weights = np.array([1.0, random.uniform(0.2, 0.6), random.uniform(0.0, 0.3)])
    shape = sum(w * np.sin((k + 1) * phase + random.uniform(0, 2 * np.pi)) for k, w in enumerate(weights))
    return Planted("daily", DAY, _always(times), random.uniform(0.1, 0.2) * shape / np.sqrt((weights**2).sum()))


def _weekly(times: Floats, random: np.random.Generator) -> Planted:
    """Weekends differ from working days: a step, not a sine."""
    day = ((times + random.integers(0, 7) * DAY) % WEEK) // DAY
    shape = np.where(day >= 5, -5 / 7, 2 / 7)
    return Planted("weekly", WEEK, _always(times), random.choice([-1, 1]) * random.uniform(0.06, 0.15) * shape)


def _quarterly(times: Floats, random: np.random.Generator) -> Planted:
    shape = np.sin(2 * np.pi * times / QUARTER + random.uniform(0, 2 * np.pi))
    return Planted("quarterly", QUARTER, _always(times), random.uniform(0.05, 0.12) * shape)


def _passing(times: Floats, random: np.random.Generator) -> Planted:
    """A cycle of 5 hours to 4 days that runs in two stretches, the second out of step with the first."""
    period = float(np.exp(random.uniform(np.log(5 * HOUR), np.log(96 * HOUR))))
    length = times[-1]
    least = max(0.12 * length, 10 * period)
    first = random.uniform(0.05, 0.35) * length
    spans = [(first, min(first + random.uniform(1.0, 1.8) * least, 0.55 * length))]
    second = random.uniform(0.6, 0.75) * length
    spans.append((second, min(second + random.uniform(1.0, 1.8) * least, length)))
    height = random.uniform(0.1, 0.2)
    values = np.zeros(len(times))
    for begin, end in spans:
        inside = (times >= begin) & (times < end)
        phase = 2 * np.pi * times / period + random.uniform(0, 2 * np.pi)
        values[inside] = height * (np.sin(phase) + 0.35 * np.sin(2 * phase + 1.0))[inside]
    return Planted("passing", period, tuple(spans), values)


def _noise(count: int, random: np.random.Generator) -> Floats:
    """AR(1) of Student's t with 3 degrees of freedom, and a few spikes up to three times the latency."""
    shocks = random.standard_t(3, count) * random.uniform(0.015, 0.04)
    keep = random.uniform(0.2, 0.6)
    noise = np.empty(count)
    last = 0.0
    for i, shock in enumerate(shocks.tolist()):
        last = keep * last + shock
        noise[i] = last
    spikes = random.random(count) < 0.002
    noise[spikes] += random.uniform(0.3, 1.1, int(spikes.sum()))
    return noise


def _missing(count: int, step: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """One sample in fifty, and two stretches of up to five days."""
    lost = random.random(count) < 0.02
    for _ in range(2):
        begin = int(random.integers(0, count))
        lost[begin : begin + int(random.uniform(0.2, 5.0) * DAY / step)] = True
    return lost

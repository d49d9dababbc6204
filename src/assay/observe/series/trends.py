"""The slow part of a series: robust local lines (LOESS), broken where the level jumps.

LOESS of thousands of samples asks for the same answer thousands of times: neighbouring samples are averaged into a few
hundred blocks first, and the curve is drawn between them. `tests/oracles/decompose.py` does it sample by sample.

- Cleveland, "Robust locally weighted regression and smoothing scatterplots", 1979.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import seasons
from assay.sim import changepoints

Floats = NDArray[np.float64]
BLOCKS = 400
MOST_SHIFTS = 12
SHARP = 5.0  # robust standard deviations of what is usual


def bisquare(rest: Floats) -> Floats:
    """Weights that let outliers go: 1 at no rest, 0 from six median absolute deviations on; 0 at gaps.

    >>> bisquare(np.array([0.0, 1.0, -1.0, 0.5, -0.5, 40.0, np.nan])).round(2).tolist()
    [1.0, 0.9, 0.9, 0.98, 0.98, 0.0, 0.0]
    """
    there = ~np.isnan(rest)
    size = np.abs(np.where(there, rest, 0.0))
    scale = 6.0 * float(np.median(size[there])) if there.any() else 0.0
    if scale == 0.0:
        return there.astype(float)
    return np.where(there, np.clip(1.0 - (size / scale) ** 2, 0.0, None) ** 2, 0.0)


def loess(values: Floats, weights: Floats, span: float, breaks: tuple[int, ...] = ()) -> Floats:
    """Local lines over `span` steps, each stretch between two breaks on its own; `weights` are 0 at gaps.

    >>> loess(np.arange(50.0), np.ones(50), span=20.0).round(6)[[0, 10, 49]].tolist()
    [0.0, 10.0, 49.0]
    """
    made = np.empty(len(values))
    cuts = [0, *breaks, len(values)]
    width = max(1, min(math.ceil(len(values) / BLOCKS), int(span / 20)))
    for start, stop in pairwise(cuts):
        made[start:stop] = _one(values[start:stop], weights[start:stop], span, width)
    if np.isnan(made).any():  # a stretch without any sample: from its neighbours
        there = ~np.isnan(made)
        made = np.interp(np.arange(len(made)), np.flatnonzero(there), made[there]) if there.any() else made
    return made


def _one(values: Floats, weights: Floats, span: float, width: int) -> Floats:
    n = len(values)
    filled = np.where(weights > 0, values, 0.0)
    steps = np.arange(n, dtype=float)
    block = (np.arange(n) // width).astype(np.int64)
    mass = np.bincount(block, weights)
    kept = mass > 0
    if not kept.any():
        return np.full(n, np.nan)
    mass = mass[kept]
    t = np.bincount(block, weights * steps)[kept] / mass
    y = np.bincount(block, weights * filled)[kept] / mass
    if len(t) < 3:
        return np.full(n, float((mass * y).sum() / mass.sum()))
    curve = local_lines(t, y, mass.astype(float), span)
    if len(t) == 1:
        return np.full(n, curve[0])
    inside = np.interp(steps, t, curve)
    # np.interp is flat outside the first and last block's centre; the line goes on.
    for edge, inner, side in ((t[0], 1, steps < t[0]), (t[-1], -2, steps > t[-1])):
        first = curve[0 if inner == 1 else -1]
        slope = (curve[inner] - first) / (t[inner] - edge)
        inside[side] = first + slope * (steps[side] - edge)
    return np.asarray(inside)


def local_lines(t: Floats, y: Floats, mass: Floats, span: float) -> Floats:
    """At every t, the value of the line fitted to the points around it, nearer ones counting more (tricube).

    The reach is half the span, and more near the ends, so that every line sees the whole span.
    """
    short = np.minimum(t - t[0], t[-1] - t)
    reach = np.maximum(np.where(short < span / 2, span - short, span / 2), 1e-9)
    away = np.abs(t[None, :] - t[:, None]) / reach[:, None]
    last = min(3, len(t) - 1)
    nearest = np.partition(away, last, axis=1)[:, last]  # a line needs points, also in a long gap
    away = away / np.maximum(1.0, nearest * 1.0001)[:, None]
    bell = np.clip(1 - away * away * away, 0, None)  # products: NumPy's cubes are logarithms
    weight = bell * bell * bell * mass[None, :]
    total = weight.sum(axis=1)
    mean_t = weight @ t / total
    mean_y = weight @ y / total
    centred = t[None, :] - mean_t[:, None]
    square = (weight * centred**2).sum(axis=1)
    cross = (weight * centred * (y[None, :] - mean_y[:, None])).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(square > 1e-12 * total, cross / square, 0.0)
    found: Floats = mean_y + slope * (t - mean_t)
    return found


def level_shifts(values: Floats, least: float = 0.0) -> tuple[int, ...]:
    """Where the level jumps by `least` or more: change points (PELT) of block medians, the jump sharp and lasting.

    A slow drift gives change points too, but the lines on both sides of each meet.

    >>> level_shifts(np.repeat([0.0, 3.0], 300) + 0.1 * np.cos(np.arange(600.0) ** 2))
    (300,)
    """
    width = max(1, len(values) // BLOCKS)
    blocks = len(values) // width
    if blocks < 40:
        return ()
    part = values[: blocks * width].reshape(blocks, width)
    there = ~np.isnan(part).all(axis=1)
    places = np.flatnonzero(there)
    if len(places) < 40:
        return ()
    medians = np.nanmedian(part[there], axis=1)
    beside = max(5, len(places) // 50)
    steps = _steps(medians, 2 * beside)
    usual = max(seasons.spread(steps), 1e-12 * float(np.abs(medians).max()) + 1e-300)
    lasting = np.minimum(np.abs(steps), np.abs(_steps(_without_lone(medians), 2 * beside)))
    found = [
        (abs(float(steps[cut])), _sharpest(values, int(places[cut]) * width, width * beside))
        for cut in changepoints.pelt(medians, min_size=beside)
        if lasting[cut] > max(SHARP * usual, least)
    ]
    best = sorted(found, reverse=True)[:MOST_SHIFTS]
    return tuple(sorted({place for _, place in best}))


def _without_lone(values: Floats) -> Floats:
    """Without values that stand alone: the median of five. In a series without noise a single one would be a jump."""
    padded = np.pad(values, 2, mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)


def _steps(values: Floats, reach: int) -> Floats:
    """At each place, how far apart the lines fitted to both sides are where they meet: a slope alone is no jump.

    What is usual for them in this series is what a jump must stand out of, be it calm or wandering.
    """
    ends = {count: _end(count) for count in range(3, reach + 1)}
    made = np.zeros(len(values))
    for cut in range(4, len(values) - 3):
        before, behind = values[max(0, cut - reach) : cut][::-1], values[cut : cut + reach]
        made[cut] = float(ends[len(behind)] @ behind - ends[len(before)] @ before)
    return made


def _end(count: int) -> Floats:
    """What each of so many values counts in where their line begins, half a step before the first."""
    away = np.arange(count) + 0.5
    centred = away - away.mean()
    weights: Floats = 1 / count - away.mean() * centred / (centred**2).sum()
    return weights


def _sharpest(values: Floats, near: int, reach: int) -> int:
    """The step close by that divides the values best."""
    begin, end = max(0, near - reach), min(len(values), near + reach)
    part = values[begin:end]
    there = np.flatnonzero(~np.isnan(part))
    y = seasons.clipped(part[there])
    sums, count = np.cumsum(y), np.arange(1, len(y) + 1)
    total = sums[-1]
    gain = sums[:-1] ** 2 / count[:-1] + (total - sums[:-1]) ** 2 / (len(y) - count[:-1])
    return begin + int(there[int(np.argmax(gain)) + 1])

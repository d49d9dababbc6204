"""Slow, obviously right twins of the smoothers, the spectrum and the autocorrelation: one sample at a time."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence


def loess(values: Sequence[float], weights: Sequence[float], span: float) -> list[float]:
    """A weighted line at every step, by its normal equations; the reach is half the span, more near the ends."""
    places = [i for i, weight in enumerate(weights) if weight > 0]
    first, last = places[0], places[-1]
    made = []
    for at in range(len(values)):
        short = min(at - first, last - at)
        reach = max(span - short if short < span / 2 else span / 2, 1e-9)
        s0 = s1 = s2 = y0 = y1 = 0.0
        for i in places:
            near = max(0.0, 1 - (abs(i - at) / reach) ** 3) ** 3 * weights[i]
            x = i - at
            s0, s1, s2 = s0 + near, s1 + near * x, s2 + near * x * x
            y0, y1 = y0 + near * values[i], y1 + near * x * values[i]
        made.append((s2 * y0 - s1 * y1) / (s0 * s2 - s1 * s1))
    return made


def power(values: Sequence[float], frequency: float) -> float:
    """|Σ x e^(−2πift)|² over the sum of squares, of values without their mean and line; NaN adds nothing."""
    known = [(t, v) for t, v in enumerate(values) if not math.isnan(v)]
    mean_t = sum(t for t, _ in known) / len(known)
    mean_v = sum(v for _, v in known) / len(known)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in known) / sum((t - mean_t) ** 2 for t, _ in known)
    level = [(t, v - mean_v - slope * (t - mean_t)) for t, v in known]
    wave = sum(v * cmath.exp(-2j * math.pi * frequency * t) for t, v in level)
    return abs(wave) ** 2 / sum(v * v for _, v in level)


def autocorrelation(values: Sequence[float], lag: int) -> float:
    """The mean product of pairs a lag apart over the variance; NaN where there is no pair."""
    known = [v for v in values if not math.isnan(v)]
    mean = sum(known) / len(known)
    variance = sum((v - mean) ** 2 for v in known) / len(known)
    pairs = [
        (a - mean) * (b - mean)
        for a, b in zip(values, values[lag:], strict=False)
        if not math.isnan(a) and not math.isnan(b)
    ]
    return sum(pairs) / len(pairs) / variance if pairs else math.nan

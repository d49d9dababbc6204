"""Change points the slow and obvious way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def segmentation_cost(values: Sequence[float], cuts: Sequence[int], penalty: float) -> float:
    """Squared error around each segment's mean, plus the penalties."""
    bounds = [0, *cuts, len(values)]
    error = 0.0
    for low, high in pairwise(bounds):
        part = np.asarray(values[low:high], float)
        error += float(((part - part.mean()) ** 2).sum())
    return error + penalty * len(cuts)


def best_cost(values: Sequence[float], penalty: float, min_size: int) -> float:
    """The least cost of all segmentations, by looking at every last segment for every end."""
    n = len(values)
    best = [math.inf] * (n + 1)
    best[0] = -penalty
    for end in range(min_size, n + 1):
        for start in range(end - min_size + 1):
            if best[start] < math.inf:
                cost = best[start] + segmentation_cost(values[start:end], (), penalty) + penalty
                best[end] = min(best[end], cost)
    return best[n]


def strongest_split(values: Sequence[float], min_size: int) -> tuple[float, int]:
    """The greatest energy distance, times m·n/(m+n), over all cuts and ends; straight from its definition."""
    best, at = 0.0, 0
    for cut in range(min_size, len(values) - min_size + 1):
        for end in range(cut + min_size, len(values) + 1):
            a, b = np.asarray(values[:cut], float), np.asarray(values[cut:end], float)
            m, n = len(a), len(b)
            between = np.abs(a[:, None] - b[None, :]).mean()
            within_a = np.abs(a[:, None] - a[None, :]).sum() / (m * (m - 1))
            within_b = np.abs(b[:, None] - b[None, :]).sum() / (n * (n - 1))
            strength = m * n / (m + n) * (2 * between - within_a - within_b)
            if strength > best + 1e-12:
                best, at = strength, cut
    return best, at


def run_length_chances(values: Sequence[float], hazard: float, look: int) -> list[float]:
    """Bayesian online change points with every run's data kept and its Student t computed anew."""
    from scipy import stats

    chances = [0.0] * len(values)
    weights = {0: 1.0}  # run length -> probability, before the next value
    for t, value in enumerate(values):
        grown: dict[int, float] = {}
        for run, weight in weights.items():
            data = np.asarray(values[t - run : t], float)
            kappa, alpha = 0.05 + run, 1.0 + run / 2
            mean = data.sum() / kappa
            beta = 1.0
            if run:
                centre = data.mean()
                beta += 0.5 * ((data - centre) ** 2).sum() + 0.05 * run * centre**2 / (2 * kappa)
            scale = math.sqrt(beta * (kappa + 1) / (alpha * kappa))
            grown[run + 1] = weight * float(stats.t.pdf(value, 2 * alpha, loc=mean, scale=scale))
        total = sum(grown.values())
        weights = {run: (1 - hazard) * weight / total for run, weight in grown.items()}
        weights[0] = hazard
        if t >= look:
            chances[t - look + 1] = weights[look]
    return chances


def first_alarm(z: Sequence[float], drift: float, threshold: float) -> tuple[int, int] | None:
    """Two-sided CUSUM, value by value: (alarm, onset)."""
    up = down = 0.0
    up_onset = down_onset = 0
    for t, value in enumerate(z):
        up, down = up + value - drift, down - value - drift
        if up <= 0:
            up, up_onset = 0.0, t + 1
        if down <= 0:
            down, down_onset = 0.0, t + 1
        if up > threshold:
            return t, up_onset
        if down > threshold:
            return t, down_onset
    return None

"""Is an iteration slow, or were its sequences long? Times are held against what these lengths should take.

`fit` learns what a microbatch takes from healthy ones: a constant, so much a token, so much for the square of every
sequence. `Detector` divides what an iteration took by what was predicted, smooths the logarithm and raises an alarm
where it is `k` deviations too high in `run` iterations in a row. The rivals look at times alone.

All of them are scores, one a iteration, and a threshold; `tuned` finds each its own best threshold by the same rule.

>>> squares = np.array([1.0, 4.0, 9.0, 2.0, 5.0])
>>> model = fit(np.full(5, 3.0), squares, 2.0 + 0.5 * squares)
>>> model.seconds(3.0, 7.0).round(6).tolist()
5.5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from assay.sim.changepoints import MAD_TO_SIGMA, bocpd
from assay.sim.online_changes import LOOK
from assay.training.interface import Floats

K, RUN, WEIGHT = 4.0, 3, 0.5  # deviations, iterations in a row, and the newest value's part of the smoothed one
FLOOR = 0.002  # the least deviation that is believed: clocks and jitter are not better than that
APART = 10  # iterations within which alarms are one
WINDOW = 20  # of the moving average
NOTICED = 1.08  # times as long as when it was healthy, and a benchmark says slow
RECALL = 0.99  # of planted slowdowns, what a threshold has to find


@dataclass(frozen=True)
class Workload:
    """Seconds of a microbatch: `base`, so much for each `token`, and for the `square` of each sequence's length."""

    base: float
    token: float
    square: float

    def seconds(self, tokens: ArrayLike, squares: ArrayLike) -> Floats:
        """What so many tokens take, in sequences whose squared lengths add up to this."""
        return np.asarray(self.base + self.token * np.asarray(tokens) + self.square * np.asarray(squares))


def fit(tokens: ArrayLike, squares: ArrayLike, seconds: ArrayLike) -> Workload:
    """Least relative squares, nothing negative; values far off, a hiccup's, are left out of a second fit.

    Raises:
        ValueError: fewer than four values, or a time that is not positive.
    """
    n, s, t = (np.asarray(each, float).ravel() for each in (tokens, squares, seconds))
    if len(t) < 4 or not (t > 0).all():
        raise ValueError(f"{len(t)} microbatches; at least four are needed, with times above nothing")
    design = np.column_stack([np.ones_like(n), n, s])
    size = np.maximum(design.max(axis=0), 1e-300)  # columns of one size, or the solver loses the small ones
    kept = np.ones(len(t), bool)
    for _ in range(2):
        found = nnls(design[kept] / size / t[kept, None], np.ones(kept.sum()))[0] / size
        off = design @ found / t - 1
        spread = MAD_TO_SIGMA * np.median(np.abs(off - np.median(off)))
        near = np.abs(off - np.median(off)) <= max(4 * spread, FLOOR)
        kept = near if near.sum() >= max(4, len(t) // 2) else kept
    return Workload(*found.tolist())


# ------------------------------------------------------------------------------------------------ scores


def residual(seconds: Floats, predicted: Floats, warm_up: int) -> Floats:
    """ResiHP's: smoothed logarithm of observed over predicted, in deviations of the first `warm_up` iterations."""
    ratios = np.log(seconds / predicted)
    level, sigma = _learned(ratios[..., :warm_up])
    return _smoothed((ratios - level) / sigma)


def _learned(ratios: Floats) -> tuple[Floats, Floats]:
    """Level and scatter of every row."""
    level = np.median(ratios, axis=-1, keepdims=True)
    robust = MAD_TO_SIGMA * np.median(np.abs(ratios - level), axis=-1, keepdims=True)
    return level, np.maximum(np.maximum(robust, ratios.std(axis=-1, keepdims=True)), FLOOR)


def _smoothed(z: Floats) -> Floats:
    """Exponentially, in the deviations that smoothed values have."""
    found, now = np.empty_like(z), np.zeros(z.shape[:-1])
    for at in range(z.shape[-1]):
        now = now + WEIGHT * (z[..., at] - now)
        found[..., at] = now
    return np.asarray(found / np.sqrt(WEIGHT / (2 - WEIGHT)))


def fixed(seconds: Floats, tokens: Floats, warm_up: int) -> Floats:
    """How far an iteration is above the mean of the first ones."""
    return np.asarray(seconds / seconds[..., :warm_up].mean(axis=-1, keepdims=True) - 1)


def moving(seconds: Floats, tokens: Floats, warm_up: int) -> Floats:
    """How far above the mean of the last ones before it."""
    sums = np.concatenate([np.zeros_like(seconds[..., :1]), np.cumsum(seconds, axis=-1)], axis=-1)
    at = np.arange(seconds.shape[-1])
    first = np.maximum(at - WINDOW, 0)
    past = (sums[..., at] - sums[..., first]) / np.maximum(at - first, 1)
    return np.where(at > 0, seconds / np.maximum(past, 1e-300) - 1, 0.0)


def per_token(seconds: Floats, tokens: Floats, warm_up: int) -> Floats:
    """How far the time of a token is above that of the first ones: what a dashboard of tokens a second shows."""
    return fixed(seconds / tokens, tokens, warm_up)


def greyhound(seconds: Floats, tokens: Floats, warm_up: int) -> Floats:
    """Bayesian online change points of the times, upward ones; known as many iterations later as it looks ahead."""
    level, sigma = _learned(np.log(seconds[..., :warm_up]))
    z, late = (np.log(seconds) - level) / sigma, LOOK - 1
    count = z.shape[-1]
    found, recent = np.zeros_like(z), np.empty_like(z)
    for row in np.ndindex(z.shape[:-1]):
        found[row][late:] = bocpd(z[row], every=500.0, scale=1.0)[: count - late]
        recent[row] = np.convolve(z[row], np.ones(LOOK) / LOOK)[:count]
    before = np.zeros_like(z)
    before[..., LOOK:] = np.cumsum(z, axis=-1)[..., :-LOOK] / np.arange(1, count - LOOK + 1)
    return np.where(recent > before, found, 0.0)


Score = Callable[[Floats, Floats, int], Floats]
RIVALS: dict[str, Score] = {"fixed": fixed, "moving-average": moving, "per-token": per_token, "greyhound": greyhound}
ABOVE = tuple(round(0.01 * step, 2) for step in (*range(1, 20), *range(20, 62, 4)))
GRIDS: dict[str, tuple[float, ...]] = dict.fromkeys(("fixed", "moving-average", "per-token"), ABOVE) | {
    "resihp": (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0),
    "greyhound": (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99),
}
RUNS = (1, 2, 3)


def scores(name: str, seconds: Floats, predicted: Floats, tokens: Floats, warm_up: int) -> Floats:
    """Those of a detector by its name; iterations are the last dimension, and every row of others is by itself."""
    if name == "resihp":
        return residual(seconds, predicted, warm_up)
    return RIVALS[name](seconds, tokens, warm_up)


def alarms(score: Floats, threshold: float, run: int, warm_up: int) -> list[int]:
    """Iterations that end `run` in a row above a threshold, of any row; those close together are one alarm.

    >>> alarms(np.array([0.0, 9.0, 9.0, 0.0, 9.0, 9.0]), threshold=4.0, run=2, warm_up=1)
    [2]
    """
    found: list[int] = []
    for at in (warm_up + np.flatnonzero(_held(score[..., warm_up:], run) > threshold)).tolist():
        if not found or at - found[-1] >= APART:
            found.append(at)
    return found


def _held(score: Floats, run: int) -> Floats:
    """By iteration, the highest threshold below which no row's last `run` scores are: an alarm is what exceeds it.

    Rows are the dimension before iterations; those before that are kept.
    """
    rows = np.atleast_2d(score)
    least = np.full_like(rows, -np.inf)
    count = rows.shape[-1] - run + 1
    if count > 0:
        least[..., run - 1 :] = np.min([rows[..., back : back + count] for back in range(run)], axis=0)
    return np.asarray(np.fmax.reduce(least, axis=-2))


@dataclass(frozen=True)
class Tuned:
    """A detector's own best threshold, and how it did where it was sought."""

    threshold: float
    run: int
    recall: float
    false_alarms: int


def tuned(
    name: str, healthy: Floats, episodes: Sequence[Floats] | Floats, onset: int, warm_up: int, within: int = 5
) -> Tuned:
    """The threshold with the fewest alarms in healthy scores of those that find enough planted slowdowns in time.

    Where none does, the one that finds the most. Of equally good ones that in the middle, so that neither side is near.

    Args:
        name: of the detector.
        healthy: its scores where nothing was wrong.
        episodes: its scores where something was, from iteration `onset` on.
        onset: when.
        warm_up: iterations of both that are not judged.
        within: iterations that it has.
    """
    peaks = {run: _peaks(episodes, run, onset, within) for run in RUNS}
    found = [
        Tuned(threshold, run, _share(peaks[run], threshold), len(alarms(healthy, threshold, run, warm_up)))
        for run in RUNS
        for threshold in GRIDS[name]
    ]
    enough = [one for one in found if one.recall >= RECALL]
    if not enough:
        most = max(one.recall for one in found)
        enough = [one for one in found if one.recall == most]
    fewest = min(one.false_alarms for one in enough)
    equal = [one for one in enough if one.false_alarms == fewest]
    last = max(one.run for one in equal)
    equal = [one for one in equal if one.run == last]
    return equal[len(equal) // 2]


def caught(episodes: Sequence[Floats] | Floats, threshold: float, run: int, onset: int, within: int) -> float:
    """The share of slowdowns that are found in time, and not before they began."""
    return _share(_peaks(episodes, run, onset, within), threshold)


def _peaks(episodes: Sequence[Floats] | Floats, run: int, onset: int, within: int) -> Floats:
    """Of every episode, the threshold from which on it is missed: the first alarm has to come in time."""
    if not len(episodes):
        return np.zeros(0)
    each = np.asarray(episodes)[..., onset : onset + within]
    return np.asarray(_held(each.reshape(len(each), -1, each.shape[-1]), run).max(axis=-1))


def _share(peaks: Floats, threshold: float) -> float:
    return float((peaks > threshold).mean()) if len(peaks) else 0.0


# ------------------------------------------------------------------------------------------------ online


@dataclass(frozen=True)
class Judged:
    """What the detector says of one iteration."""

    ratio: float  # of what it took to what it should have taken
    score: float  # smoothed, in deviations
    slow: bool


class Detector:
    """Iterations one by one: the first `warm_up` teach it the workload and its scatter, the others are judged.

    >>> detector = Detector(warm_up=20)
    >>> random = np.random.default_rng(0)
    >>> for step in range(40):
    ...     length = float(random.integers(100, 1000))
    ...     took = (1e-3 + 1e-8 * length**2) * (1.5 if step >= 30 else 1.0)
    ...     found = detector.see(length, length**2, took)
    >>> detector.alarms, round(found.ratio, 2)
    ([32], 1.5)
    """

    def __init__(self, warm_up: int = 50, k: float = K, run: int = RUN) -> None:
        if warm_up < 10 or run < 1 or not k > 0:
            raise ValueError(f"warm_up {warm_up}, run {run}, k {k}: at least 10, at least 1, above 0")
        self.warm_up, self.k, self.run = warm_up, k, run
        self.workload: Workload | None = None
        self.alarms: list[int] = []
        self._seen: list[tuple[float, float, float]] = []
        self._level, self._sigma, self._now, self._over = 0.0, FLOOR, 0.0, 0
        self._at = -1

    @property
    def scatter(self) -> float:
        """Of healthy iterations around what was predicted, as it was learned."""
        return self._sigma

    def see(self, tokens: float, squares: float, seconds: float) -> Judged:
        """One more iteration."""
        self._at += 1
        if self.workload is None:
            self._seen.append((tokens, squares, seconds))
            if len(self._seen) == self.warm_up:
                n, s, t = np.array(self._seen).T
                self.workload = fit(n, s, t)
                level, sigma = _learned(np.log(t / self.workload.seconds(n, s)))
                self._level, self._sigma = float(level[0]), float(sigma[0])
            return Judged(1.0, 0.0, False)
        log_ratio = float(np.log(seconds / float(self.workload.seconds(tokens, squares)))) - self._level
        self._now += WEIGHT * (log_ratio / self._sigma - self._now)
        score = self._now / float(np.sqrt(WEIGHT / (2 - WEIGHT)))
        self._over = self._over + 1 if score > self.k else 0
        slow = self._over >= self.run
        if slow and (not self.alarms or self._at - self.alarms[-1] >= APART):
            self.alarms.append(self._at)
        return Judged(float(np.exp(log_ratio)), score, slow)


def discernible(times: float, sure: float = 2.0) -> float:
    """The most that healthy iterations may scatter if one that takes so many times as long is to be noticed in `RUN`.

    By then the smoothed logarithm should be `sure` deviations above the threshold; then chance hides one in forty.

    >>> round(discernible(1.2), 3), round(discernible(1.5), 3)
    (0.046, 0.102)
    """
    smoothed = np.log(times) * (1 - (1 - WEIGHT) ** RUN)
    return float(smoothed / np.sqrt(WEIGHT / (2 - WEIGHT)) / (K + sure))


def validate(now: ArrayLike, healthy: ArrayLike, noticed: float = NOTICED) -> dict[int, float]:
    """Who is slow: every rank's benchmark beside its own when all was well; how many times as long, by rank.

    Where all are slower alike it is the machine or the benchmark, and nobody is named.

    >>> validate([1.0, 1.3, 1.01], [1.0, 1.0, 1.0])
    {1: 1.3}
    """
    ratios = np.asarray(now, float) / np.asarray(healthy, float)
    common = float(ratios.min())
    return {rank: float(ratio) for rank, ratio in enumerate(ratios) if ratio > noticed * common}


@dataclass(frozen=True)
class Explained:
    """A rank beside the others: its time over what their pace says for its sequences, and whether it is slow itself."""

    ratio: float
    slow: bool
    steps: int


def explain(tokens: Floats, squares: Floats, seconds: Floats, rank: int, noticed: float = NOTICED) -> Explained | None:
    """Is a rank slow, or are its sequences long? All arrays are [ranks, steps]; the others teach what they take.

    None where that cannot be told: too few steps, or sequences much longer than any that the others had.

    >>> length = np.array([[100.0, 200, 300, 400, 500], [500, 500, 400, 500, 500]])
    >>> found = explain(length, length**2, 1e-3 + 1e-8 * length**2, rank=1)
    >>> found.slow, round(found.ratio, 3)
    (False, 1.0)
    """
    others = np.arange(len(seconds)) != rank
    there = (seconds > 0) & np.isfinite(seconds) & (tokens > 0)
    taught = there & others[:, None]
    mine = there[rank]
    if taught.sum() < 5 or mine.sum() < 3 or np.median(squares[rank, mine]) > 1.5 * squares[taught].max():
        return None
    model = fit(tokens[taught], squares[taught], seconds[taught])
    ratios = np.log(seconds / np.maximum(model.seconds(tokens, squares), 1e-300))
    level, sigma = (float(each[0]) for each in _learned(ratios[taught]))
    own = float(np.median(ratios[rank, mine])) - level
    sure = own > K * sigma / np.sqrt(mine.sum())
    return Explained(float(np.exp(own)), bool(sure and own > np.log(noticed)), int(mine.sum()))

"""Whether head is slower than base, from paired measurements on a noisy machine.

**The noise model.** A time has three parts beside the code: bursts (another process takes the core for a while), slow
drift (clock, temperature, neighbours) and luck of the launch (where a process's memory lies, how its hashes fall).
Taking turns within milliseconds cancels the drift; the median of a pair's rounds ignores bursts; luck is drawn anew by
new processes. So the unit of evidence is one *pair of processes*: the median over its rounds of log(head / base).
Pairs are independent, and a coin decides which side goes first, so for equal code the law of a pair is symmetric.

**The test.** Nothing else is assumed: Wilcoxon's signed ranks, whose law under symmetry is known exactly, and the
interval that comes with it (Hodges and Lehmann): it keeps its level for any symmetric noise, and up to a quarter of
wild pairs cannot move it far. The pairs are judged at a few looks and stop as soon as they decide; each look spends an
equal part of the error, so the probability of an alarm for equal code is below `false_alarms`, whatever the noise.

>>> rule = Rule(false_alarms=0.01, pairs=60)
>>> rule.looks
(10, 24, 60)
>>> ratios = [0.05, 0.06, 0.04, 0.07, 0.05, 0.05, 0.06, 0.03, 0.05, 0.06]
>>> judgement = judge(ratios, rule)
>>> judgement.decision, round(judgement.change, 3)
('regression', 0.051)

- Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1945.
- Hodges, Lehmann, "Estimates of location based on rank tests", Annals of Mathematical Statistics 1963.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.changepoints import MAD_TO_SIGMA

LOOKS = 3
POWER = 0.9  # how surely a change as large as `resolvable` would be found
COUNT_FLOOR = 0.001  # instruction counts of equal Python code differ by less, hashes and addresses included
ERROR, NO_CHANGE, UNDECIDED, REGRESSION, IMPROVEMENT = "error", "no change", "undecided", "regression", "improvement"


@dataclass(frozen=True, slots=True)
class Rule:
    """When to decide: the smallest change that matters, the error allowed, the most pairs, the tests that share it."""

    min_change: float = 0.01
    false_alarms: float = 0.01
    pairs: int = 60
    tests: int = 1

    @property
    def level(self) -> float:
        """The error of one look at one benchmark, both sides together."""
        return self.false_alarms / self.tests / LOOKS

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many pairs to look: first when the exact test can decide at all."""
        first = math.ceil(1 - math.log2(self.level))
        last = max(self.pairs, first)
        return tuple(sorted({first, round(math.sqrt(first * last)), last}))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the pairs say: a decision, the change (0.05: five per cent more), its interval, and what it could see."""

    decision: str
    change: float
    low: float
    high: float
    pairs: int
    resolvable: float | None  # the smallest change found nine times in ten with this noise; None: too few pairs

    @property
    def decided(self) -> bool:
        """Whether more pairs are of no use."""
        return self.decision not in (UNDECIDED, ERROR)


def judge(log_ratios: ArrayLike, rule: Rule) -> Judgement:
    """Judge the pairs of one look."""
    ratios = np.asarray(log_ratios, float)
    if ratios.ndim != 1 or not np.isfinite(ratios).all():
        raise ValueError("log ratios must be a flat series of finite numbers")
    if len(ratios) < 1:
        return Judgement(UNDECIDED, 0.0, -1.0, math.inf, 0, None)
    centre, low, high = hodges_lehmann(ratios, rule.level)
    return _decided(centre, low, high, len(ratios), resolvable(ratios, rule), rule.min_change)


def judge_counts(base: Sequence[float], head: Sequence[float], min_change: float) -> Judgement:
    """Judge instruction counts, paired by the hash seed they were taken with.

    There is no law of noise to appeal to: the interval is the spread over the seeds, doubled, and never less than
    what equal code was seen to differ by.

    >>> judge_counts([1000, 1001, 1000], [1020, 1021, 1020], 0.01).decision
    'regression'
    """
    ratios = np.log(np.asarray(head, float) / np.asarray(base, float))
    centre = float(np.median(ratios))
    half = max(COUNT_FLOOR, 2 * float(np.abs(ratios - centre).max()))
    seen = max(min_change, 2 * half)
    return _decided(centre, centre - half, centre + half, len(ratios), seen, min_change)


def _decided(centre: float, low: float, high: float, pairs: int, seen: float | None, min_change: float) -> Judgement:
    change, least, most = (math.expm1(min(value, 700.0)) for value in (centre, low, high))
    if low > 0 and change >= min_change:
        decision = REGRESSION
    elif high < 0 and -change >= min_change:
        decision = IMPROVEMENT
    elif -min_change < least and most < min_change:
        decision = NO_CHANGE
    else:
        decision = UNDECIDED
    return Judgement(decision, change, least, most, pairs, seen)


def hodges_lehmann(values: ArrayLike, level: float) -> tuple[float, float, float]:
    """The centre of a symmetric law and its exact interval of error `level`; infinite where the pairs are too few.

    >>> centre, low, high = hodges_lehmann([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], level=0.05)
    >>> centre, low, high
    (3.5, 1.0, 6.0)
    """
    sample = np.asarray(values, float)
    rows, columns = np.triu_indices(len(sample))
    walsh = np.sort((sample[rows] + sample[columns]) / 2)
    cut = _cut(len(sample), level)
    centre = float(np.median(walsh))
    if cut is None:
        return centre, -math.inf, math.inf
    return centre, float(walsh[cut]), float(walsh[len(walsh) - 1 - cut])


@cache
def _cut(n: int, level: float) -> int | None:
    """The largest k such that the signed-rank sum is below or at k with probability ≤ level/2; None: there is none."""
    below = np.cumsum(_signed_rank(n))
    allowed = np.flatnonzero(below <= level / 2)
    return int(allowed[-1]) if len(allowed) else None


@cache
def _signed_rank(n: int) -> NDArray[np.float64]:
    """The law of the sum of those of the ranks 1 … n that a fair coin picks."""
    law = np.zeros(n * (n + 1) // 2 + 1)
    law[0] = 1.0
    for rank in range(1, n + 1):
        law[rank:] += law[:-rank].copy()
        law /= 2
    return law


def resolvable(log_ratios: ArrayLike, rule: Rule) -> float | None:
    """The smallest change that pairs as noisy as these, as many as the last look has, would show nine times in ten.

    >>> resolvable([0.0], Rule()) is None
    True
    """
    from scipy import stats

    ratios = np.asarray(log_ratios, float)
    if len(ratios) < 5:
        return None
    spread = MAD_TO_SIGMA * float(np.median(np.abs(ratios - np.median(ratios))))
    n = rule.looks[-1]
    reach = float(stats.t.ppf(1 - rule.level / 2, n - 1) + stats.t.ppf(POWER, n - 1))
    # Signed ranks need π/3 times the pairs that means need under normal noise.
    half = reach * spread * math.sqrt(math.pi / 3 / n)
    return max(rule.min_change, math.expm1(half))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One benchmark, base beside head: by time, by instructions where they were counted, and what follows from both."""

    name: str
    base: float | None  # median seconds of a call or command
    head: float | None
    time: Judgement | None
    instructions: Judgement | None = None
    error: str = ""
    seconds: float = 0.0  # what the comparison took
    note: str = ""

    @property
    def decision(self) -> str:
        """Time decides where it can; where it cannot, a count may. What did not run is an error, nothing else.

        A count speaks only for a change, and only for one that the time does not exclude: equal counts do not make
        equal times, since waiting and cache misses are no instructions.
        """
        if self.error or self.time is None:
            return ERROR
        return self.instructions.decision if self.by == "instructions" and self.instructions else self.time.decision

    @property
    def by(self) -> str:
        """What decided: `time` or `instructions`."""
        if self.error or self.time is None:
            return ""
        count = self.instructions
        changed = count is not None and count.decision in (REGRESSION, IMPROVEMENT)
        if changed and count and self.time.decision == UNDECIDED and self.time.low <= count.change <= self.time.high:
            return "instructions"
        return "time"

"""How long will an answer get? Estimators that learn from the answers that finished.

Two questions are asked. Before a request starts: how many tokens will it take (`BiasedBase`, `Quantiles`)? While it
runs: with what probability does it still run h tokens from now (`EmpiricalHazard`, `LogisticHazard`)? Nobody is told
a length before the answer is complete.

>>> hazard = EmpiricalHazard()
>>> for _ in range(500):
...     hazard.learn(prompt=100, output=40)
>>> hazard.survive(np.array([0, 32]), np.array([100, 100]), np.array([0, 20])).round(1).tolist()
[[1.0, 1.0], [1.0, 0.0]]
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Survival(Protocol):
    """Whether running requests will still run in a few steps."""

    def survive(self, generated: Ints, prompt: Ints, steps: Ints, ids: Ints | None = None) -> Floats:
        """[request, step]: the probability that a request, `generated` tokens into its answer, runs `steps` more."""
        ...

    def learn(self, prompt: int, output: int) -> None:
        """An answer finished."""
        ...


@dataclass
class EmpiricalHazard:
    """Of the answers that got this far, the share that ended here: the life table of what finished.

    Ages are in bins of `width` tokens. `prior` answers of mean length `mean` are mixed in, so that the first
    decisions are neither certain nor empty. About `memory` answers are kept; older ones fade out. The table is made
    anew after every `every` answers.

    >>> EmpiricalHazard(prior=0.0).survive(np.array([5]), np.array([1]), np.array([0, 8])).tolist()
    [[1.0, 1.0]]
    """

    width: int = 8
    longest: int = 16_384
    prior: float = 20.0
    mean: float = 256.0
    memory: int = 20_000
    every: int = 50

    def __post_init__(self) -> None:
        self._ends = np.zeros(self.longest // self.width + 1)
        self._count = self._fresh = 0
        self._cumulative = self._accumulate()

    def learn(self, prompt: int, output: int) -> None:
        """Count one more answer of this length."""
        self._ends[min((output - 1) // self.width, len(self._ends) - 1)] += 1.0
        self._count += 1
        self._fresh += 1
        if self._fresh >= self.every:
            self._cumulative = self._accumulate()
            self._fresh = 0
        if self._count > self.memory:
            self._ends *= 0.5
            self._count //= 2

    def survive(self, generated: Ints, prompt: Ints, steps: Ints, ids: Ints | None = None) -> Floats:
        """exp(-(hazard summed from here to `steps` later))."""
        ages = np.minimum(generated[:, None] + steps, self.longest)
        now = self._cumulative[np.minimum(generated, self.longest)]
        survival: Floats = np.exp(now[:, None] - self._cumulative[ages])
        return survival

    def _accumulate(self) -> Floats:
        """The hazard summed up to each token; the prior is memoryless, and within a bin the hazard is constant."""
        reached = np.cumsum(self._ends[::-1])[::-1]
        ended = self._ends + self.prior * min(self.width / self.mean, 1.0)
        share = ended / np.maximum(reached + self.prior, 1e-9)
        edges = np.concatenate([[0.0], np.cumsum(-np.log1p(-np.minimum(share, 1.0 - 1e-6)))])
        summed: Floats = np.interp(np.arange(self.longest + 1), np.arange(len(edges)) * self.width, edges)
        return summed


@dataclass
class LogisticHazard:
    """A logistic model of ending within the next `width` tokens, refitted on the latest answers.

    Features: the logarithms of tokens generated and of the prompt, and the square of the first, so that an answer
    can be at risk in the middle of its life. Newton's method with a ridge; four numbers in all.

    >>> model = LogisticHazard(every=100)
    >>> for n in range(300):
    ...     model.learn(prompt=50, output=20 if n % 2 else 400)
    >>> early, late = model.survive(np.array([18, 100]), np.array([50, 50]), np.array([16]))[:, 0]
    >>> bool(early < late)
    True
    """

    width: int = 16
    every: int = 500
    memory: int = 2000
    bins: int = 24  # ages of one answer that are looked at
    ridge: float = 1.0
    weights: Floats = field(default_factory=lambda: np.array([-3.0, 0.0, 0.0, 0.0]))

    def __post_init__(self) -> None:
        self._lives: deque[tuple[int, int]] = deque(maxlen=self.memory)
        self._fresh = 0

    def learn(self, prompt: int, output: int) -> None:
        """Keep the answer, and refit once enough new ones have come."""
        self._lives.append((prompt, output))
        self._fresh += 1
        if self._fresh >= self.every or self._fresh == len(self._lives) == self.every // 5:
            self._fit()
            self._fresh = 0

    def survive(self, generated: Ints, prompt: Ints, steps: Ints, ids: Ints | None = None) -> Floats:
        """The hazard of the present age, taken for constant over the few steps asked for."""
        ending = _logistic(self._features(generated, prompt) @ self.weights)
        survival: Floats = np.power(1.0 - ending[:, None], np.asarray(steps)[None, :] / self.width)
        return survival

    @staticmethod
    def _features(generated: Ints, prompt: Ints) -> Floats:
        age = np.log1p(np.asarray(generated, dtype=np.float64)) - 5.0
        return np.stack([np.ones(len(age)), age, age * age, np.log1p(prompt) - 6.0], axis=1)

    def _fit(self) -> None:
        prompt, output = np.array(self._lives).T
        ages = np.arange(self.bins) * self.width
        ages = np.where(ages < 4 * self.width, ages, (ages * (1 + ages / (8 * self.width))).astype(np.int64))
        alive = output[:, None] > ages
        ends = alive & (output[:, None] <= ages + self.width)
        who, when = np.nonzero(alive)
        x, y = self._features(ages[when], prompt[who]), ends[who, when].astype(np.float64)
        for _ in range(6):
            p = _logistic(x @ self.weights)
            slope = x.T @ (y - p) - self.ridge * self.weights
            curve = (x * (p * (1 - p))[:, None]).T @ x + self.ridge * np.eye(x.shape[1])
            self.weights = self.weights + np.linalg.solve(curve, slope)


def _logistic(x: Floats) -> Floats:
    value: Floats = 1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0)))
    return value


@dataclass
class BiasedBase:
    """A base length per category, times a bias that follows what was measured (an exponential moving average).

    >>> estimate = BiasedBase({"short": 64})
    >>> for _ in range(60):
    ...     estimate.learn("short", 96)
    >>> round(estimate.bias["short"], 2)
    1.5
    """

    base: dict[str, int]
    alpha: float = 0.1
    low: float = 0.25
    high: float = 3.0
    frozen: bool = False  # feedback off: the estimate stays what it was
    bias: dict[str, float] = field(default_factory=dict)

    def estimate(self, category: str) -> float:
        """Base times bias."""
        return self.base[category] * self.bias.get(category, 1.0)

    def learn(self, category: str, actual: float) -> None:
        """Move the bias a little towards actual / base, which is clipped."""
        if not self.frozen:
            measured = min(max(actual / self.base[category], self.low), self.high)
            self.bias[category] = (1 - self.alpha) * self.bias.get(category, 1.0) + self.alpha * measured


@dataclass
class Quantiles:
    """A quantile of the latest lengths of each group, falling back to a wider group while one is new.

    >>> lengths = Quantiles(start=100.0)
    >>> for n in range(20):
    ...     lengths.learn(("code", "alice"), 40 + n)
    >>> lengths.estimate(("code", "alice")), lengths.estimate(("code", "bob")), lengths.estimate(("chat", "bob"))
    (50.0, 50.0, 100.0)
    """

    share: float = 0.5
    start: float = 128.0
    memory: int = 200
    least: int = 5
    _seen: dict[tuple[str, ...], deque[float]] = field(default_factory=dict, repr=False)

    def estimate(self, group: tuple[str, ...]) -> float:
        """The quantile over the narrowest group that has enough answers."""
        for width in range(len(group), 0, -1):
            seen = self._seen.get(group[:width])
            if seen is not None and len(seen) >= self.least:
                return float(sorted(seen)[min(int(self.share * len(seen)), len(seen) - 1)])
        return self.start

    def learn(self, group: tuple[str, ...], actual: float) -> None:
        """Remember a length for the group and for every wider one."""
        for width in range(1, len(group) + 1):
            self._seen.setdefault(group[:width], deque(maxlen=self.memory)).append(actual)

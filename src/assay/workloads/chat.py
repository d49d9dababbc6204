"""Chat traffic: made from a few numbers, or fitted to a trace and then scaled.

Arrivals are a Gamma renewal process (its coefficient of variation is the burstiness) whose rate follows a curve.
Conversations begin, pause to think and go on: each prompt holds the prompt and the answer before it, and an engine
sends it when that answer has ended and the pause is over (`closed_loop`); its arrival is when that would be if answers
took no time. Openings share system prompts of Zipf popularity. Lengths of prompts and answers are drawn together from
an empirical copula, so that their correlation is kept. Agents loop over tools, change the head of their prompt, forget.

>>> trace = chat(1000, rate=5.0, seed=1)
>>> len(trace), bool(trace.prefixes.block == 16), round(trace.rate)
(1000, True, 5)
>>> trace.session.max() < 999  # some are later turns
np.True_
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from assay.sim.random import stream
from assay.workloads.conversations import BLOCK, Draws, Rules, State, converse, paths
from assay.workloads.prefixes import previous
from assay.workloads.requests import Floats, Prefixes, Requests, Source

DAY = 86_400.0


@dataclass(frozen=True)
class Lengths:
    """Two lengths that go together: their quantiles, evenly spaced, and the ranks of a sample (the empirical copula).

    >>> both = Lengths.of(range(100), range(100, 0, -1))
    >>> x, y = both.draw(stream(1, "lengths"), 1000)
    >>> bool(np.corrcoef(x, y)[0, 1] < -0.9)
    True
    """

    one: Floats
    other: Floats
    ranks: NDArray[np.float32]

    @classmethod
    def of(cls, one: ArrayLike, other: ArrayLike, most: int = 20_000) -> Lengths:
        """From a sample, of which evenly spread pairs are kept."""
        pairs = np.stack([np.asarray(one, np.float64), np.asarray(other, np.float64)])
        if pairs.ndim != 2 or not pairs.shape[1]:
            raise ValueError("lengths need a sample of at least one pair")
        size = pairs.shape[1]
        pick = np.linspace(0, size - 1, min(size, most)).round().astype(np.int64)
        ranks = (np.argsort(np.argsort(pairs, axis=1, kind="stable"), axis=1)[:, pick] / size).astype(np.float32)
        grid = np.linspace(0, 1, min(size, 2049))
        return cls(np.quantile(pairs[0], grid), np.quantile(pairs[1], grid), ranks)

    @classmethod
    def lognormal(cls, one: float, other: float, sigma: float = 1.0, correlation: float = 0.2) -> Lengths:
        """From two means."""
        grid = ndtri((np.arange(512) + 0.5) / 512)
        normal = stream(0, "copula").multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], 4096)
        ranks = np.argsort(np.argsort(normal.T, axis=1), axis=1) / 4096
        tokens = [mean * np.exp(sigma * grid - sigma**2 / 2) for mean in (one, other)]
        return cls(np.maximum(tokens[0], 1), np.maximum(tokens[1], 1), ranks.astype(np.float32))

    def draw(self, random: np.random.Generator, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs, each within the ranks of a pair of the sample."""
        pick = random.integers(self.ranks.shape[1], size=n)
        width = 1 / self.ranks.shape[1]
        columns = []
        for quantiles, ranks in zip((self.one, self.other), self.ranks, strict=True):
            at = np.minimum(ranks[pick] + width * random.random(n), 1.0)
            columns.append(np.interp(at, np.linspace(0, 1, len(quantiles)), quantiles).round().astype(np.int64))
        return columns[0], columns[1]

    def times(self, factor: float) -> Lengths:
        """All lengths longer by a factor."""
        return replace(self, one=self.one * factor, other=self.other * factor)


@dataclass(frozen=True)
class Agents:
    """Conversations in which a program, not a person, takes the next turn: a tool's result is added and sent back."""

    share: float = 0.3  # of conversations
    steps: float = 8.0  # mean turns of a loop
    tool_tokens: float = 600.0
    tool_seconds: float = 2.0
    volatile: float = 0.1  # how often the head of the prompt changes (a clock, tools in another order)


def day_curve(low: float = 0.4) -> Floats:
    """Relative rate by the hour: quiet at four in the morning, busiest twelve hours later; mean 1.

    >>> curve = day_curve()
    >>> round(float(curve.mean()), 6), int(curve.argmin()), int(curve.argmax())
    (1.0, 4, 16)
    """
    swing = (1 - low) / (1 + low)
    return 1 - swing * np.cos(2 * np.pi * (np.arange(24) - 4) / 24)


@dataclass(frozen=True)
class Chat:
    """All that makes the traffic. :func:`fit` finds it for a trace; the defaults are a plain chat service."""

    rate: float = 1.0  # requests a second, the mean over what is generated
    curve: Floats = field(default_factory=day_curve)  # relative rate over one period, mean 1
    period: float = DAY
    burstiness: float = 1.0  # coefficient of variation of the gaps; 1: Poisson
    memory: float = 0.0  # correlation of successive gaps, as normal scores
    opening: Lengths = field(default_factory=lambda: Lengths.lognormal(900, 300))
    later: Lengths = field(default_factory=lambda: Lengths.lognormal(120, 300))  # tokens added, tokens answered
    think: Floats = field(default_factory=lambda: -60.0 * np.log1p(-np.linspace(0, 0.999, 257)))
    stay: Floats = field(default_factory=lambda: np.array([0.6]))  # probability of a next turn, by the prompt's length
    stay_edges: Floats = field(default_factory=lambda: np.empty(0))
    context: int = 131_072
    window: int = 0  # history beyond this is cut; 0: never
    root: int = 0  # tokens that all prompts begin with
    shared: float = 0.8  # share of openings that begin with a system prompt of the pool
    systems: Floats = field(default_factory=lambda: np.linspace(100, 1500, 257))  # quantiles of their tokens
    pool: int = 50
    zipf: float = 1.0
    included: bool = False  # opening lengths count the system prompt
    prefixes: bool = True
    agents: Agents | None = None
    tiers: tuple[tuple[str, float], ...] = ()  # name, share
    tenants: int = 0

    def scaled(self, rate: float = 1.0, length: float = 1.0, users: float = 1.0) -> Chat:
        """More of it: `rate` lets everybody be faster, `users` brings more of them, `length` makes texts longer.

        >>> more = Chat().scaled(rate=2, users=3)
        >>> more.rate, more.pool
        (6.0, 150)
        """
        if not min(rate, length, users) > 0:
            raise ValueError("factors must be positive")
        return replace(
            self,
            rate=self.rate * rate * users,
            think=self.think / rate,
            pool=max(1, round(self.pool * users)),
            opening=self.opening.times(length),
            later=self.later.times(length),
            systems=self.systems * length,
            root=int(self.root * length) // BLOCK * BLOCK,
            stay_edges=self.stay_edges * length,
            context=int(self.context * length),
            window=int(self.window * length),
        )

    def generate(self, n: int, seed: int) -> Requests:
        """The next n requests of this traffic.

        >>> Chat(rate=2.0).generate(100, seed=1).prompt.sum() == Chat(rate=2.0).generate(100, seed=1).prompt.sum()
        np.True_
        """
        if n < 1 or not self.rate > 0:
            raise ValueError("a trace needs at least one request and a positive rate")
        draws = self._draws(n, seed)
        end, found = converse(draws, self._rules())
        trace: dict[str, Any] = {"arrival": draws.arrival, "prompt": end.prompt, "output": end.output}
        if self.prefixes:
            parent, start, stop, depth = (row[:found].copy() for row in end.tree)
            offsets, segments = paths(parent, depth, end.tip)
            tree = Prefixes(parent, start, stop, offsets, segments, end.answer, BLOCK)
            trace |= {"session": end.session, "prefixes": tree} | self._loops(draws, end)
        source = Source("chat", "generated", read=n, used=n)
        return Requests(**trace, **self._labels(seed, end.session, end.system), source=source)

    def _loops(self, draws: Draws, end: State) -> dict[str, Any]:
        """Whose end each later turn waits for, and the think time that was drawn for it."""
        after = previous(end.session)
        pauses = np.where(end.agent[end.session], draws.pause, draws.think)
        return {"after": after, "think": np.where(after >= 0, pauses[after], 0.0)}

    def arrivals(self, n: int, seed: int) -> Floats:
        """Times of n arrivals, from zero."""
        shape = 1 / self.burstiness**2
        random = stream(seed, "chat", "arrivals")
        if self.memory:
            gaps = _remembering(random.standard_normal(n), self.memory, shape)
        else:
            gaps = random.gamma(shape, 1 / shape, n)
        curve = np.maximum(self.curve / self.curve.mean(), 1e-6)
        clock = np.linspace(0, self.period, len(curve) + 1)
        work = np.concatenate([[0.0], np.cumsum(curve) / curve.sum()]) * self.period  # a clock that runs with the rate
        laps, rest = np.divmod(n / self.rate, self.period)
        whole = laps * self.period + np.interp(rest, clock, work)  # what is to be done until n / rate
        laps, rest = np.divmod(np.cumsum(gaps) * (whole / n), self.period)
        times = laps * self.period + np.interp(rest, work, clock)
        times -= times[0]
        return np.maximum.accumulate(times)

    def _draws(self, n: int, seed: int) -> Draws:
        def of(name: str) -> np.random.Generator:
            return stream(seed, "chat", name)

        opening, opening_output = self.opening.draw(of("opening"), n)
        added, later_output = self.later.draw(of("later"), n)
        agents = self.agents or Agents(share=0.0, volatile=0.0)
        grid = np.linspace(0, 1, len(self.think))
        whom = of("system")
        weight = np.cumsum(np.arange(1, self.pool + 1) ** -self.zipf)
        system = np.searchsorted(weight, whom.random(n) * weight[-1]).astype(np.int32)
        return Draws(
            arrival=self.arrivals(n, seed),
            opening=np.maximum(opening, 1).astype(np.int32),
            opening_output=np.maximum(opening_output, 1).astype(np.int32),
            added=added.astype(np.int32),
            later_output=np.maximum(later_output, 1).astype(np.int32),
            think=np.interp(of("think").random(n), grid, self.think),
            stay=of("stay").random(n, np.float32),
            system=np.where(whom.random(n, np.float32) < self.shared, system, np.int32(-1)),
            agent=of("agent").random(n, np.float32) < agents.share,
            tool=of("tool").exponential(agents.tool_tokens, n).astype(np.int32) + 1,
            pause=of("pause").exponential(agents.tool_seconds, n),
            step=of("step").random(n, np.float32),
            volatile=of("volatile").random(n, np.float32) < agents.volatile,
        )

    def _rules(self) -> Rules:
        grid = np.linspace(0, 1, len(self.systems))
        sizes = np.interp(stream(0, "chat", "systems").random(self.pool), grid, self.systems)
        blocks = np.maximum(sizes // BLOCK * BLOCK, BLOCK).astype(np.int32)
        agent_stay = 1 - 1 / max((self.agents or Agents()).steps, 1.0)
        return Rules(
            root=int(self.root),
            system=blocks,
            included=self.included,
            stay_edges=self.stay_edges,
            stay=self.stay,
            context=int(self.context),
            window=int(min(self.window, self.context)),
            agent_stay=agent_stay,
        )

    def _labels(self, seed: int, session: Any, system: Any) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        if self.tiers:
            share = np.cumsum([part for _, part in self.tiers])
            tier = np.searchsorted(share, stream(seed, "chat", "tier").random(int(session.max()) + 1) * share[-1])
            labels |= {"tier": tier.astype(np.int32)[session], "tiers": tuple(name for name, _ in self.tiers)}
        if self.tenants:  # a system prompt belongs to one tenant
            lone = stream(seed, "chat", "tenant").integers(self.tenants, size=int(session.max()) + 1)
            tenant = np.where(system >= 0, system % self.tenants, lone[session]).astype(np.int32)
            labels |= {"tenant": tenant, "tenants": tuple(f"tenant {k}" for k in range(self.tenants))}
        return labels


def _remembering(normal: Floats, memory: float, shape: float) -> Floats:
    """Gamma gaps of mean 1 whose normal scores are an autoregression: a short gap follows a short one."""
    from scipy import stats
    from scipy.signal import lfilter

    normal[1:] *= np.sqrt(1 - memory**2)
    scores = lfilter([1.0], [1.0, -memory], normal)
    grid = np.linspace(-5.5, 5.5, 4097)
    return np.interp(scores, grid, stats.gamma.ppf(stats.norm.cdf(grid), shape, scale=1 / shape))


def chat(requests: int, rate: float, seed: int, **settings: Any) -> Requests:
    """So many requests of a chat service at a mean rate a second; `settings` are the fields of :class:`Chat`.

    >>> quiet = chat(100, rate=1.0, seed=1, shared=0.0, stay=np.array([0.0]))
    >>> int(quiet.session.max())
    99
    """
    return Chat(rate=rate, **settings).generate(requests, seed)


def hour(seed: int) -> Requests:
    """An hour of single prompts, about as many and as long as in Azure's conversations of November 2023.

    It stands in for that trace where it is not at hand: means of lengths and the rate are alike, nothing else is.

    >>> trace = hour(0)
    >>> len(trace), round(trace.rate, 1), trace.session is None
    (19000, 5.5, True)
    """
    single: dict[str, Any] = {"stay": np.array([0.0]), "shared": 0.0, "prefixes": False, "context": 8192}
    made = chat(19_000, rate=5.5, seed=seed, opening=Lengths.lognormal(1155, 211, sigma=0.9), **single)
    return Requests.of(made.arrival, made.prompt, made.output)


@lru_cache(maxsize=2)
def read_or_hour(path: str) -> Requests:
    """The trace at a path; where none is at hand (an empty path), the hour that stands in for it.

    >>> read_or_hour("") is read_or_hour("")
    True
    """
    from assay.workloads.request_files import read  # it brings all formats along

    return read(path) if path else hour(seed=0)


def fit(requests: Requests) -> Chat:
    """The traffic that a trace is a sample of; see :mod:`assay.workloads.chat_fit`.

    >>> model = fit(chat(2000, rate=3.0, seed=1))
    >>> bool(2.8 < model.rate < 3.2)
    True
    """
    from assay.workloads.chat_fit import fit_chat  # it generates, to calibrate: the two need each other

    return fit_chat(requests)

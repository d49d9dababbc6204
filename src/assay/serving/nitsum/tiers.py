"""Tiers with targets: what each asked for lately, and how many requests a second a group of GPUs serves within them.

A tier is a name and an `SLO`; tiers are ordered from strict to relaxed by the time between tokens they allow. Demand
is what was measured in a sliding window, never what comes: arrivals and prompts when they arrive, answers when they
end. Capacity follows from the cost model: `steady_state` for the time between tokens, an M/G/1 queue for the time to
first token.

>>> strict_first({"batch": SLO(30.0, 0.2), "chat": SLO(0.5, 0.02)})
['chat', 'batch']
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.serving.engine import steady_state
from assay.serving.interface import SLO, Finished, Request
from assay.sim.llm_cost import StepCost

SAMPLE = 512  # prompts and answers remembered of a tier
MARGIN = 0.85  # of a target that a plan may use: what is planned with averages is met by most


def strict_first(targets: Mapping[str, SLO]) -> list[str]:
    """Names of tiers from strict to relaxed."""
    return sorted(targets, key=lambda name: (targets[name].tpot, targets[name].ttft))


@dataclass
class StrictestFirst:
    """An order: strictest tier first, and inside a tier the earliest deadline of the first token (EDF).

    >>> order = StrictestFirst({"batch": SLO(30.0, 0.2), "chat": SLO(0.5, 0.02)})
    >>> order.key(Request(0, 9.0, 10, tier="chat"), 9.0) < order.key(Request(1, 0.0, 10, tier="batch"), 9.0)
    True
    """

    targets: Mapping[str, SLO]

    def __post_init__(self) -> None:
        self._rank = {name: rank for rank, name in enumerate(strict_first(self.targets))}

    def key(self, request: Request, now: float) -> float:
        """The tier's rank outweighs any deadline."""
        target = self.targets.get(request.tier, SLO())
        return 1e9 * self._rank.get(request.tier, len(self._rank)) + request.arrival + min(target.ttft, 1e6)


@dataclass(frozen=True)
class Demand:
    """What a tier asks for: requests a second, and how long they are.

    >>> Demand(2.0, 1000.0, 1.0, 200.0).prompts().mean().round(-1)
    np.float64(1000.0)
    """

    rate: float
    prompt: float  # mean tokens
    spread: float  # standard deviation of the prompt over its mean
    output: float  # mean tokens

    def prompts(self) -> NDArray[np.float64]:
        """Quantiles of a lognormal prompt with this mean and spread."""
        sigma = math.sqrt(math.log1p(self.spread**2))
        found: NDArray[np.float64] = np.exp(sigma * _NORMAL)
        return np.asarray(np.maximum(found / found.mean() * self.prompt, 1.0))

    def rounded(self) -> Demand:
        """The same in coarse steps, so that a plan is not made anew for every digit."""
        return Demand(
            coarse(self.rate, 0.15), coarse(self.prompt, 0.2), round(2 * self.spread) / 2, coarse(self.output, 0.2)
        )


_NORMAL = stats.norm.ppf((np.arange(64) + 0.5) / 64)


def coarse(value: float, step: float) -> float:
    """The nearest power of 1 + step: relative rounding.

    >>> round(coarse(100.0, 0.1), 1), coarse(0.0, 0.1)
    (97.0, 0.0)
    """
    return (1 + step) ** round(math.log(value) / math.log1p(step)) if value > 0 else 0.0


@dataclass
class Window:
    """Demand by tier: rates over the last `seconds`, lengths over the last SAMPLE requests, which change less.

    >>> seen = Window(10.0)
    >>> for second in range(20): seen.arrived(Request(second, float(second), 100, tier="chat"))
    >>> seen.demand(20.0)["chat"].rate
    1.0
    """

    seconds: float = 30.0
    prior_output: float = 200.0  # tokens, until answers have been seen
    _arrivals: dict[str, deque[float]] = field(default_factory=dict)
    _prompts: dict[str, deque[int]] = field(default_factory=dict)
    _outputs: dict[str, deque[int]] = field(default_factory=dict)

    def arrived(self, request: Request) -> None:
        """A request came."""
        self._arrivals.setdefault(request.tier, deque()).append(request.arrival)
        self._prompts.setdefault(request.tier, deque(maxlen=SAMPLE)).append(request.prompt)

    def finished(self, request: Request, done: Finished) -> None:
        """Its answer ended: only now its length is known."""
        self._outputs.setdefault(request.tier, deque(maxlen=SAMPLE)).append(done.output)

    def demand(self, now: float) -> dict[str, Demand]:
        """What the tiers asked for in the window before `now`."""
        found = {}
        for tier, seen in self._arrivals.items():
            while seen and seen[0] < now - self.seconds:
                seen.popleft()
            if not seen:
                continue
            sample = np.array(self._prompts[tier], np.float64)
            outputs = self._outputs.get(tier)
            output = float(np.mean(outputs)) if outputs else self.prior_output
            rate = len(seen) / min(self.seconds, max(now, 1.0))
            found[tier] = Demand(rate, float(sample.mean()), float(sample.std() / sample.mean()), output)
        return found


def chunk(cost: StepCost, sequences: float, demand: Demand, gap: float, most: float) -> float:
    """Prompt tokens an iteration may compute beside the decodes and still end within `gap` seconds."""
    if steady_state.iteration(cost, sequences, demand.prompt, demand.output, 1.0) > gap:
        return 0.0
    low, high = 1.0, most
    while high - low > 1.0:
        middle = 0.5 * (low + high)
        fine = steady_state.iteration(cost, sequences, demand.prompt, demand.output, middle) <= gap
        low, high = (middle, high) if fine else (low, middle)
    return low


def sustained(
    cost: StepCost, role: str, demand: Demand, target: SLO, *, tpot: float = math.inf, max_seqs: float = math.inf,
    max_tokens: float = 8192.0,
) -> float:  # fmt: skip
    """Requests a second of this kind that one group serves within its targets.

    `tpot` is the strictest one on board, which binds every iteration. A group that only prefills is bound by the time
    to first token, one that only decodes by the time between tokens. One that does both cuts prompts into chunks, so
    that no iteration is longer than `tpot`: a prompt then takes as many iterations as it has chunks.
    """
    gap = min(target.tpot, tpot) * MARGIN
    prompts = demand.prompts()

    def works(rate: float) -> bool:
        if role == "prefill":
            service = steady_state.prefill_seconds(cost, prompts)
            return steady_state.wait_quantile(rate, service) <= target.ttft * MARGIN
        state = steady_state.steady(
            cost, rate, demand.prompt, demand.output, prefills=role == "both", max_seqs=max_seqs, max_tokens=max_tokens
        )
        if state.seconds > gap:
            return False
        if role == "decode":
            return True
        tokens = chunk(cost, state.sequences, demand, gap, max_tokens)
        if tokens < 1.0:
            return False
        return gap + steady_state.wait_quantile(rate, prompts / tokens * gap) <= target.ttft * MARGIN

    return steady_state.largest(works)

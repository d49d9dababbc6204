"""What the cost model alone says about a replica: how soon it can answer at best, and how much it can do at most.

No schedule beats these bounds, whatever the router, so a layout that they forbid need not be simulated:

- A request is answered no sooner than an idle replica computes those of its tokens that no cache can have, and its
  tokens come no closer than the iterations of a batch of one.
- In an open loop what is due until some moment is computed between the first arrival and then, at best in the
  iterations that cost the least a token. In a closed loop who waits longer asks later, and nothing follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine.targets import Targets, of_tier
from assay.serving.fleet import Instance
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests

Floats = NDArray[np.float64]
SLACK = 1 - 1e-9  # so that a bound which is met to the last bit forbids nothing
NEVER = 1 << 40  # replicas
MOMENTS = 24


def per_request(slo: Targets, requests: Requests) -> tuple[Floats, Floats, Floats]:
    """The targets of each request: seconds to the first token, between tokens, and in all.

    >>> from assay.serving.interface import SLO
    >>> trace = Requests.of([0.0, 1.0], [10, 10], [2, 2])
    >>> [limit.tolist() for limit in per_request(SLO(ttft=1.0), trace)]
    [[1.0, 1.0], [inf, inf], [inf, inf]]
    """
    codes = np.full(len(requests), -1) if requests.tier is None else requests.tier
    table = np.array([of_tier(slo, name) for name in (*requests.tiers, "")], np.float64)[codes]
    return table[:, 0], table[:, 1], table[:, 2]


class Work(NamedTuple):
    """By request: seconds of one replica at best, and when they must be over, from the first arrival on."""

    seconds: Floats
    deadline: Floats

    def replicas(self, excused: int) -> float:
        """How many are needed at least to be through in time, where so many requests may be late.

        Whatever is due until a moment is done before it; of that the longest may be among those excused. Any moment
        gives a bound; a few are tried.
        """
        most = 0.0
        for moment in np.unique(np.quantile(self.deadline, np.linspace(0.0, 1.0, MOMENTS), method="higher")):
            due = np.sort(self.seconds[self.deadline <= moment])
            if 0.0 < moment < math.inf and len(due) > excused:
                most = max(most, float(due[: len(due) - excused].sum()) / float(moment))
        return most


@dataclass(frozen=True)
class Limits:
    """Bounds on replicas of one kind and role that serve a trace."""

    possible: NDArray[np.bool_]  # by request: whether an idle replica would serve it in time
    holds: NDArray[np.bool_]  # by request: whether it fits into memory
    works: tuple[Work, ...]  # what must be done in time: the prompts, and everything; nothing in a closed loop

    @classmethod
    def of(cls, instance: Instance, requests: Requests, slo: Targets, block: int, cached: bool = True) -> Limits:
        """The bounds of replicas like this one, in its role; `cached` where prefixes may be found in a cache."""
        cost, role = instance.cost, instance.role
        have = _cacheable(requests) if cached else np.zeros(len(requests))
        prompt, after = requests.prompt.astype(np.float64), np.maximum(requests.output - 1.0, 0.0)
        several, (ttft, tpot, e2e) = after > 0, per_request(slo, requests)
        first = _prefill_seconds(instance, prompt, have) * (role != "decode")
        gap = _decode_gap(cost, prompt) * (role != "prefill")
        whole = first + after * gap
        possible = (first * SLACK <= ttft) & (whole * SLACK <= e2e) & (~several | (gap * SLACK <= tpot))
        need = -(-(requests.prompt.astype(np.int64) + requests.output) // block) + 1  # at both ends of a split fleet
        holds = need <= instance.room // block
        if requests.after is not None or requests.session is not None:
            return cls(possible, holds, ())
        most = instance.max_seqs if role == "decode" else instance.max_tokens
        computing = _prefill_work(cost, prompt, have, _least_a_token(cost, most)) * (role != "decode")
        decoding = (
            after * (_least_a_token(cost, most) + cost.decode_seq + cost.decode_kv * prompt) * (role != "prefill")
        )
        since = requests.arrival - requests.arrival.min()
        answered = ttft + np.where(several, after * np.where(several, tpot, 0.0), 0.0)
        works = (
            Work(computing, since + np.minimum(ttft, e2e)),
            Work(computing + decoding, since + np.minimum(answered, e2e)),
        )
        return cls(possible, holds, works)

    def replicas(self, attainment: float) -> int:
        """How many are needed at least so that this share of the requests can be served in time."""
        excused = len(self.possible) - math.ceil(attainment * len(self.possible) - 1e-9)
        if int((~(self.possible & self.holds)).sum()) > excused:
            return NEVER
        return max(1, math.ceil(max((work.replicas(excused) for work in self.works), default=0.0) * SLACK))

    def reason(self, attainment: float) -> str:
        """Which bound forbids it, in words."""
        wanted = attainment * len(self.possible)
        if self.holds.sum() < wanted:
            return f"{1 - self.holds.mean():.0%} of the requests do not fit into its memory"
        if (self.possible & self.holds).sum() < wanted:
            return f"{1 - (self.possible & self.holds).mean():.0%} of the requests miss the targets even on an idle one"
        return f"needs at least {self.replicas(attainment)} to do the work in time"


def _cacheable(requests: Requests) -> Floats:
    """Tokens of each prompt that a cache may have: the shared part, but for the last token."""
    prefixes = requests.prefixes
    if prefixes is None:
        return np.zeros(len(requests))
    some = np.diff(prefixes.offsets) > 0
    last = prefixes.segments[np.maximum(prefixes.offsets[1:] - 1, 0)] if len(prefixes.segments) else np.zeros(0, int)
    reach = np.where(some, prefixes.stop[last], 0) if len(last) else np.zeros(len(requests))
    return np.asarray(np.minimum(reach, requests.prompt - 1.0))


def _least_a_token(cost: StepCost, most: int) -> float:
    """Seconds a token of the iteration, of at most so many, that has the fewest."""
    n = np.arange(1, min(most, len(cost.tokens) - 1) + 1)
    return float((cost.tokens[n] / n).min())


def _attention(cost: StepCost, prompt: Floats, have: Floats) -> Floats:
    """Seconds of a prompt's own terms: query-key pairs add up alike however it is cut into chunks."""
    fresh = prompt - have
    pairs = cost.prefill_pair * 0.5 * (prompt**2 - have**2)
    return np.asarray(cost.prefill_fixed + cost.prefill_token * fresh + pairs)


def _prefill_work(cost: StepCost, prompt: Floats, have: Floats, each: float) -> Floats:
    return np.asarray((prompt - have) * each + _attention(cost, prompt, have))


def _prefill_seconds(instance: Instance, prompt: Floats, have: Floats) -> Floats:
    """The soonest that an idle replica has computed what no cache can have of a prompt."""
    cost, fresh = instance.cost, prompt - have
    most = min(instance.chunk_limit or instance.max_tokens, instance.max_tokens)
    cheapest = np.minimum.accumulate(cost.tokens[::-1])[::-1]  # of so many tokens or more
    one = cheapest[np.minimum(fresh, most).astype(np.int64)]
    launches = np.ceil(fresh / most) * min(cost.launch_alone, cost.launch_mixed)
    work = np.maximum(one, fresh * _least_a_token(cost, instance.max_tokens)) + _attention(cost, prompt, have)
    return np.asarray(np.maximum(work + cost.launch, launches))


def _decode_gap(cost: StepCost, prompt: Floats) -> Floats:
    """The least time between two tokens of a request."""
    return np.asarray(cost.tokens[1:].min() + cost.decode_fixed + cost.decode_seq + cost.decode_kv * prompt)

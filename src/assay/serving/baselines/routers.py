"""Routers that papers compare with: the rules that production systems ship, each from its documented formula.

>>> from assay.serving.baselines.routers import BASELINES
>>> sorted(BASELINES)[:4]
['dynamo', 'least-requests', 'linear', 'llm-d']
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.serving.interface import Fleet, Floats, Request
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream


@dataclass
class RoundRobin:
    """In turn: blind to load and to caches."""

    key = "round-robin"
    _last: int = field(default=-1, repr=False)

    def route(self, request: Request, fleet: Fleet) -> int:
        """The next eligible instance."""
        n = len(fleet)
        for _ in range(n):
            self._last = (self._last + 1) % n
            if fleet.eligible is None or fleet.eligible[self._last]:
                break
        return self._last


@dataclass
class LeastRequests:
    """Fewest requests on board: join the shortest queue."""

    key = "least-requests"

    def route(self, request: Request, fleet: Fleet) -> int:
        """The instance with the fewest requests, running and waiting."""
        return fleet.argmin(fleet.batch_size)


@dataclass
class VllmV1:
    """vLLM's data-parallel balancing: least of 4 x waiting + running, whatever the caches hold."""

    key = "vllm-v1"

    def route(self, request: Request, fleet: Fleet) -> int:
        """A waiting request weighs as much as four running ones."""
        return fleet.argmin(4 * fleet.waiting + fleet.running)


@dataclass
class PowerOfTwo:
    """The less loaded of two instances drawn at random (Mitzenmacher, 2001)."""

    key = "power-of-two"
    seed: int = 0

    def __post_init__(self) -> None:
        self._draw = stream(self.seed, "power-of-two")

    def route(self, request: Request, fleet: Fleet) -> int:
        """Two distinct eligible instances are compared by requests on board."""
        able = np.arange(len(fleet)) if fleet.eligible is None else np.flatnonzero(fleet.eligible)
        pair = self._draw.choice(able, size=min(2, len(able)), replace=False)
        load = fleet.batch_size
        return int(min(pair, key=lambda i: load[i]))


@dataclass
class SessionHash:
    """A conversation stays where it began, by consistent choice: the highest of the hashes of (session, instance).

    Rendezvous hashing (Thaler and Ravishankar, 1998): when an instance leaves, only its sessions move. A request
    without a session is spread by its number.
    """

    key = "session-hash"

    def route(self, request: Request, fleet: Fleet) -> int:
        """The eligible instance with the highest hash for this session."""
        name = request.session if request.session is not None else request.id
        seed = name if isinstance(name, int) else int.from_bytes(str(name).encode()[-8:], "big")
        x = np.arange(1, len(fleet) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= np.uint64((seed * 0xBF58476D1CE4E5B9) & (2**64 - 1))
        x ^= x >> np.uint64(31)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(29)
        return fleet.argmin(~x)


@dataclass
class Linear:
    """A weighted sum, as most cache-aware routers ship it: w (1 - hit share) + (1 - w) load.

    Load is requests on board over the fleet's largest, so that both terms lie in 0..1. The weight is the knob that
    users are left with; a study that compares with it must sweep it.
    """

    key = "linear"
    weight: float = 0.5

    def route(self, request: Request, fleet: Fleet) -> int:
        """The least weighted sum of missing prefix and load."""
        load = fleet.batch_size
        missing = fleet.new_prefill_tokens(request) / request.prompt
        return fleet.argmin(self.weight * missing + (1 - self.weight) * load / max(load.max(), 1))


@dataclass
class LlmD:
    """llm-d's default scorers: prefix, queue and KV memory, weighted 2 : 2 : 1; the highest sum wins."""

    key = "llm-d"
    weights: tuple[float, float, float] = (2.0, 2.0, 1.0)

    def route(self, request: Request, fleet: Fleet) -> int:
        """Prefix: share of the prompt found. Queue: 1 for the shortest, 0 for the longest. KV: share free."""
        queue = fleet.waiting
        spread = queue.max() - queue.min()
        short: Any = (queue.max() - queue) / spread if spread else 1.0
        prefix, waiting, memory = self.weights
        return fleet.argmin(
            -(prefix * fleet.match(request) / request.prompt + waiting * short + memory * fleet.kv_free)
        )


@dataclass
class Dynamo:
    """NVIDIA Dynamo's KV router with its defaults: what is to prefill plus what is to keep, least sum.

    cost = scale x max(0, prompt tokens sent there without an answer yet, and this prompt's, - credit x those cached)
    + tokens of the prompts on board with this one's, what they share counted once (its "potential decode blocks").
    All of it the router counts itself: a prompt is unanswered as a whole until its first token, and on board from the
    moment it is sent. Dynamo counts in blocks, which is the same order. It breaks ties at random, this in rotation.
    """

    key = "dynamo"
    scale: float = 1  # prefill_load_scale
    credit: float = 1  # overlap_score_credit

    def route(self, request: Request, fleet: Fleet) -> int:
        """Least tokens to prefill and to keep."""
        if self.scale == self.credit == 1:  # the prompt itself adds the same everywhere
            return fleet.argmin(fleet.unanswered - fleet.match(request) + fleet.prompt_tokens(request))
        new = np.maximum(fleet.unanswered + request.prompt - self.credit * fleet.match(request), 0)
        return fleet.argmin(self.scale * new + fleet.prompt_tokens(request))


@dataclass
class SglangCacheAware:
    """SGLang's router: follow the longest prefix while the load is balanced, else the shortest queue.

    Balanced means max - min <= 64 requests or max <= 1.5 min. A prompt found to less than 30 % anywhere goes to the
    instance that was given the fewest distinct tokens so far (its smallest tree).
    """

    key = "sglang-cache-aware"
    threshold: float = 0.3
    absolute: int = 64
    relative: float = 1.5
    _tree: Floats | None = field(default=None, repr=False)

    def route(self, request: Request, fleet: Fleet) -> int:
        """Shortest queue, longest prefix, or smallest tree."""
        if self._tree is None or len(self._tree) != len(fleet):
            self._tree = np.zeros(len(fleet))
        load, found = fleet.batch_size, fleet.match(request)
        most, least = int(load.max()), int(load.min())
        if most - least > self.absolute and most > self.relative * least:
            chosen = fleet.argmin(load)
        elif found.max() > self.threshold * request.prompt:
            chosen = fleet.argmin(-found)
        else:
            chosen = fleet.argmin(self._tree)
        self._tree[chosen] += request.prompt - found[chosen]
        return chosen


@dataclass
class LoadAware:
    """The vLLM production stack's rule: share of the prompt found minus beta x (load - mean) / max(1, mean)."""

    key = "loadaware"
    beta: float = 1.0

    def route(self, request: Request, fleet: Fleet) -> int:
        """The highest difference wins."""
        load = fleet.batch_size
        mean = load.mean()
        return fleet.argmin(self.beta * (load - mean) / max(1.0, mean) - fleet.match(request) / request.prompt)


@dataclass
class PredictedTtft:
    """Predict the time to first token from the cost model and take the least: what a simulator in the router does.

    Prompt tokens before this one and its own uncached ones go through at the rate of a full batch that the decodes
    share, and the sequences on board each cost one decode of a token in every iteration that takes.
    """

    key = "predicted-ttft"
    needs = ("costs",)
    budget: int = 8192
    _groups: list[tuple[StepCost, Any]] | None = field(default=None, repr=False)
    _seen: Any = field(default=None, repr=False)

    def route(self, request: Request, fleet: Fleet) -> int:
        """The least predicted time to first token."""
        new, running = fleet.new_prefill_tokens(request), fleet.running
        times = np.empty(len(fleet))
        for cost, able in self._kinds(fleet):
            budget = min(self.budget, len(cost.tokens) - 1)
            share = np.maximum(budget - running[able], budget // 8)
            whole, rest = np.divmod(fleet.prefill_tokens[able] + new[able], share)
            step = cost.tokens[budget] + cost.decode_kv * fleet.kv_tokens[able]
            pairs = new[able] * (request.prompt - 0.5 * new[able])
            last = cost.tokens[np.minimum(rest + running[able], budget)]
            times[able] = whole * step + last + cost.prefill_pair * pairs
        return fleet.argmin(times)

    def _kinds(self, fleet: Fleet) -> list[tuple[StepCost, Any]]:
        """Instances of equal cost together: one pass of array arithmetic each."""
        if self._groups is None or self._seen is not fleet.costs:
            kinds: dict[int, list[int]] = {}
            for i, cost in enumerate(fleet.costs):
                kinds.setdefault(id(cost), []).append(i)
            self._groups = [(fleet.costs[members[0]], np.array(members)) for members in kinds.values()]
            self._seen = fleet.costs
        return self._groups


BASELINES: dict[str, Any] = {
    router.key: router
    for router in (
        RoundRobin,
        LeastRequests,
        VllmV1,
        PowerOfTwo,
        SessionHash,
        Linear,
        LlmD,
        Dynamo,
        SglangCacheAware,
        LoadAware,
        PredictedTtft,
    )
}

"""Data-parallel workers that iterate together: what such a group costs, how uneven it is, and plain rules to fill it.

Attention runs on every worker for its own sequences; the experts of the model are spread over all of them, so every
layer of every step ends in an exchange that waits for the slowest. A worker's own share of a step is reading the KV
of its sequences, and that is what can differ between workers.

>>> from assay.serving.baselines.routers import RoundRobin
>>> group = workers("h200:qwen3-30b-a3b", 16, slots=64)
>>> len(group), group.lockstep
(16, (16,))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine.outcome import Outcome
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import Fleet, Floats, Hit, Ints, Request
from assay.sim.llm_cost import StepCost

WIDEST = 128  # ranks that a model's experts are cut over at most; further workers hold copies of busy experts
OWN = ("decode_seq", "decode_kv", "decode_window", "prefill_token", "prefill_pair", "prefill_kv", "prefill_pair_window")


@cache
def worker_cost(name: str, count: int) -> StepCost:
    """One worker's part of a step of `count` workers that share the experts.

    What depends on tokens (projections, experts, the exchange) is taken at `count` times the worker's own tokens: the
    exchange evens it out. What depends on KV is the worker's own.
    """
    from assay.sim.roofline import layout

    ranks = min(1 << (count.bit_length() - 1), WIDEST)
    whole = layout(f"{name}:ep{ranks}")
    own = {field: getattr(whole, field) * ranks for field in OWN}
    return replace(whole, tokens=whole.tokens[::ranks].copy(), kv_tokens=whole.kv_tokens // ranks, energy=None, **own)


def workers(name: str, count: int, slots: int) -> FleetSpec:
    """`count` workers in lock-step, each with room for `slots` sequences.

    >>> workers("h200:qwen3-30b-a3b", 144, slots=32).instances[0].max_seqs
    32
    """
    cost = worker_cost(name, count)
    most = len(cost.tokens) - 1
    one = Instance(cost, max_seqs=slots, max_tokens=min(most, 8192), name=name)
    return FleetSpec((one,) * count, lockstep=(count,), name=f"{count} x {name}, experts shared")


class Delivered:
    """A prompt's KV was computed elsewhere and comes with the request: a decode worker computes the last token only.

    >>> Delivered().lookup(Request(0, 0.0, prompt=500), 0, 0).tokens
    499
    """

    def lookup(self, request: Request, instance: int, prefix: int) -> Hit:
        """All of the prompt but its last token."""
        return Hit(request.prompt - 1 - prefix)


# ------------------------------------------------------------------------------------------ plain rules


class Outstanding:
    """Prompt tokens sent to each worker that it has not admitted yet.

    A worker tells how many requests wait, not how long they are; whoever sent them knows. Workers admit in the order
    of arrival, so those that wait are the last ones sent.
    """

    def __init__(self) -> None:
        self._sent: dict[int, list[int]] = {}

    def send(self, request: Request, worker: int) -> None:
        """A request was sent to a worker."""
        self._sent.setdefault(worker, []).append(request.prompt)

    def load(self, fleet: Fleet) -> Floats:
        """KV tokens of every worker once it has admitted all that it was sent."""
        tokens = np.zeros(len(fleet))
        for worker, sent in list(self._sent.items()):
            waiting = int(fleet.waiting[worker])
            if waiting:
                del sent[: len(sent) - waiting]
                tokens[worker] = sum(sent)
            else:
                del self._sent[worker]
        return np.asarray(fleet.kv_tokens + np.maximum(tokens, fleet.prefill_tokens), dtype=np.float64)


class LeastKv:
    """Fewest tokens of KV on board, with those of prompts on their way: greedy on what a step reads."""

    key = "least-kv"

    def __init__(self) -> None:
        self._outstanding = Outstanding()

    def route(self, request: Request, fleet: Fleet) -> int:
        """The worker with the least load."""
        worker = fleet.argmin(self._outstanding.load(fleet))
        self._outstanding.send(request, worker)
        return worker


class _Ahead(Fleet):
    """The fleet with what was just sent counted in; caches are as they are."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._turn, self.now = fleet, fleet._turn, fleet.now
        self.running, self.waiting = fleet.running.copy(), fleet.waiting.copy()
        self.prefill_tokens, self.kv_tokens = fleet.prefill_tokens.copy(), fleet.kv_tokens.copy()

    def match(self, request: Request) -> Ints:
        """Leading prompt tokens that each worker has in its cache."""
        return self._fleet.match(request)


@dataclass
class Pooled:
    """Any router, but deciding late: requests wait in one pool, oldest first, until a worker has a free slot.

    What a plain rule gains by the pool alone, without choosing which request goes.
    """

    router: Any
    slots: int = 256

    @property
    def key(self) -> str:
        """The rule's own name, and that it waits."""
        return f"{self.router.key}, pooled"

    def assign(self, queue: list[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        """The oldest go where the rule says, among workers with a free slot."""
        free = self.slots - fleet.running - fleet.waiting
        most = int(np.maximum(free, 0).sum())
        if not most:
            return []
        seen = _Ahead(fleet)
        sent = []
        for request in queue[:most]:
            seen.eligible = free > 0
            i = self.router.route(request, seen)
            free[i] -= 1
            seen.running[i] += 1
            seen.kv_tokens[i] += request.prompt
            sent.append((request, i))
        fleet._turn = seen._turn
        return sent


# ------------------------------------------------------------------------------------- what came of it


class Evenness(NamedTuple):
    """How even a lock-step group was while it was busy, and what it put through."""

    load_gap: float  # mean over time of (largest load - mean load) / largest load
    idle_share: float  # share of the workers' time spent waiting for the slowest
    tokens_per_second: float
    running_mean: float  # sequences on board, all workers
    step_mean: float  # seconds


def evenness(outcome: Outcome, begin: float = 0.15, end: float = 0.75) -> Evenness:
    """Read off the span table, between the moments at which these shares of all tokens had been generated.

    Filling up and draining are left out: there nobody has a choice. Loads are in blocks of KV, at the end of a span.
    """
    spans = outcome.spans
    starts, step = np.unique(spans["start"], return_inverse=True)
    count = len(outcome.fleet)
    loads = np.zeros((len(starts), count))
    loads[step, spans["instance"]] = spans["kv_blocks"]
    m = _per_step(step, spans["iterations"], len(starts))
    seconds = m * _per_step(step, spans["alpha"], len(starts))
    seconds += _per_step(step, spans["gamma"], len(starts)) * 0.5 * m * (m - 1)
    decoded = np.bincount(step, spans["decodes"] * spans["iterations"], len(starts))
    done = np.cumsum(decoded) / decoded.sum()
    window = (done >= begin) & (done <= end)
    loads, weights = loads[window], seconds[window] / seconds[window].sum()
    largest = np.maximum(loads.max(axis=1), 1.0)
    gap = float((weights * (1.0 - loads.mean(axis=1) / largest)).sum())
    running = np.bincount(step, spans["decodes"], len(starts))[window]
    cost = outcome.fleet.instances[0].cost
    tokens_kv = (largest - loads.mean(axis=1)) * outcome.fleet.block
    waited = float((cost.decode_kv * tokens_kv * m[window]).sum() / seconds[window].sum())
    return Evenness(
        gap, waited, float(decoded[window].sum() / seconds[window].sum()), float((weights * running).sum()),
        float(seconds[window].sum() / m[window].sum()),
    )  # fmt: skip


def _per_step(step: NDArray[np.int64], values: NDArray[Any], count: int) -> NDArray[np.float64]:
    """What all rows of a step have in common."""
    column = np.zeros(count)
    column[step] = values
    return column

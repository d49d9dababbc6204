"""What a request takes with nobody else there: the targets that it can never meet, whatever the policy and the rate.

Each request is served alone, by every kind of instance the fleet has, with all of its prompt cached that came before
it in the trace. Under load it can only take longer. So what misses a target here misses it at any rate, and to ask at
which one such requests meet it has no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import SLO, Fleet, Hit, Request
from assay.workloads.prefixes import hits
from assay.workloads.requests import Requests

Floats = NDArray[np.float64]


class Times(NamedTuple):
    """Seconds of each request, alone; infinity where it fits no instance."""

    ttft: Floats
    tpot: Floats
    e2e: Floats


class Never(NamedTuple):
    """Requests of a tier that miss one target even alone: how many, and the one with the shortest prompt."""

    tier: str
    target: str
    seconds: float
    requests: int
    smallest_prompt: int
    its_output: int
    best: float  # seconds that this one takes; infinity: it fits no instance


def times_alone(requests: Requests, fleet: FleetSpec, prefix_cache: bool = True) -> Times:
    """The best that any kind of instance does for each request, one request at a time.

    >>> from assay.serving import parse
    >>> alone = times_alone(Requests.of([0.0, 0.0], [100, 100_000], [2, 2]), parse("2xh200:qwen3-8b"))
    >>> bool(alone.ttft[0] < 0.1 < 1 < alone.ttft[1])
    True
    """
    reuse = np.zeros(len(requests), np.int64)
    if prefix_cache and requests.prefixes is not None:
        reuse = hits(requests.prefixes, requests.prompt, answers=True)[0]
    rows = np.stack([requests.prompt, requests.output, reuse], axis=1).astype(np.int64)
    kinds, which = np.unique(rows, axis=0, return_inverse=True)
    best = np.full((3, len(requests)), np.inf)
    if reuse.any():  # what is cached where it is decoded need not be sent there
        fleet = replace(fleet, overlap=1.0)
    for instances in _servers(fleet):
        took = _one_by_one(kinds, replace(fleet, instances=instances, lockstep=()))[:, which.ravel()]
        best = np.minimum(best, np.where(_may(requests, instances), took, np.inf))
    return Times(*best)


def never(requests: Requests, alone: Times, slo: SLO | Mapping[str, SLO]) -> tuple[NDArray[np.bool_], list[Never]]:
    """Which requests can never meet all their targets, and for each tier and target what is known of them.

    >>> trace = Requests.of([0.0, 0.0, 0.0], [10, 900, 700], [2, 2, 2])
    >>> alone = Times(np.array([0.1, 3.0, 2.0]), np.zeros(3), np.array([0.2, 3.1, 2.1]))
    >>> lost, [found] = never(trace, alone, SLO(ttft=1.0))
    >>> lost.tolist(), found.target, found.requests, found.smallest_prompt, found.best
    ([False, True, True], 'ttft', 2, 700, 2.0)
    """
    lost, found = np.zeros(len(requests), np.bool_), []
    tiers = ("",) if isinstance(slo, SLO) else (*requests.tiers, "")
    for code, tier in enumerate(tiers):
        here = np.ones(len(requests), np.bool_)
        if not isinstance(slo, SLO) and requests.tier is not None:
            here = requests.tier == (code if tier else -1)
        limits = slo if isinstance(slo, SLO) else slo.get(tier, slo.get("", SLO()))
        for target, took in alone._asdict().items():
            limit = getattr(limits, target)
            misses = np.flatnonzero(here & (took > limit) & (limit < np.inf))
            if len(misses):
                first = misses[np.argmin(requests.prompt[misses])]
                lost[misses] = True
                sizes = int(requests.prompt[first]), int(requests.output[first])
                found.append(Never(tier, target, limit, len(misses), *sizes, float(took[first])))
    return lost, found


@dataclass(frozen=True)
class _Known:
    """A cache layer that holds so many tokens of each prompt."""

    tokens: list[int]

    def lookup(self, request: Request, instance: int, prefix: int) -> Hit:
        """What is known of this request."""
        return Hit(self.tokens[int(request.id)])


class _First:
    """Sends every request to the first instance that may take it."""

    def route(self, request: Request, fleet: Fleet) -> int:
        return 0 if fleet.eligible is None else int(np.argmax(fleet.eligible))


def _one_by_one(kinds: NDArray[np.int64], fleet: FleetSpec) -> Floats:
    """Times of requests (prompt, output, cached tokens), each sent a second after the one before it has ended."""
    n = len(kinds)
    chain = replace(
        Requests.of(np.zeros(n), kinds[:, 0], kinds[:, 1]),
        after=np.arange(-1, n - 1, dtype=np.int32),
        think=np.ones(n),
    )
    cached = np.minimum(kinds[:, 2], kinds[:, 0] - 1).tolist()
    outcome = simulate(chain, fleet, _First(), cache=_Known(cached), prefix_cache=False, record=False)
    took = np.full((3, n), np.inf)
    took[:, outcome.served] = outcome.ttft, outcome.tpot, outcome.e2e
    return took


def _servers(fleet: FleetSpec) -> list[tuple[Instance, ...]]:
    """The least that serves a request, of every kind: one instance, or one that prefills and one that decodes."""
    different: dict[tuple[Any, ...], Instance] = {}
    for one in fleet.instances:
        values = ((field.name, getattr(one, field.name)) for field in fields(one))
        different.setdefault(tuple(id(value) if name == "cost" else value for name, value in values), one)
    kinds = list(different.values())
    firsts = [one for one in kinds if one.role == "prefill"]
    seconds = [one for one in kinds if one.role != "prefill"]
    return [(one,) for one in kinds if one.role == "both"] + [(a, b) for a in firsts for b in seconds]


def _may(requests: Requests, instances: tuple[Instance, ...]) -> NDArray[np.bool_]:
    """Which requests these instances may serve: those for their model, and those for none."""
    if requests.model is None:
        return np.ones(len(requests), np.bool_)
    served = np.array([*(all(one.model == name for one in instances) for name in requests.models), True])
    return np.asarray(served[requests.model])

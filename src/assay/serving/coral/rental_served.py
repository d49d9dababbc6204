"""A plan in front of requests: rented replicas served in the simulator, and what met its targets.

>>> from assay.serving.coral.gpu_rental import solve
>>> from assay.serving.interface import SLO
>>> from assay.serving.coral.replica_designs import Lengths, designs
>>> from assay.workloads.gpu_market import Config
>>> chat = Service("llama-3-8b", SLO(ttft=1.0, tpot=0.05), Lengths(500, 20, longest=600))
>>> rental = solve([designs(chat, [Config("l40s", 1)])], [1.0], [4], [2.0])
>>> trace = Requests.of([0.0, 0.2, 0.9], [500] * 3, [20] * 3, model=np.zeros(3, np.int32), models=("llama-3-8b",))
>>> met(serve(rental, [chat], trace), [chat], trace).tolist()
[3.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.serving.coral.gpu_rental import Rental
from assay.serving.coral.rental_schedule import Rollout
from assay.serving.coral.replica_designs import Service
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec
from assay.serving.interface import Fleet, Request
from assay.sim.random import stream
from assay.workloads.requests import Requests

Floats = NDArray[np.float64]


@dataclass
class ByShare:
    """LMETRIC among instances that differ: new prefill tokens x requests on board, as a share of those planned.

    A prefill instance that is planned for three requests is as full with two of them as one that also decodes is with
    a hundred of its hundred and fifty. Prompts that were prefilled apart are decoded apart.
    """

    loads: Floats
    decodes: NDArray[np.bool_]  # who only decodes
    key = "lmetric-by-share"

    @classmethod
    def of(cls, fleet: FleetSpec, loads: Floats) -> ByShare:
        """For the instances of a fleet. One that the plan keeps idle is full with its first request."""
        return cls(np.maximum(loads, 1e-6), np.array([instance.role == "decode" for instance in fleet.instances]))

    def route(self, request: Request, fleet: Fleet) -> int:
        """Ties go to the smaller share of the plan."""
        share = (fleet.batch_size + 1) / self.loads
        return fleet.argmin(fleet.new_prefill_tokens(request) * share, share)

    def route_decode(self, request: Request, fleet: Fleet) -> int:
        """A prompt that is computed has nothing to prefill."""
        share = (fleet.batch_size + 1) / self.loads
        return fleet.argmin(np.where(self.decodes, share, 1e9 * share))


def serve(rental: Rental, services: Sequence[Service], requests: Requests, router: Any = None) -> Outcome | None:
    """The plan in the simulator; None where it rents nothing."""
    if not rental.replicas:
        return None
    fleet = rental.fleet(services)
    return simulate(requests, fleet, router or ByShare.of(fleet, rental.loads()), record=False, patience=1.0)


def met(outcome: Outcome | None, services: Sequence[Service], requests: Requests) -> Floats:
    """For each model, how many of its requests met both targets; those that fitted nowhere did not."""
    good = np.zeros(len(requests), np.bool_)
    assert requests.model is not None
    if outcome is not None:
        limits = np.array([service.slo[:2] for service in services])[requests.model[outcome.served]]
        good[outcome.served] = (outcome.ttft <= limits[:, 0]) & (outcome.tpot <= limits[:, 1])
    counts: Floats = np.bincount(requests.model, weights=good, minlength=len(services)).astype(np.float64)
    return counts


def admitted(requests: Requests, share: Floats, seed: int) -> Requests:
    """Of each model's requests this share, drawn at random: what a gateway lets in where not all can be served."""
    assert requests.model is not None
    kept = stream(seed, "coral", "admission").random(len(requests)) < share[requests.model]
    columns = {name: getattr(requests, name)[kept] for name in ("arrival", "prompt", "output", "model")}
    return replace(requests, **columns)


def peak(requests: Requests, models: int, parts: int = 4) -> Floats:
    """Each model's highest rate over the quarters of a trace: what an operator plans for."""
    assert requests.model is not None
    quarter = np.minimum((requests.arrival / max(requests.seconds, 1e-9) * parts).astype(int), parts - 1)
    counts = np.zeros((parts, models))
    np.add.at(counts, (quarter, requests.model), 1.0)
    highest: Floats = counts.max(axis=0) * parts / requests.seconds
    return highest


def rolled_out(rollout: Rollout, services: Sequence[Service], requests: Requests) -> float:
    """Share of a trace's requests that met their targets under a schedule of leases, cold starts included."""
    fleet = rollout.fleet()
    router = ByShare.of(fleet, rollout.loads())
    outcome = simulate(requests, fleet, router, planner=rollout, record=False, patience=1.0)
    return float(met(outcome, services, requests).sum() / len(requests))

"""A plan that follows demand and market: leases of replicas over time, and the planner that carries them out.

Every `period` seconds, or when some demand moves by a tenth or a node is taken away, the program is solved again.
Replicas that stay are kept. A new one serves only when its weights are loaded; the ones it replaces go on until then
where the market has nodes for both.

>>> from assay.serving.coral.rental_baselines import joint
>>> from assay.workloads.gpu_market import generate
>>> market = generate(["1xl4"], churn=0.0, sold_out=0.0)
>>> leases = follow(joint, [[Design(((0, 1),), 2.0)]], market, np.array([0.0, 60.0]), np.array([[3.0], [7.0]]))
>>> [(lease.count, lease.start, lease.ready) for lease in leases]
[(2, 0.0, 0.0), (2, 60.0, 180.0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.serving.coral.gpu_rental import Choices, Rental, instance, network, started
from assay.serving.coral.rental_baselines import Rule
from assay.serving.coral.replica_designs import Design, Service
from assay.serving.engine.control import Control
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import Fleet, Request
from assay.workloads.gpu_market import Market, Offer

Floats = NDArray[np.float64]

PERIOD = 300.0
CHANGE = 0.1
COLD_START = 120.0  # seconds from the lease to the first request: boot, load weights (assumed)


@dataclass
class Lease:
    """Some replicas of a design, from the time they are rented; they serve from `ready` to `end`."""

    model: int
    design: Design
    count: int
    start: float
    ready: float
    end: float = np.inf


def follow(
    rule: Rule,
    choices: Choices,
    market: Market,
    times: Floats,
    demand: Floats,
    *,
    cold_start: float = COLD_START,
    period: float = PERIOD,
    change: float = CHANGE,
    headroom: float = 1.0,
    **options: Any,
) -> list[Lease]:
    """Plan at `times`, where demand (a row each, requests a second) is known up to then.

    What runs at the first time is ready. `period` infinite and `change` infinite: only what the market takes is
    replaced.
    """
    leases: list[Lease] = []
    now: Rental | None = None
    planned, last = demand[0], -np.inf
    for time, wanted in zip(times.tolist(), demand, strict=True):
        offer = market.at(time)
        lost = now is not None and bool((now.nodes(len(offer.price)) > offer.available).any())
        moved = float(np.max(np.abs(wanted - planned) / np.maximum(planned, 1e-9)))
        if now is not None and not lost and moved <= change and time - last < period:
            continue
        fresh = rule(choices, offer, wanted * headroom, previous=now, **options)
        _exchange(leases, fresh, now, time, cold_start if now is not None else 0.0, offer)
        now, planned, last = fresh, wanted, time
    return leases


def _exchange(
    leases: list[Lease], fresh: Rental, before: Rental | None, time: float, cold_start: float, offer: Offer
) -> None:
    """End what the new plan has no use for, begin what it adds."""
    kinds = len(offer.price)
    gone = [] if before is None else started(before, fresh)  # those that ran and shall not
    new = started(fresh, before)
    beside = fresh.nodes(kinds) + (before.nodes(kinds) if before is not None else 0)
    beside = beside - (0 if before is None else _common(fresh, before).nodes(kinds))
    both = bool((beside <= offer.available).all())
    for model, design, count in gone:
        _end(leases, model, design, count, time + cold_start if both and new else time)
    leases += [Lease(model, design, count, time, time + cold_start) for model, design, count in new]


def _common(one: Rental, other: Rental) -> Rental:
    held = {(m, d): n for m, d, n in other.replicas}
    same = [(m, d, min(n, held.get((m, d), 0))) for m, d, n in one.replicas]
    return replace(one, replicas=tuple(entry for entry in same if entry[2]))


def _end(leases: list[Lease], model: int, design: Design, count: int, time: float) -> None:
    """The youngest leases of this design end first: they may not even be ready."""
    for lease in sorted(leases, key=lambda lease: -lease.start):
        if count and lease.model == model and lease.design == design and lease.end == np.inf:
            if lease.count > count:
                leases.append(replace(lease, count=count, end=time))
                lease.count -= count
                return
            lease.end = time
            count -= lease.count


@dataclass(frozen=True)
class Account:
    """What leases cost and carried over a stretch of time."""

    usd: float
    served: float  # of all requests, the share for which there was capacity
    starts: int  # replicas


def account(leases: Sequence[Lease], market: Market, times: Floats, demand: Floats) -> Account:
    """Rent and capacity, step by step: row i of `demand` is what came from `times[i]` to the next."""
    step = float(times[1] - times[0]) if len(times) > 1 else PERIOD
    usd = carried = 0.0
    for time, wanted in zip(times.tolist(), demand, strict=True):
        price = market.at(time).price
        ready = np.zeros(demand.shape[1])
        for lease in leases:
            until = min(lease.end, time + step)
            held, serving = (max(until - max(since, time), 0.0) for since in (lease.start, lease.ready))
            usd += lease.count * sum(n * float(price[c]) for c, n in lease.design.nodes) * held / 3600
            ready[lease.model] += lease.count * lease.design.rate * serving / step
        carried += float(np.minimum(ready, wanted).sum())
    first = float(times[0])
    return Account(usd, carried / float(demand.sum()), sum(le.count for le in leases if le.start > first))


# ------------------------------------------------------------------------------- carried out by the engine


@dataclass
class Rollout:
    """Lets every instance of a list of leases serve for as long as its lease says.

    An instance whose lease ends stops after its iteration; its requests are computed again elsewhere, and so is a
    prompt that finds nobody to decode it. A request for which nobody is ready waits at the door; one for which nobody
    ever will be is refused.
    """

    leases: Sequence[Lease]
    services: Sequence[Service]
    period: float = 5.0
    key = "rollout"
    spans: list[tuple[float, float]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def fleet(self) -> FleetSpec:
        """All instances that ever serve."""
        instances: list[Instance] = []
        for lease in self.leases:
            for part in lease.design.parts:
                count = part.count * lease.count
                instances += [instance(self.services[lease.model].model, part)] * count
                self.spans += [(lease.ready, lease.end)] * count
        return FleetSpec(tuple(instances), bandwidth=network(lease.design for lease in self.leases), name="leases")

    def loads(self) -> Floats:
        """The requests on board that each instance is planned for."""
        parts = [(part.load, part.count * le.count) for le in self.leases for part in le.design.parts]
        return np.repeat([load for load, _ in parts], [count for _, count in parts])

    def begin(self, fleet: Fleet, control: Control) -> None:
        """Who serves from the start."""
        self._on = np.ones(len(self.spans), np.bool_)
        self._look(control)

    def plan(self, fleet: Fleet, control: Control) -> None:
        """Begin and end what is due; let in who waited."""
        self._look(control)
        waiting, self.held = self.held, []
        for r in waiting:
            if self._served_now(r, control):
                control.send(r, control.route(r))
            elif self._served_later(r, control):
                self.held.append(r)
            else:
                control.refuse(r)

    def arrived(self, request: Request, fleet: Fleet, control: Control) -> bool:
        """Hold a request back where its model's instances are not ready, or nobody would decode its prompt."""
        r = int(request.id)
        if self._served_now(r, control):
            return False
        self.held.append(r)
        return True

    def stranded(self, request: Request, fleet: Fleet, control: Control) -> None:
        """A request under way that nobody takes any more waits at the door again."""
        self.held.append(int(request.id))

    def _look(self, control: Control) -> None:
        for i, (ready, end) in enumerate(self.spans):
            on = ready <= control.now < end
            if on != self._on[i]:
                self._on[i] = on
                control.accepting(i, on)
                if not on and control.now >= end:
                    control.halt([i], lambda i=i: self._move(i, control))  # type: ignore[misc]

    def _move(self, i: int, control: Control) -> None:
        for item in control.withdraw(i, keep=False):
            if self._served_now(item.request, control):
                control.send(item.request, control.route(item.request))
            else:
                self.held.append(item.request)

    def _served_now(self, r: int, control: Control) -> bool:
        """Whether somebody who accepts serves a request whole, or one prefills and another decodes."""
        return _whole(control.roles[control.holds(r) & self._on])

    def _served_later(self, r: int, control: Control) -> bool:
        """Whether that is so when one of the later leases gets ready."""
        able, (ready, end) = control.holds(r), np.array(self.spans).T
        return any(
            _whole(control.roles[able & (ready <= moment) & (moment < end)]) for moment in ready[ready > control.now]
        )


def _whole(roles: NDArray[np.str_]) -> bool:
    return bool((roles == "both").any() or ((roles == "prefill").any() and (roles == "decode").any()))

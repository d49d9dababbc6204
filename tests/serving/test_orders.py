"""Orders are keys that are set once; the engine admits the smallest first."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.serving.baselines.orders import (
    ORDERS,
    REMEMBERED,
    SHARES,
    TIERS,
    Aging,
    EarliestDeadline,
    Fair,
    ShortestFirst,
    Weighted,
)
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine import components
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import uniform
from assay.serving.interface import Finished, Request
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.requests import Requests

NAMES = tuple(TIERS)


def flood(count: int, seed: int = 0, outputs: Any = None) -> Requests:
    """Everybody comes in the first second; serving takes minutes."""
    random = stream(seed, "orders")
    tier = random.integers(0, 3, count).astype(np.int32)
    output = random.integers(5, 50, count) if outputs is None else outputs
    return Requests.of(np.sort(random.random(count)), np.full(count, 20), output, tier=tier, tiers=NAMES)


def served(order: Any, trace: Requests, seats: int = 4) -> Any:
    cost = StepCost(tokens=0.05 + 1e-4 * np.arange(9000), kv_tokens=100_000)
    outcome = simulate(trace, uniform(1, cost, max_seqs=seats), RoundRobin(), order=order, prefix_cache=False)
    assert np.isfinite(outcome.e2e).all()
    return outcome


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10**6)), min_size=2, max_size=30),
    st.sampled_from([0.001, 0.01, 0.1]),
    st.integers(0, 10**6),
)
def test_aging_by_a_key_set_once_is_aging_at_any_time(rows: list[tuple[str, int]], rate: float, later: int) -> None:
    """The score rank - rate x waited, computed afresh at any later moment, gives the same order."""
    order = Aging(rate)
    requests = [Request(n, float(time), 10, tier=tier) for n, (tier, time) in enumerate(rows)]
    now = max(request.arrival for request in requests) + later
    keys = [order.key(request, request.arrival) for request in requests]
    scores = [TIERS[request.tier] - rate * (now - request.arrival) for request in requests]
    for a in range(len(requests)):
        for b in range(len(requests)):
            if scores[a] < scores[b] - 1e-6:
                assert keys[a] < keys[b]


def test_shares_hold_while_all_queues_are_backlogged() -> None:
    trace = flood(1500)
    outcome = served(Weighted(), trace)
    assert trace.tier is not None
    tiers = trace.tier[np.argsort(outcome.records["admitted"], kind="stable")]
    early = tiers[20:400]  # after that premium, the fastest served, begins to run out
    for number, name in enumerate(NAMES):
        assert abs((early == number).mean() - SHARES[name]) < 0.025, name


def test_a_tier_that_was_away_cannot_claim_the_past() -> None:
    order, done = Weighted(), Finished(10, 0.1, 1.0, 0, 0)
    batch = [Request(n, 0.0, 10, tier="batch") for n in range(100)]
    keys = [order.key(request, 0.0) for request in batch]
    for request in batch[:90]:
        order.finished(request, done)
    premium = [order.key(Request(200 + n, 1.0, 10, tier="premium"), 1.0) for n in range(5)]
    assert premium[0] >= keys[89]


DONE = Finished(10, 0.1, 1.0, 0, 0)


class Backlog:
    """One server that takes the smallest key, of equal ones whoever came first."""

    def __init__(self, order: Any) -> None:
        self.order, self.heap, self.number = order, list[tuple[float, int, Request]](), 0

    def send(self, tenant: str, count: int) -> None:
        for _ in range(count):
            request = Request(self.number, 0.0, 10, tenant=tenant)
            heapq.heappush(self.heap, (self.order.key(request, 0.0), self.number, request))
            self.number += 1

    def serve(self, count: int) -> list[str]:
        tenants = []
        for _ in range(count):
            request = heapq.heappop(self.heap)[2]
            self.order.finished(request, DONE)
            tenants.append(request.tenant)
        return tenants


def within_one(tenants: list[str], *names: str) -> bool:
    """Whether at no time one of the tenants was served two requests more than another."""
    served = Counter(dict.fromkeys(names, 0))
    for tenant in tenants:
        served[tenant] += 1
        if max(served.values()) - min(served.values()) > 1:
            return False
    return True


def test_a_tenant_that_sends_ten_times_as_much_is_served_as_often() -> None:
    backlog = Backlog(Fair())
    for _ in range(20):
        backlog.send("loud", 10)
        backlog.send("quiet", 1)
    assert within_one(backlog.serve(40), "loud", "quiet")
    assert set(backlog.serve(180)) == {"loud"}


def test_a_tenant_that_was_away_shares_from_now_on() -> None:
    backlog = Backlog(Fair())
    backlog.send("loud", 1000)
    backlog.serve(500)
    backlog.send("back", 300)
    assert within_one(backlog.serve(400), "loud", "back")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.integers(0, 8)), max_size=30))
def test_equal_shares_hold_over_any_time_in_which_all_wait(bursts: list[tuple[str, int, int]]) -> None:
    backlog = Backlog(Fair())
    for tenant in "abc":
        backlog.send(tenant, 200)
    tenants = []
    for tenant, more, count in bursts:
        backlog.send(tenant, more)
        tenants += backlog.serve(count)
    assert within_one(tenants, "a", "b", "c")


def test_shares_of_tenants_may_differ() -> None:
    backlog = Backlog(Fair({"big": 3.0, "small": 0.5}))
    for tenant in ("small", "other", "big"):
        backlog.send(tenant, 100)
    assert Counter(backlog.serve(90)) == {"big": 60, "other": 20, "small": 10}


@pytest.mark.parametrize("order", [Weighted(), Fair()])
def test_requests_that_never_finish_are_forgotten(order: Weighted) -> None:
    for n in range(100_000):
        order.key(Request(n, 0.0, 10, tenant=f"tenant {n}", tier="batch"), 0.0)
        assert len(order._tags) <= REMEMBERED
    assert len(order._end) <= REMEMBERED
    last = Request(100_000, 0.0, 10, tenant="tenant 99999", tier="batch")
    tag = order.key(last, 0.0)
    order.finished(last, DONE)  # who is still there moves the time on
    assert order.key(Request(100_001, 0.0, 10, tenant="new", tier="premium"), 0.0) == tag


def test_a_paper_whose_component_is_an_order_is_found_by_its_key() -> None:
    assert type(components.order("driftsched")).__name__ == "DriftSched"
    with pytest.raises(BadInput, match=r"unknown order 'x'; there are fcfs, .*fair.*, driftsched, or your own"):
        components.order("x")


def test_priority_is_strict_and_first_come_within_a_tier() -> None:
    trace = flood(300)
    outcome = served(ORDERS["priority"](), trace)
    assert trace.tier is not None
    admitted = outcome.records["admitted"]
    late = trace.arrival > 0.0
    backlog = admitted > 1.0  # everybody has come by then
    for higher in (0, 1):
        upper, lower = (admitted[(trace.tier == tier) & backlog & late] for tier in (higher, higher + 1))
        assert upper.max() <= lower.min()
    for tier in range(3):
        waited = admitted[(trace.tier == tier) & backlog]
        assert (np.diff(waited) >= 0).all()


def test_the_shortest_first_is_best_for_the_mean_when_lengths_are_known() -> None:
    trace = flood(200)
    means = {
        name: served(order, trace, seats=1).e2e.mean()
        for name, order in {
            "sjf": ShortestFirst(estimate=lambda request: float(trace.output[int(request.id)])),
            **{name: ORDERS[name]() for name in ("fcfs", "priority", "weighted", "aging", "edf")},
        }.items()
    }
    assert min(means, key=lambda name: means[name]) == "sjf"


def test_without_an_estimate_it_learns_lengths_by_category() -> None:
    order = ShortestFirst()
    for n in range(20):
        order.finished(Request(n, 0.0, 10, category="code"), Finished(500, 0.1, 1.0, 0, 0))
        order.finished(Request(n, 0.0, 10, category="chat"), Finished(20, 0.1, 1.0, 0, 0))
    assert order.key(Request(1, 0.0, 10, category="chat"), 0.0) < order.key(Request(2, 0.0, 10, category="code"), 0.0)


def test_deadlines_come_from_tiers() -> None:
    order = EarliestDeadline({"premium": 1.0, "batch": 60.0})
    early, late = Request(0, 0.0, 10, tier="batch"), Request(1, 50.0, 10, tier="premium")
    assert order.key(late, 50.0) < order.key(early, 0.0)
    assert order.key(Request(2, 0.0, 10, tier="other"), 0.0) == 60.0


def test_every_order_has_its_name_and_runs_without_arguments() -> None:
    for name, order in ORDERS.items():
        assert order.name == name
        assert np.isfinite(order().key(Request(0, 1.0, 10), 1.0))

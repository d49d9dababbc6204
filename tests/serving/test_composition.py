"""Components combine: any router with any order, cache layer and batch router, in one line, in both modes alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.orders import ORDERS
from assay.serving.baselines.routers import BASELINES, LeastRequests, RoundRobin
from assay.serving.engine import components
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec, Instance, uniform
from assay.serving.interface import Finished, Fleet, Hit, Request
from assay.serving.irminsul import Irminsul
from assay.serving.lmetric import LMetric
from assay.sim.llm_cost import StepCost
from assay.workloads.chat import chat
from assay.workloads.requests import Requests

COST = StepCost(0.005 + 2e-5 * np.arange(9000), decode_kv=1e-8, prefill_pair=1e-10, kv_tokens=60_000, kv_bytes=1e5)


class Half:
    """A cache layer that supplies half of what the prefix leaves, for a millisecond."""

    def lookup(self, request: Request, instance: int, prefix: int) -> Hit:
        return Hit((request.prompt - prefix) // 2, 0.001)


class OneAtATime:
    """A batch router that gives every idle instance the oldest held request, and learns how many came back."""

    def __init__(self) -> None:
        self.done = 0

    def assign(self, queue: Sequence[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        idle = np.flatnonzero(fleet.batch_size == 0).tolist()
        return list(zip(queue, idle, strict=False))

    def finished(self, request: Request, done: Finished) -> None:
        self.done += 1


@pytest.fixture(scope="module")
def trace() -> Requests:
    return chat(200, rate=30.0, seed=4, tiers=(("premium", 1.0), ("batch", 1.0)))


@pytest.mark.parametrize("order", ORDERS)
def test_a_router_an_order_and_a_cache_layer_in_one_line(trace: Requests, order: str) -> None:
    runs = [
        simulate(trace, uniform(3, COST), LMetric(), order=ORDERS[order](), cache=Half(), mode=mode)
        for mode in ("macro", "step")
    ]
    np.testing.assert_array_equal(runs[0].ttft, runs[1].ttft)
    np.testing.assert_array_equal(runs[0].e2e, runs[1].e2e)
    assert runs[0].cached_ratio > 0.4


def test_what_a_cache_layer_supplies_is_not_computed_but_paid_for(trace: Requests) -> None:
    plain = simulate(trace, uniform(3, COST), RoundRobin(), prefix_cache=False)
    layered = simulate(trace, uniform(3, COST), RoundRobin(), cache=Half(), prefix_cache=False)
    rest = int((trace.prompt - trace.prompt // 2).sum())
    assert layered.instances["prefilled"].sum() == pytest.approx(rest, rel=0.02)  # a preempted one computes twice
    assert layered.ttft.mean() < plain.ttft.mean()
    one = Requests.of([0.0], [1000], [2])
    alone = simulate(one, uniform(1, COST), RoundRobin(), cache=Half())
    assert alone.ttft[0] == pytest.approx(COST.seconds(chunks=[(500, 500)]) + 0.001)


def test_segments_found_elsewhere_shorten_the_prefill_of_a_served_trace() -> None:
    words = " ".join(f"w{k}" for k in range(2000))
    texts = [f"now {k} {words}" for k in range(20)]  # a volatile header: no prefix survives it
    requests = Requests.of(np.arange(20.0), [4000] * 20, [20] * 20)

    def content(request: Request) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([hash(word) & 0xFFFFFFFF for word in texts[int(request.id)].split()])

    plain = simulate(requests, uniform(1, COST), RoundRobin())
    found = simulate(requests, uniform(1, COST), RoundRobin(), cache=Irminsul(content))
    assert found.ttft[1:].mean() < 0.6 * plain.ttft[1:].mean()


def test_a_batch_router_holds_requests_back_until_someone_is_idle(trace: Requests) -> None:
    runs = []
    for mode in ("macro", "step"):
        router = OneAtATime()
        runs.append(simulate(trace, uniform(3, COST), router, mode=mode))
        assert router.done == len(trace)
    np.testing.assert_array_equal(runs[0].e2e, runs[1].e2e)
    assert (runs[0].spans["decodes"] <= 1).all()


def test_a_host_tier_brings_back_what_the_cache_had_to_drop() -> None:
    long = chat(300, rate=4.0, seed=5)
    small = uniform(2, COST, kv_tokens=20_000)
    tiered = uniform(2, COST, kv_tokens=20_000, host_tokens=2_000_000)
    without, with_tier = (simulate(long, fleet, LMetric()) for fleet in (small, tiered))
    assert with_tier.cached_ratio > without.cached_ratio + 0.05
    assert with_tier.records["fetched"].sum() > 0
    assert with_tier.ttft.mean() < without.ttft.mean()


def test_disaggregation_keeps_decodes_undisturbed(trace: Requests) -> None:
    mixed = simulate(trace, uniform(4, COST), LeastRequests())
    roles = [Instance(COST, role="prefill")] * 2 + [Instance(COST, role="decode")] * 2
    split = simulate(trace, FleetSpec(tuple(roles)), LeastRequests())
    assert split.itl(0.99)[0] < mixed.itl(0.99)[0]
    assert set(split.records["prefilled_by"].tolist()) <= {-1, 0, 1}
    assert set(split.records["instance"][split.records["output"] > 1].tolist()) <= {2, 3}


@pytest.mark.parametrize("name", [*BASELINES, "lmetric", "balanceroute"])
def test_every_policy_is_found_by_its_key(name: str) -> None:
    made = components.router(name)
    assert hasattr(made, "route") or hasattr(made, "assign")


def test_a_component_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="needs a method route or assign"):
        components.router("collections:OrderedDict")
    with pytest.raises(BadInput, match="no_such_module"):
        components.router("no_such_module:Router")

"""Jumping over iterations equals stepping through them, and both equal a fleet written down naively."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings

from assay.record.errors import BadInput
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine import simulator, state
from assay.serving.engine.control import Control
from assay.serving.engine.simulator import PolicyFailed, Simulation, simulate
from assay.serving.fleet import uniform
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads import request_files
from assay.workloads.requests import Prefixes, Requests
from tests.oracles.serving import Oracle
from tests.serving.conftest import SEEN, Case, FleetSpec, Instance, Watcher, cases, make_cost, starved_case, tight_case

TIMES = ("arrival", "routed", "admitted", "first", "finish")
WHO = ("instance", "cached", "preemptions", "emitted", "fetched", "prefilled_by")
many = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_same(case: Case) -> tuple[Any, Any]:
    """Macro and step: the same floats for every request and the same view at every arrival."""
    (macro, jumping, seen), (step, stepping, seen_step) = case.run("macro"), case.run("step")
    for name in (*TIMES, *WHO):
        np.testing.assert_array_equal(macro.records[name], step.records[name], err_msg=name)
    for at_arrival, at_step in zip(seen.seen, seen_step.seen, strict=True):
        for ours, theirs in zip(at_arrival, at_step, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for name in ("iterations", "decoded", "prefilled", "preemptions", "k"):
        np.testing.assert_array_equal(macro.instances[name], step.instances[name], err_msg=name)
    for name in ("busy", "gap", "joules", "itl"):
        np.testing.assert_allclose(macro.instances[name], step.instances[name], rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(macro.caches["resident"], step.caches["resident"])
    return jumping, stepping


def assert_at_rest(simulation: Simulation) -> None:
    """Everything is finished once, given back, and adds up."""
    w, requests = simulation.world, simulation.requests
    assert (w.requests["state"] == state.FINISHED).all()
    assert sorted(w.finished[: w.counts[state.FINISHED_COUNT]].tolist()) == list(range(len(requests)))
    np.testing.assert_array_equal(w.requests["emitted"], requests.output)
    times = w.requests
    assert (times["arrival"] <= times["admitted"]).all()
    assert (times["admitted"] < times["first"]).all()
    assert (times["first"] <= times["finish"]).all()
    for name in ("decodes", "prefills", "waiting", "context", "uncomputed"):
        assert (w.instances[name] == 0).all(), name
    assert (w.phases == 0).all()
    assert (w.books == 0).all()
    assert (w.board == 0).all()
    assert_caches_add_up(simulation)
    assert (w.caches["active"] == 0).all()
    firsts = len(requests) + int(w.requests["preemptions"].sum())  # a prefill that ends gives a token
    if not w.requests["preemptions"].any():
        assert w.instances["decoded"].sum() + firsts == requests.output.sum()
        assert w.instances["prefilled"].sum() + w.requests["cached"].sum() == requests.prompt.sum()


def assert_caches_add_up(simulation: Simulation) -> None:
    """At any time: no cache is over-full, and its counters are the sums of its entries."""
    w = simulation.world
    assert (w.caches["resident"] <= w.caches["capacity"]).all()
    assert (w.caches["active"] <= w.caches["resident"]).all()
    assert (w.caches["peak"] <= w.caches["capacity"]).all()
    for row, cache in enumerate(w.caches):
        idle, e, last = 0, int(cache["coldest"]), state.NONE
        while e >= 0:
            entry = w.entries[e]
            assert entry["refs"] == 0
            assert entry["blocks"] > 0
            assert entry["colder"] == last
            idle, last, e = idle + int(entry["blocks"]), e, int(entry["warmer"])
        assert cache["warmest"] == last
        assert cache["resident"] - cache["active"] == idle
        found = w.index[:, row][w.index[:, row] >= 0]
        assert (w.entries["blocks"][found] <= (w.end - w.begin)[w.entries["segment"][found]]).all()


# ---------------------------------------------------------------------------------- macro against step


@many
@given(cases())
def test_jumping_equals_stepping(case: Case) -> None:
    for simulation in assert_same(case):
        assert_at_rest(simulation)


@many
@given(cases(host=True))
def test_jumping_equals_stepping_with_a_host_tier(case: Case) -> None:
    jumping, _ = assert_same(case)
    event("fetched" if jumping.world.requests["fetched"].any() else "nothing fetched")
    assert_at_rest(jumping)


@many
@given(cases(ties=True))
def test_jumping_equals_stepping_when_many_arrive_at_once(case: Case) -> None:
    assert_same(case)


@pytest.mark.parametrize("first", [150, 300, pytest.param(1000, marks=pytest.mark.slow)])
def test_jumping_equals_stepping_where_blocks_are_always_short(first: int) -> None:
    """Rare orders of evictions and admissions: seed 188 admits a request because a block of its own hit is evicted."""
    for seed in range(first, first + (50 if first < 1000 else 3000)):
        jumping, _ = assert_same(tight_case(seed))
        assert_at_rest(jumping)


# Each of these let a request in too late when jumping: asked for a chunk, it lost a block of its own to a decode.
CHUNKS = (100580, 101253, 101683, 101950, 102077, 102164, 102594, 102725)


@pytest.mark.parametrize("seeds", [CHUNKS, range(40), pytest.param(range(1000, 4000), marks=pytest.mark.slow)])
def test_all_three_agree_where_sequences_give_way_all_the_time(seeds: Sequence[int]) -> None:
    for seed in seeds:
        case = starved_case(seed)
        jumping, _ = assert_same(case)
        assert_at_rest(jumping)
        assert_equals_oracle(case, whole=True)


@many
@given(cases(bys=("itl",)))
def test_what_a_router_sees_of_the_time_between_tokens_is_the_same(case: Case) -> None:
    outcomes = [case.run(mode)[0] for mode in ("macro", "step")]
    for name in TIMES:
        np.testing.assert_allclose(outcomes[0].records[name], outcomes[1].records[name], rtol=1e-9)


class Toggle:
    """A planner that closes and opens the instances in turn."""

    def __init__(self, period: float) -> None:
        self.period, self.closed = period, -1

    def plan(self, fleet: Fleet, control: Control) -> None:
        if self.closed >= 0:
            control.accepting(self.closed, True)
        self.closed = (self.closed + 1) % len(fleet)
        control.accepting(self.closed, False)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_jumping_equals_stepping_while_a_planner_closes_and_opens_instances(case: Case) -> None:
    if len(case.fleet) != 3:
        return
    outcomes = [
        Simulation(
            case.requests, case.fleet, Watcher(case.by), planner=Toggle(0.0371), mode=mode, patience=1.0, **case.options
        ).run()
        for mode in ("macro", "step")
    ]
    for name in TIMES:
        np.testing.assert_array_equal(outcomes[0].records[name], outcomes[1].records[name], err_msg=name)
    assert (outcomes[0].records["state"] == state.FINISHED).all()


# -------------------------------------------------------------------------------- against the oracle


def assert_equals_oracle(case: Case, whole: bool) -> Oracle:
    outcome, _, router = case.run("macro")
    watcher = Watcher(case.by)
    oracle = Oracle(
        case.requests, case.fleet, watcher, case.options["order"], whole=whole, prefix_cache=case.prefix_cache,
        age=case.age,
    ).run()  # fmt: skip
    assert all(s.finishes == 1 for s in oracle.sequences)
    for name in ("instance", "cached", "preemptions"):
        expected = [getattr(s, name) for s in oracle.sequences]
        np.testing.assert_array_equal(outcome.records[name], expected, err_msg=name)
    for name in ("admitted", "first", "finish"):
        expected = [getattr(s, name) for s in oracle.sequences]
        np.testing.assert_allclose(outcome.records[name], expected, rtol=1e-9, err_msg=name)
    for ours, theirs in zip(router.seen, watcher.seen, strict=True):
        for name, a, b in zip(SEEN, ours, theirs, strict=True):
            rtol = 1e-9 if name == "arrival and now" else 1e-12
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(outcome.instances["decoded"], [e.decoded for e in oracle.engines])
    np.testing.assert_array_equal(outcome.instances["prefilled"], [e.prefilled for e in oracle.engines])
    return oracle


@many
@given(cases(loops=True))
def test_jumping_equals_stepping_in_closed_loops(case: Case) -> None:
    for simulation in assert_same(case):
        assert_at_rest(simulation)
        assert_turns_wait(simulation)


@many
@given(cases(loops=True))
def test_the_engine_equals_the_oracle_in_closed_loops(case: Case) -> None:
    oracle = assert_equals_oracle(case, whole=True)
    event("released" if oracle.requests.after.max() >= 0 else "nobody waits")  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(cases(loops=True, ages=(0.005, 0.05, 0.5)))
def test_jumping_equals_stepping_with_old_signals(case: Case) -> None:
    for simulation in assert_same(case):
        assert_at_rest(simulation)


@settings(max_examples=60, deadline=None)
@given(cases(loops=True, ages=(0.005, 0.05, 0.5)))
def test_the_engine_equals_the_oracle_with_old_signals(case: Case) -> None:
    assert_equals_oracle(case, whole=True)


def assert_turns_wait(simulation: Simulation) -> None:
    """Nobody is sent before the one it waits for has ended and the think time is over."""
    after, think = simulation.requests.after, simulation.requests.think
    assert after is not None
    assert think is not None
    records, later = simulation.world.requests, np.flatnonzero(after >= 0)
    due = records["finish"][after[later]] + think[later]
    np.testing.assert_array_equal(records["arrival"][later], due)
    np.testing.assert_array_equal(records["arrival"][after < 0], simulation.requests.arrival[after < 0])
    assert (records["routed"] >= records["arrival"]).all()


def tally(oracle: Oracle) -> Counter[str]:
    return Counter(
        preemptions=sum(s.preemptions for s in oracle.sequences),
        evictions=sum(e.memory.evicted for e in oracle.engines),
        hits=sum(e.memory.hits for e in oracle.engines),
        found=sum(e.memory.found for e in oracle.engines),
        kept_out=sum(e.kept_out for e in oracle.engines),
        handovers=oracle.handovers,
        pauses=sum(kind == "paused" for e in oracle.engines for kind, _ in e.gaps),
    )


@many
@given(cases(one_block=True))
def test_the_engine_equals_single_blocks_where_segments_are_blocks(case: Case) -> None:
    for what, count in tally(assert_equals_oracle(case, whole=False)).items():
        if count:
            event(what)


@many
@given(cases(one_block=False))
def test_the_engine_equals_single_blocks_pinned_by_segment(case: Case) -> None:
    for what, count in tally(assert_equals_oracle(case, whole=True)).items():
        if count:
            event(what)


def test_everything_happens_in_these_cases() -> None:
    """The strategy reaches what the other tests are about."""
    total: Counter[str] = Counter()

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(cases())
    def collect(case: Case) -> None:
        oracle = Oracle(
            case.requests, case.fleet, Watcher(case.by), case.options["order"], prefix_cache=case.prefix_cache
        ).run()
        total.update(tally(oracle))
        for i in case.fleet.instances:
            total[i.plan] += 1
            swapped = any(s.preemptions for s in oracle.sequences) and i.preemption
            total[f"preempted: {swapped}"] += 1
        total["lockstep"] += bool(case.fleet.lockstep)

    collect()
    for what in (
        "preemptions", "evictions", "hits", "found", "kept_out", "handovers", "pauses", "lockstep", "vllm-v1",
        "sglang", "static", "preempted: swap", "preempted: recompute",
    ):  # fmt: skip
        assert total[what] > 0, what


# -------------------------------------------------------------------------------------- conservation


@many
@given(cases(host=True))
def test_no_cache_is_ever_over_full(case: Case) -> None:
    router = Watcher(case.by)
    simulation = Simulation(case.requests, case.fleet, router, mode="step", patience=1.0, **case.options)
    router.check = lambda: assert_caches_add_up(simulation)
    simulation.run()
    assert_at_rest(simulation)


def one_segment(stop: int, prompts: list[int], outputs: list[int], arrivals: list[float]) -> Requests:
    n = len(prompts)
    tree = Prefixes(
        np.array([-1], np.int32), np.array([0], np.int32), np.array([stop], np.int32),
        np.arange(n + 1), np.zeros(n, np.int32), np.full(n, -1, np.int32),
    )  # fmt: skip
    return Requests.of(arrivals, prompts, outputs, prefixes=tree)


def test_a_segment_that_reaches_beyond_a_prompt_does_not_lock_it_out() -> None:
    """Holding the first blocks of a segment pins all of it: here too much to ever finish, unless it is let go."""
    requests = one_segment(10, [10, 5], [1, 6], [0.0, 1.0])
    fleet = FleetSpec((Instance(make_cost(1, 200), max_seqs=4, max_tokens=20, kv_tokens=12),), block=1)
    simulation = Simulation(requests, fleet, RoundRobin())
    simulation.run()
    assert_at_rest(simulation)


def test_the_last_token_is_computed_even_where_all_is_cached() -> None:
    requests = one_segment(64, [64, 64], [3, 3], [0.0, 9.0])
    outcome = simulate(requests, uniform(1, make_cost(1, 200), max_tokens=199, max_seqs=9, kv_tokens=999), RoundRobin())
    assert outcome.records["cached"].tolist() == [0, 48]


def test_requests_that_fit_nowhere_are_refused_and_the_others_served() -> None:
    fleet = uniform(2, make_cost(1, 200), max_tokens=100, max_seqs=8, kv_tokens=160)
    outcome = simulate(Requests.of([0.0, 0.1, 0.2], [100, 1000, 50], [5, 5, 5]), fleet, RoundRobin())
    assert outcome.served.tolist() == [True, False, True]
    assert np.isfinite(outcome.records["finish"]).tolist() == [True, False, True]


def test_requests_that_no_decode_instance_can_hold_are_refused() -> None:
    large = Instance(make_cost(1, 200), max_tokens=100, max_seqs=8, kv_tokens=1600, role="prefill")
    fleet = FleetSpec((large, replace(large, role="decode", kv_tokens=160)))
    outcome = simulate(Requests.of([0.0, 0.1], [100, 1000], [5, 5]), fleet, RoundRobin())
    assert outcome.served.tolist() == [True, False]


def test_what_is_handed_over_after_the_last_arrival_still_arrives() -> None:
    base = Instance(replace(make_cost(1, 200), kv_bytes=1e6), max_tokens=100, max_seqs=8, kv_tokens=1600)
    fleet = FleetSpec((replace(base, role="prefill"), replace(base, role="decode")), bandwidth=1e9, latency=0.5)
    outcome = simulate(Requests.of([0.0], [100], [5]), fleet, RoundRobin())
    record = outcome.records[0]
    assert (record["prefilled_by"], record["instance"]) == (0, 1)
    assert record["finish"] - record["first"] > 0.6  # 100 MB at 1 GB/s, and half a second of latency


# ---------------------------------------------------------------------------------------- real traces

LLAMA = StepCost(
    tokens=0.008 + 2.5e-5 * np.arange(8200) + 1e-3 * (np.arange(8200) // 256), decode_seq=1e-6, decode_kv=3e-8,
    prefill_fixed=1e-4, prefill_pair=3e-10, prefill_kv=4e-9, kv_tokens=400_000, kv_bytes=131_072.0,
)  # fmt: skip


def trace_of(name: str, limit: int | None) -> Requests:
    try:
        return request_files.read(name, limit=limit)
    except BadInput as error:
        pytest.skip(str(error))


def compare_on(requests: Requests) -> None:
    case = Case(requests, uniform(16, LLAMA), "batch", False, True)
    jumping, _ = assert_same(case)
    served = jumping.world.requests[jumping.fits]
    assert (served["state"] == state.FINISHED).all()
    assert_caches_add_up(jumping)


@pytest.mark.parametrize("name", ["mooncake-conversation", "azure-2023-conv"])
def test_jumping_equals_stepping_on_the_beginning_of_a_real_trace(name: str) -> None:
    compare_on(trace_of(name, 1500))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mooncake-conversation", "azure-2023-conv"])
def test_jumping_equals_stepping_on_a_whole_real_trace(name: str) -> None:
    compare_on(trace_of(name, None))


# --------------------------------------------------------------------------------- components that err


class Wrong:
    """A router with a fault that shows at the third request."""

    key = "wrong"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def route(self, request: Request, fleet: Fleet) -> Any:
        return self.answer() if request.id == 2 else 0


def stop() -> int:
    raise KeyError("no such\nsession")


def dawdle() -> int:
    time.sleep(0.05)
    return 0


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (stop, "KeyError"), (lambda: 9, "instance 9 of a fleet of 2"), (lambda: -1, "instance -1"),
        (lambda: 1, "cannot take it"), (lambda: None, "TypeError"), (lambda: 0.5, "TypeError"),
    ],
)  # fmt: skip
def test_a_failing_policy_is_named_with_its_request_in_one_line(answer: Any, complaint: str) -> None:
    base = Instance(make_cost(1, 200), max_tokens=100, max_seqs=8, kv_tokens=1600)
    fleet = FleetSpec((base, replace(base, kv_tokens=64)))
    requests = Requests.of([0.0, 1.0, 2.5], [100, 100, 100], [5, 5, 5])
    with pytest.raises(PolicyFailed) as failure:
        simulate(requests, fleet, Wrong(answer))
    text = str(failure.value)
    assert complaint in text
    assert "policy 'wrong' failed on request 2 (arrival 2.500 s, 100 prompt tokens)" in text
    assert "\n" not in text


def test_a_policy_that_is_too_slow_is_named() -> None:
    requests = Requests.of([0.0, 1.0, 2.5], [100, 100, 100], [5, 5, 5])
    fleet = uniform(2, make_cost(1, 200), max_tokens=100, max_seqs=8, kv_tokens=1600)
    simulate(requests, fleet, Wrong(dawdle))  # once is forgiven
    with pytest.raises(PolicyFailed, match=r"too slow.*for request 2"):
        Simulation(requests, fleet, Wrong(lambda: time.sleep(1.1) or 0), patience=1e-6).run()


def test_a_policy_is_not_too_slow_for_what_it_loads_first_nor_for_what_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first decision imports and compiles, on a machine that may be busy with other work."""
    clock, waited = [0.0], [0.0]
    monkeypatch.setattr(simulator, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(simulator, "waited_for_processor", lambda: waited[0])

    class Loads(RoundRobin):
        own = 0.0

        def route(self, request: Request, fleet: Fleet) -> int:
            clock[0] += 5.0 if request.id == 0 else 3.0
            waited[0] += 1.0 if request.id == 0 else 3.0 - self.own
            return 0

    requests = Requests.of([0.0, 1.0, 2.5], [100, 100, 100], [5, 5, 5])
    fleet = uniform(2, make_cost(1, 200), max_tokens=100, max_seqs=8, kv_tokens=1600)
    simulate(requests, fleet, Loads())
    Loads.own = 1.5
    with pytest.raises(PolicyFailed, match=r"too slow: 1 s a decision over 3 decisions"):
        simulate(requests, fleet, Loads())


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown mode 'leap'"):
        simulate(Requests.of([0.0], [1], [1]), uniform(1, LLAMA), RoundRobin(), mode="leap")

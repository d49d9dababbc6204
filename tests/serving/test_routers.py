"""Each production router's documented formula, on fleets small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.serving.balanceroute.lockstep import Pooled
from assay.serving.baselines.routers import (
    BASELINES,
    Dynamo,
    LeastRequests,
    Linear,
    LlmD,
    LoadAware,
    PowerOfTwo,
    PredictedTtft,
    RoundRobin,
    SessionHash,
    SglangCacheAware,
    VllmV1,
)
from assay.serving.interface import Cacheless, Fleet, Request
from assay.serving.lmetric import LMetric
from assay.sim.llm_cost import StepCost


class Seen(Fleet):
    """A fleet as someone wrote it down."""

    def __init__(self, running=(), waiting=(), found=(), prefill=None, kv=None, free=None, on_board=None) -> None:  # type: ignore[no-untyped-def]
        n = len(running)
        self.running, self.waiting = np.array(running), np.array(waiting if len(waiting) else [0] * n)
        self.found = np.array(found if len(found) else [0] * n)
        self.prefill_tokens = np.array(prefill if prefill is not None else [0] * n)
        self.kv_tokens = np.array(kv if kv is not None else [0] * n)
        self.kv_free = np.array(free if free is not None else [1.0] * n)
        self.on_board = on_board  # tokens of prompts, the newcomer's with them

    def match(self, request: Request) -> np.ndarray:  # type: ignore[type-arg]
        return self.found

    def prompt_tokens(self, request: Request) -> np.ndarray:  # type: ignore[type-arg]
        return super().prompt_tokens(request) if self.on_board is None else np.array(self.on_board)


def request(prompt: int = 1000, session: int | None = None, number: int = 0) -> Request:
    return Request(number, 0.0, prompt, session=session)


def test_a_fleet_that_does_not_say_what_is_cached_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="match"):
        type("Silent", (Fleet,), {})()


def test_without_a_prefix_cache_every_prompt_token_is_new() -> None:
    fleet = Cacheless()
    fleet.running = fleet.waiting = np.zeros(3, np.int64)
    assert fleet.new_prefill_tokens(request(700)).tolist() == [700, 700, 700]


def test_a_pooled_router_sees_the_caches_of_the_fleet() -> None:
    fleet = Seen(running=[0, 0], found=[0, 900])
    assert [worker for _, worker in Pooled(LMetric(), slots=8).assign([request(1000)], fleet)] == [1]


def test_round_robin_takes_turns_and_skips_who_may_not() -> None:
    router, fleet = RoundRobin(), Seen([0, 0, 0])
    assert [router.route(request(), fleet) for _ in range(4)] == [0, 1, 2, 0]
    fleet.eligible = np.array([True, False, True])
    assert [router.route(request(), fleet) for _ in range(3)] == [2, 0, 2]


def test_a_waiting_request_weighs_four_running_ones_at_vllm() -> None:
    assert VllmV1().route(request(), Seen(running=[3, 0], waiting=[0, 1])) == 0
    assert VllmV1().route(request(), Seen(running=[5, 0], waiting=[0, 1])) == 1
    assert LeastRequests().route(request(), Seen(running=[3, 0], waiting=[0, 1])) == 1


def test_power_of_two_never_takes_the_busier_of_its_pair() -> None:
    router, fleet = PowerOfTwo(seed=3), Seen(running=[9, 5, 1])
    chosen = [router.route(request(), fleet) for _ in range(200)]
    assert set(chosen) == {1, 2}  # the busiest of three is the less busy of no pair
    assert 100 < chosen.count(2) < 170  # two pairs of three contain it


def test_a_session_stays_and_sessions_spread() -> None:
    router, fleet = SessionHash(), Seen([0] * 8)
    homes = [router.route(request(session=s), fleet) for s in range(400)]
    assert homes == [router.route(request(session=s), fleet) for s in range(400)]
    assert min(np.bincount(homes, minlength=8)) > 25
    fleet.eligible = np.ones(8, bool)
    fleet.eligible[3] = False
    moved = [router.route(request(session=s), fleet) for s in range(400)]
    assert all(new == old for new, old in zip(moved, homes, strict=True) if old != 3)


def test_the_weight_decides_between_cache_and_load() -> None:
    fleet = Seen(running=[8, 0], found=[900, 0])
    assert Linear(0.9).route(request(), fleet) == 0
    assert Linear(0.1).route(request(), fleet) == 1


def test_llm_d_adds_prefix_queue_and_memory_two_two_one() -> None:
    # prefix 2 x 0.9 + queue 2 x 0 + memory 0.5 = 2.3 against 0 + 2 + 1 = 3
    assert LlmD().route(request(), Seen(running=[1, 1], waiting=[4, 0], found=[900, 0], free=[0.5, 1.0])) == 1
    # without the queue: 1.8 + 2 + 0.5 against 0 + 2 + 1
    assert LlmD().route(request(), Seen(running=[1, 1], found=[900, 0], free=[0.5, 1.0])) == 0


def test_dynamo_counts_what_is_to_prefill_and_what_is_to_keep() -> None:
    # to prefill 1024 - 512, to keep 640 + 1024: 2176; against 1024 + 1024
    assert Dynamo().route(request(1024), Seen([1, 0], found=[512, 0], kv=[640, 0])) == 1
    assert Dynamo().route(request(1024), Seen([1, 0], found=[896, 0], kv=[640, 0])) == 0
    # the prompts on board share 512 tokens with this one: 512 + 1152 against 2048
    assert Dynamo().route(request(1024), Seen([1, 0], found=[512, 0], on_board=[1152, 1024])) == 0
    # an unanswered prompt counts as long as no token of it came, and its scale is a knob
    busy = Seen([1, 0], found=[512, 0], prefill=[600, 0], on_board=[1100, 1024])
    assert Dynamo().route(request(1024), busy) == 1
    assert Dynamo(scale=0.1).route(request(1024), busy) == 1
    assert Dynamo(scale=0.1).route(request(1024), Seen([1, 0], found=[512, 0], on_board=[1060, 1024])) == 0
    assert Dynamo(credit=0.0).route(request(1024), Seen([1, 0], found=[512, 0], on_board=[1060, 1024])) == 1


def test_nothing_is_saved_below_nothing_at_dynamo() -> None:
    # a credit of 3 for 512 of 1024 tokens leaves nothing to prefill, not less: 0 + 2100 against 1024 + 1024
    assert Dynamo(credit=3.0).route(request(1024), Seen([1, 0], found=[512, 0], on_board=[2100, 1024])) == 1


def test_sglang_follows_the_prefix_until_the_load_is_out_of_balance() -> None:
    router = SglangCacheAware()
    assert router.route(request(), Seen(running=[60, 0], found=[400, 0])) == 0
    assert router.route(request(), Seen(running=[80, 0], found=[400, 0])) == 1
    fresh = SglangCacheAware()
    assert fresh.route(request(), Seen(running=[0, 0], found=[900, 0])) == 0
    assert fresh.route(request(), Seen(running=[0, 9], found=[200, 0])) == 1  # below 30 %: the smaller tree


def test_loadaware_weighs_found_share_against_load_above_the_mean() -> None:
    assert LoadAware().route(request(), Seen(running=[6, 2], found=[400, 0])) == 1  # 0.4 - 0.5 < 0 + 0.5
    assert LoadAware(beta=0.1).route(request(), Seen(running=[6, 2], found=[400, 0])) == 0


def test_predicted_ttft_sees_the_queue_and_the_cost() -> None:
    fleet = Seen(running=[1, 1], prefill=[20_000, 0], found=[900, 0])
    fleet.costs = [StepCost(0.01 + 1e-5 * np.arange(9000), kv_tokens=10**6)] * 2
    assert PredictedTtft().route(request(), fleet) == 1
    fleet.prefill_tokens[:] = 0
    assert PredictedTtft().route(request(), fleet) == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 999)), min_size=2, max_size=12),
    st.integers(1, 1000),
)
def test_lmetric_does_not_change_when_either_indicator_is_scaled(rows: list[tuple[int, int, int]], factor: int) -> None:
    """The claim worth having: there is no unit, so no weight."""
    running, waiting, found = (np.array(column) for column in zip(*rows, strict=True))
    tokens, load = np.maximum(1000 - found, 1), running + waiting + 1
    best = tokens * load
    assert (factor * tokens * load == factor * best).all()
    chosen = LMetric().route(request(), Seen(running, waiting, found))
    assert best[chosen] == best.min()
    assert (factor * best)[chosen] == (factor * best).min()


def test_lmetric_breaks_ties_by_load_then_match() -> None:
    assert LMetric().route(request(100), Seen(running=[1, 3], found=[0, 50])) == 0  # 100 x 2 = 50 x 4
    assert LMetric(pending=True).route(request(100), Seen(running=[1, 1], prefill=[50, 0])) == 1


def test_the_guard_spreads_a_prefix_that_outgrows_its_holder() -> None:
    fleet = Seen(running=[40, 0, 0, 0], found=[999, 0, 0, 0])
    assert LMetric().route(request(), fleet) == 0  # 1 x 41 < 1000 x 1: the product alone never lets go
    guarded = LMetric(guard=3.0)
    assert guarded.route(request(), fleet) != 0
    assert guarded.guarded == 1


@pytest.mark.parametrize("name", BASELINES)
@given(seed=st.integers(0, 99))
def test_every_router_chooses_someone_eligible(name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 9))
    fleet = Seen(draw.integers(0, 9, n), draw.integers(0, 9, n), draw.integers(0, 500, n), draw.integers(0, 9999, n))
    fleet.costs = [StepCost(0.01 + 1e-5 * np.arange(9000), kv_tokens=10**6)] * n
    fleet.eligible = draw.random(n) < 0.5
    fleet.eligible[draw.integers(n)] = True
    chosen = BASELINES[name]().route(request(500, session=seed, number=seed), fleet)
    assert isinstance(chosen, int)
    assert fleet.eligible[chosen]

"""BalanceRoute fills gaps below the fullest worker, and never more slowly than a step allows."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.tables import joined
from assay.record.types import Verdict
from assay.serving import balanceroute
from assay.serving.balanceroute import BalanceRoute, LookAhead, TrueLengths, gap_filling
from assay.serving.balanceroute.lockstep import Delivered, Evenness, LeastKv, Pooled, evenness, workers
from assay.serving.baselines.length_estimates import EmpiricalHazard, LogisticHazard
from assay.serving.baselines.routers import BASELINES
from assay.serving.engine.simulator import Simulation, simulate
from assay.serving.fleet import FleetSpec
from assay.serving.interface import Request
from assay.sim.random import stream
from assay.workloads.requests import Requests
from tests.oracles import gap_filling as oracle

SLOTS = 16


def heavy_tailed(count: int, rate: float, seed: int = 0, scale: float = 4000.0) -> Requests:
    """Prompts over two orders of magnitude, as people send them."""
    random = stream(seed, "test-balanceroute")
    prompt = np.clip(scale * np.exp(1.1 * random.standard_normal(count)), 20, 20 * scale).astype(int)
    output = np.clip(150 * np.exp(0.8 * random.standard_normal(count)), 2, 2000).astype(int)
    return Requests.of(np.cumsum(random.exponential(1 / rate, count)), prompt, output)


@pytest.fixture(scope="module")
def group() -> FleetSpec:
    return workers("910b:qwen3-30b-a3b", 32, SLOTS)


@pytest.fixture(scope="module")
def backlog() -> Requests:
    return heavy_tailed(1600, rate=400.0)


def serve(trace: Requests, group: FleetSpec, router: Any) -> Any:
    return simulate(trace, group, router, cache=Delivered(), prefix_cache=False, patience=0.1)


@pytest.fixture(scope="module")
def measured(group: FleetSpec, backlog: Requests) -> dict[str, Evenness]:
    class Coin:
        """A classifier that knows nothing."""

        def __init__(self) -> None:
            self.draw = stream(0, "coin")

        def learn(self, prompt: int, output: int) -> None: ...

        def survive(self, generated: Any, prompt: Any, steps: Any, ids: Any = None) -> Any:
            return np.cumprod(self.draw.random((len(generated), len(steps))) ** 0.2, axis=1)

    routers = {
        "vllm-v1": BASELINES["vllm-v1"](), "least-kv": LeastKv(), "least-kv, pooled": Pooled(LeastKv(), SLOTS),
        "br-0": BalanceRoute(SLOTS), "br-h": LookAhead(SLOTS), "logistic": LookAhead(SLOTS, survival=LogisticHazard()),
        "true": LookAhead(SLOTS, survival=TrueLengths(backlog.output)), "coin": LookAhead(SLOTS, survival=Coin()),
    }  # fmt: skip
    return {name: evenness(serve(backlog, group, router)) for name, router in routers.items()}


# ------------------------------------------------------------------------------------------ the formula


@given(
    loads=st.lists(st.integers(0, 10**6), min_size=2, max_size=40), x=st.integers(1, 10**5), place=st.integers(0, 10**6)
)
@settings(deadline=None)
def test_the_gain_is_the_fall_of_the_imbalance(loads: list[int], x: int, place: int) -> None:
    g = place % len(loads)
    assert gap_filling.gain(float(x), float(max(loads) - loads[g]), len(loads)) == oracle.gain(loads, g, x)


@given(
    st.integers(0, 10**6), st.integers(1, 30), st.integers(2, 7), st.sampled_from([1, 3]), st.sampled_from([0, 2]),
    st.sampled_from([-np.inf, 100.0, np.inf]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_bisection_chooses_what_trying_everything_chooses(
    seed: int, waiting: int, count: int, ahead: int, late: int, allowed: float
) -> None:
    random = stream(seed, "fill")
    lengths = np.sort(random.integers(1, 500, waiting)).astype(float)
    urgent = random.permutation(waiting)[:late]
    steps = np.array([0.0, 3.0, 17.0])[:ahead]
    state = (
        lengths, urgent, steps, 0.95**steps, random.integers(0, 2000, (ahead, count)).astype(float),
        random.integers(0, 5, count), random.integers(0, 1500, count).astype(float), random.integers(0, 2, count),
    )  # fmt: skip
    expected = oracle.fill(*(np.copy(part) for part in state), allowed)
    chosen, target = gap_filling.fill(*(np.copy(part) for part in state), allowed)
    assert [(lengths[p], g) for p, g in zip(chosen, target, strict=True)] == expected
    assert len(set(chosen.tolist())) == len(chosen)


# --------------------------------------------------------------------------------------------- in service


def test_imbalance_falls_from_vllm_over_least_kv_to_br0(measured: dict[str, Evenness]) -> None:
    assert measured["br-0"].load_gap < measured["least-kv"].load_gap < measured["vllm-v1"].load_gap
    assert measured["br-0"].load_gap < 0.6 * measured["least-kv, pooled"].load_gap


def test_throughput_rises_in_backlog(measured: dict[str, Evenness]) -> None:
    assert measured["br-0"].tokens_per_second > 1.05 * measured["vllm-v1"].tokens_per_second


def test_nothing_is_gained_or_lost_when_the_pool_is_empty(group: FleetSpec) -> None:
    light = heavy_tailed(800, rate=20.0)
    balanced, plain = (serve(light, group, router) for router in (BalanceRoute(SLOTS), BASELINES["vllm-v1"]()))
    assert balanced.makespan == pytest.approx(plain.makespan, rel=0.02)
    assert balanced.e2e.mean() < 1.03 * plain.e2e.mean()


def test_looking_ahead_helps_with_a_good_classifier_and_hurts_little_with_a_bad_one(
    measured: dict[str, Evenness],
) -> None:
    base = measured["br-0"]
    for name in ("br-h", "logistic", "true"):
        assert measured[name].tokens_per_second > 0.98 * base.tokens_per_second, name
    assert measured["true"].load_gap < 1.1 * base.load_gap
    assert measured["coin"].tokens_per_second > 0.95 * base.tokens_per_second
    assert measured["coin"].load_gap < measured["least-kv"].load_gap


@given(st.integers(0, 10**6), st.sampled_from(["never", "pays", "always"]), st.booleans(), st.sampled_from([0.01, 1.0]))
@settings(max_examples=25, deadline=None)
def test_every_request_is_admitted_in_the_end(seed: int, overflow: str, ahead: bool, patience: float) -> None:
    small = workers("910b:qwen3-30b-a3b", 4, 3)
    trace = heavy_tailed(60, rate=float(stream(seed, "rate").choice([1.0, 30.0, 1000.0])), seed=seed)
    router = (LookAhead if ahead else BalanceRoute)(3, overflow=overflow, patience=patience)
    outcome = serve(trace, small, router)
    assert outcome.served.all() and np.isfinite(outcome.e2e).all()
    assert (outcome.e2e > 0).all()


def test_the_limit_on_sequences_is_the_engines_own_where_it_is_known(group: FleetSpec) -> None:
    trace = heavy_tailed(600, rate=400.0)
    told, asked = (serve(trace, group, router) for router in (BalanceRoute(SLOTS), BalanceRoute()))
    assert told.e2e.tolist() == asked.e2e.tolist()


@pytest.mark.parametrize("now", [-1e6, 0.0, 1e6])
def test_who_waits_too_long_is_seen_whatever_the_clock_says_when_it_starts(now: float) -> None:
    router, window = BalanceRoute(SLOTS, patience=1.0), [Request(0, now, 10), Request(1, now, 20)]
    assert router._urgent(window, np.array([0, 1]), now).tolist() == []
    assert router._urgent(window, np.array([0, 1]), now + 1.1).tolist() == [0, 1]


def test_br0_is_told_no_length() -> None:
    assert not hasattr(BalanceRoute, "finished")
    assert "output" not in Request.__dataclass_fields__


def test_steps_are_counted_from_what_a_gateway_sees(group: FleetSpec, backlog: Requests) -> None:
    off = []  # mean distance from the truth, in tokens; answers have some 200

    class Checked(LookAhead):
        simulation: Simulation

        def _expected(self, fleet: Any, now: Any) -> Any:
            loads = super()._expected(fleet, now)
            aboard, w = self._aboard, self.simulation.world
            assert aboard is not None
            n = len(aboard._names)
            if n and not fleet.waiting.any():
                guess = aboard.steps[aboard.worker[:n]] - aboard.begun[:n]
                record = w.requests[aboard.ids[:n]]
                context = record["context0"] + w.instances["k"][record["instance"]] - record["begun"]
                decoding = record["context0"] > 0
                off.append(np.abs(guess - (context - record["prompt"]))[decoding].mean() if decoding.any() else 0.0)
            return loads

    router = Checked(SLOTS)
    router.simulation = Simulation(
        backlog.part(0, 600), group, router, cache=Delivered(), prefix_cache=False, patience=0.1
    )
    router.simulation.run()
    assert len(off) > 20
    assert max(off) <= 2.0


def test_without_a_barrier_imbalance_costs_little(group: FleetSpec, backlog: Requests) -> None:
    free = replace(group, lockstep=())
    barrier, alone = (serve(backlog, fleet, BASELINES["vllm-v1"]()) for fleet in (group, free))
    assert alone.e2e.mean() < barrier.e2e.mean()


@pytest.mark.timed
def test_a_decision_takes_less_than_two_milliseconds() -> None:
    for kind in (BalanceRoute, LookAhead):
        seconds = []
        for turn in range(15):
            fleet, queue = balanceroute._crowd(64, 512, 64, stream(turn, "crowd"))
            router = kind(64, 512)
            began = perf_counter()
            sent = router.assign(queue, fleet)
            seconds.append(perf_counter() - began)
            assert len(sent) == 512
        assert np.median(seconds) < 2e-3, kind


# ----------------------------------------------------------------------------------------- the estimators


def test_the_life_table_agrees_with_the_lives() -> None:
    random = stream(0, "lives")
    lives = random.geometric(1 / 80, 20_000)
    hazard = EmpiricalHazard(prior=1.0)
    for output in lives[:10_000].tolist():
        hazard.learn(100, output)
    others = lives[10_000:]
    for age in (0, 40, 160):
        truth = [float((others[others > age] > age + h).mean()) for h in (8, 32)]
        guess = hazard.survive(np.array([age]), np.array([100]), np.array([8, 32]))[0]
        assert guess == pytest.approx(truth, abs=0.05)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_survival_is_a_probability_that_falls(seed: int) -> None:
    random = stream(seed, "survival")
    for model in (EmpiricalHazard(), LogisticHazard(every=50)):
        for output in random.integers(1, 600, 200).tolist():
            model.learn(int(random.integers(1, 5000)), output)
        values = model.survive(random.integers(0, 900, 30), random.integers(1, 5000, 30), np.array([0, 1, 4, 32]))
        assert (values[:, 0] == 1.0).all() and (np.diff(values, axis=1) <= 0).all() and (values >= 0).all()


@pytest.mark.traces
def test_the_study_answers_every_claim() -> None:
    table = joined(balanceroute.study(Lab("balanceroute", seeds=(0,))))
    for claim in balanceroute.claims:
        estimate = claim.measure(table)
        assert np.isfinite(estimate.value), claim.id
    assert balanceroute.plot(table).to_dict()


def test_without_its_traces_the_study_times_decisions_and_says_how_to_get_the_others() -> None:
    lab = Lab("balanceroute", seeds=(0, 1, 2))
    found = {answer.id: answer for answer in judge(study("balanceroute"), joined(balanceroute.study(lab)), lab.lacking)}
    assert found.pop("decision").measured is not None
    cure = "run: assay traces get azure-2023-conv mooncake-conversation"
    assert all(answer.verdict is Verdict.NOT_MEASURED and cure in answer.note for answer in found.values())


# --------------------------------------------------------------------------------------------- the study


def rows_of(azure: float, mooncake: float) -> pl.DataFrame:
    """vLLM's routing at 1 on both traces, BR-0 at what is given; a smaller group on which all is different."""
    rows = []
    for trace, value in {"azure": azure, "mooncake": mooncake}.items():
        for group, wins in ((16, 9.0), (32, value)):
            for seed in (5, 6, 7):
                case = {"trace": trace, "workers": group, "load": balanceroute.BACKLOG, "seed": seed}
                rows += [
                    case | {"policy": policy, "load_gap": amount, "tokens_per_second": amount}
                    for policy, amount in (("vllm-v1", 1.0), ("br-0", wins))
                ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(("claim", "worse"), [("load-gap", 0.9), ("throughput", 0.3)])
def test_a_claim_about_two_traces_is_read_off_the_one_where_it_fares_worse(claim: str, worse: float) -> None:
    measure = next(each for each in balanceroute.claims if each.id == claim).measure
    for azure, mooncake, where in ((0.3, 0.9, "mooncake"), (0.9, 0.3, "azure")):
        found = measure(rows_of(azure, mooncake))
        assert found.value == pytest.approx(worse - 1)
        expected = where if claim == "load-gap" else {"mooncake": "azure", "azure": "mooncake"}[where]
        assert found.cases == f"{expected}, of 2 cases"


def test_the_table_says_how_often_it_chose_by_length(group: FleetSpec, backlog: Requests) -> None:
    """In a backlog most go before somebody older; alone in the pool nobody does."""
    router = BalanceRoute(SLOTS)
    serve(backlog, group, router)
    assert router.sent == len(backlog)
    assert router.picked > 0.3 * router.sent
    calm = BalanceRoute(SLOTS)
    serve(heavy_tailed(100, rate=0.5), group, calm)
    assert (calm.sent, calm.picked) == (100, 0)

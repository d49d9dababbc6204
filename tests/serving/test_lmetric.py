"""LMETRIC where its paper says it works, what it does not promise, and how the study judges it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record import traces
from assay.serving import lmetric
from assay.serving.baselines.routers import BASELINES, Linear
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse
from assay.serving.interface import Cacheless, Request
from assay.serving.lmetric import FLEET, PRODUCTION, TRACE, WEIGHTS, WORKLOADS, LMetric, make, saturated, steady
from assay.workloads.chat import Agents, chat
from assay.workloads.requests import Requests


@pytest.fixture(scope="module")
def agents() -> Requests:
    trace = chat(2500, rate=10.0, seed=0, agents=Agents())
    return trace.faster(0.85 * saturated(trace) / trace.rate)


@pytest.fixture(scope="module")
def ttft(agents: Requests) -> dict[str, float]:
    routers = {
        "lmetric": LMetric(),
        **{name: BASELINES[name]() for name in ("vllm-v1", "round-robin", "least-requests")},
    }
    return {name: float(simulate(agents, parse(FLEET), router).ttft.mean()) for name, router in routers.items()}


def test_first_tokens_come_in_less_than_half_the_time_of_vllm_on_a_cache_heavy_trace(ttft: dict[str, float]) -> None:
    assert ttft["lmetric"] < 0.5 * ttft["vllm-v1"]


def test_it_beats_every_rule_that_is_blind_to_the_cache(ttft: dict[str, float]) -> None:
    assert ttft["lmetric"] == min(ttft.values())


def test_it_lies_near_the_best_of_the_swept_weights_without_a_weight(agents: Requests, ttft: dict[str, float]) -> None:
    """The specification hopes for 5 %; measured over seeds it is 5 to 20 %, and far from the worst weight."""
    swept = [float(simulate(agents, parse(FLEET), Linear(weight)).ttft.mean()) for weight in WEIGHTS]
    assert ttft["lmetric"] < 1.25 * min(swept)
    assert ttft["lmetric"] < 0.7 * max(swept)


def test_at_low_load_the_rules_tie(agents: Requests) -> None:
    calm = agents.faster(0.05)
    times = [
        float(np.median(simulate(calm, parse(FLEET), router).tpot)) for router in (LMetric(), BASELINES["vllm-v1"]())
    ]
    assert times[0] == pytest.approx(times[1], rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(0, 99)), min_size=1, max_size=8), st.integers(2, 50))
def test_a_factor_on_either_indicator_changes_nothing(pairs: list[tuple[int, int]], factor: int) -> None:
    new, load = (np.array(column) for column in zip(*pairs, strict=True))

    class Seen(Cacheless):
        def new_prefill_tokens(self, request: Request) -> Any:
            return new * self.factor

        factor = 1

    chosen = []
    for scale in (1, factor):
        fleet = Seen()
        fleet.running, fleet.waiting, fleet.factor = load, np.zeros_like(load), scale
        chosen.append(LMetric().route(Request(0, 0.0, 10_000), fleet))
    assert chosen[0] == chosen[1]


# ----------------------------------------------------------------------------------------- the study


def table(**changes: float) -> pl.DataFrame:
    """Rows in which a rival needs 1 s on every workload, and LMETRIC what is given."""
    policies = ("vllm-v1", "predicted-ttft", *PRODUCTION.values(), "linear, best weight")
    rows = [
        {"workload": w, "load": 0.85, "policy": p, "seed": seed, "ttft_mean": 1.0, "tpot_mean": 1.0, "guarded": 0.0}
        for w in WORKLOADS for p in policies for seed in (3, 14, 15)
    ]  # fmt: skip
    for workload, value in changes.items():
        for policy in ("lmetric", "lmetric, guard"):
            rows += [
                {"workload": workload, "load": 0.85, "policy": policy, "seed": seed, "ttft_mean": value,
                 "tpot_mean": value, "guarded": 0.0}
                for seed in (3, 14, 15)
            ]  # fmt: skip
    return pl.DataFrame(rows)


def answer(claim: str, rows: pl.DataFrame) -> Any:
    return next(each for each in lmetric.claims if each.id == claim).measure(rows)


@pytest.mark.parametrize("claim", ["ttft-vllm", "tpot-vllm", "ttft-production", "tpot-production", "predicted-ttft"])
def test_no_verdict_rests_on_one_favourable_workload(claim: str) -> None:
    """A tenth on agents, and ten times as much on the others, is no fall."""
    found = answer(claim, table(conversation=10.0, chat=10.0, agents=0.1))
    assert found.value == pytest.approx(10 ** (1 / 3) - 1)
    assert found.cases == "conversation +900%, chat +900%, agents -90%"
    assert found.n == 3


def test_the_real_trace_has_a_question_of_its_own() -> None:
    assert answer("real-trace", table(conversation=1.3, chat=0.1, agents=0.1)).value == pytest.approx(0.3)


def test_the_bound_on_the_best_weight_is_that_of_the_worst_workload() -> None:
    found = answer("best-weight", table(conversation=1.0, chat=1.2, agents=0.5))
    assert found.value == pytest.approx(0.2)
    assert found.cases == "chat, of 3 cases"


def test_every_rival_of_the_specification_stands_in_the_table() -> None:
    named = {*lmetric.JUDGES, *lmetric.OTHERS}
    assert named >= {
        "predicted-ttft", "vllm-v1", "round-robin", "least-requests", "session-hash", "llm-d", "dynamo",
        "sglang-cache-aware", "loadaware",
    }  # fmt: skip


@pytest.mark.traces
@pytest.mark.parametrize("seed", [0, 1000, 77_000])
def test_nobody_is_judged_on_what_the_weight_was_tuned_on(seed: int) -> None:
    path = str(traces.find(TRACE))
    whole = lmetric._whole(path)
    judged, other = (make("conversation", path, 500, seed, tuning) for tuning in (False, True))
    at, at_other = (_place(whole, part) for part in (judged, other))
    assert at + 500 <= lmetric.JUDGED <= at_other
    drawn = [make("chat", path, 50, seed, tuning).prompt.tolist() for tuning in (False, True)]
    assert drawn[0] != drawn[1]


def _place(whole: Requests, part: Requests) -> int:
    rows = np.lib.stride_tricks.sliding_window_view(whole.prompt, len(part))
    return int(np.flatnonzero((rows == part.prompt).all(axis=1))[0])


@pytest.mark.traces
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_turn_of_the_study_comes_before_the_answer_it_holds(workload: str) -> None:
    trace = lmetric.at_load(make(workload, str(traces.find(TRACE)), 800, 5), 0.85)
    outcome = simulate(trace, parse(FLEET), LMetric())
    assert outcome.loop == "closed"
    assert (trace.after >= 0).mean() > 0.1  # type: ignore[operator]
    assert outcome.early == 0.0


@pytest.mark.parametrize("workload", ["chat", "agents"])
def test_the_load_is_what_is_sent_and_not_what_the_trace_would_like_to_send(workload: str) -> None:
    """At the rate of the trace itself, sessions that wait for answers sent 64 and 77 % of what the fleet can do."""
    drawn = make(workload, "", 2000, 3)
    records, judged = lmetric.late(
        simulate(lmetric.at_load(drawn, 0.85), parse(FLEET), BASELINES["vllm-v1"](), record=False)
    )
    sent = records["arrival"][judged]
    assert len(sent) / (sent.max() - sent.min()) == pytest.approx(0.85 * saturated(drawn), rel=0.03)


def test_what_is_measured_is_the_second_half(agents: Requests) -> None:
    outcome = simulate(agents, parse(FLEET), LMetric())
    openings = outcome.records["arrival"][agents.after < 0]  # type: ignore[operator]
    late = (outcome.records["arrival"] >= openings.max() / 2) & (outcome.records["arrival"] <= openings.max())
    assert 0.3 < late.mean() < 0.7
    assert steady(outcome)["ttft_mean"] == pytest.approx(outcome.ttft[late].mean())


@pytest.mark.traces
def test_a_case_has_a_row_for_everyone_and_says_the_weight() -> None:
    path = str(traces.find(TRACE))
    rows = lmetric.compare_at("agents", path, 0.85, 600, 11)
    assert {"lmetric", *lmetric.JUDGES, *PRODUCTION.values(), "linear, best weight"} <= rows.keys()
    for name in PRODUCTION.values():
        assert rows[name]["weight"] in WEIGHTS
    best, worst = (rows[f"linear, {which} weight"]["ttft_mean"] for which in ("best", "worst"))
    assert best <= rows[PRODUCTION["ttft_mean"]]["ttft_mean"] <= worst
    assert rows.keys().isdisjoint(lmetric.others_at("agents", path, 0.85, 300, 11))

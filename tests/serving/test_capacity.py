"""A capacity is a rate that is kept up: whatever the trace's length, with more sessions, over a steady window."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.routers import LeastRequests
from assay.serving.compare import compare
from assay.serving.engine.bill import per_million
from assay.serving.engine.capacity import find, window
from assay.serving.engine.own_trace import at_rate
from assay.serving.engine.promise import Promise
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse, uniform
from assay.serving.interface import SLO
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.chat import chat
from assay.workloads.closed_loop import closed, opened
from assay.workloads.more_sessions import sustained
from assay.workloads.requests import Requests

COST = StepCost(0.04 + 1e-4 * np.arange(9000), decode_kv=1e-8, kv_tokens=60_000)
FLEET = uniform(2, COST)
TARGETS = SLO(ttft=1.0, tpot=0.08)
FULL = 40.0  # seconds until this fleet is as full as it gets


def talks(count: int, seed: int) -> Requests:
    """People who chat, without prompts: they think for half a minute between turns."""
    made = chat(count, rate=2.0, seed=seed)
    assert made.after is not None
    return replace(made, prefixes=None)


def strangers(count: int, seed: int) -> Requests:
    """Requests that have nothing to do with one another, with long and short answers."""
    random = stream(seed, "strangers")
    prompt, output = random.lognormal(6.0, 0.6, count), random.lognormal(4.5, 0.6, count)
    arrival = np.cumsum(random.exponential(0.3, count))
    return Requests.of(arrival - arrival[0], prompt.astype(int) + 1, output.astype(int) + 1)


def bursts(count: int, seed: int) -> Requests:
    """Eight requests at once, and a pause."""
    made = strangers(count, seed)
    return replace(made, arrival=4.0 * (np.arange(count) // 8))


def repeated(trace: Requests, times: int) -> Requests:
    """The same file so many times in a row, its sessions with new names."""
    gap = trace.seconds * len(trace) / (len(trace) - 1)
    columns = {name: np.tile(getattr(trace, name), times) for name in ("prompt", "output")}
    made = Requests.of(np.concatenate([trace.arrival + k * gap for k in range(times)]), **columns)
    if trace.session is None:
        return made
    names = np.concatenate([trace.session + k * (trace.session.max() + 1) for k in range(times)])
    return closed(replace(made, session=names.astype(np.int32)))


@pytest.mark.parametrize(
    "trace", [pytest.param(closed(opened(talks(160, 1))), id="talks"), pytest.param(strangers(160, 2), id="strangers"),
              pytest.param(bursts(160, 3), id="bursts")],
)  # fmt: skip
def test_cut_in_half_or_ten_times_as_long_a_trace_has_the_same_capacity(trace: Requests) -> None:
    """Within the resolution that is stated: how far another trace of that length may be off, half of it √2 as far."""
    found = {}
    for name, each in {"whole": trace, "half": trace.part(0, 80), "ten": repeated(trace, 10)}.items():
        row, _ = Promise.of(each, FLEET, TARGETS).find(LeastRequests, {})
        found[name] = row["capacity"]
    off = Promise.of(trace, FLEET, TARGETS).resolution(LeastRequests, {}, found["whole"])
    assert abs(math.log(found["half"] / found["whole"])) <= math.sqrt(1 + 2) * math.log1p(off)
    assert abs(math.log(found["ten"] / found["whole"])) <= math.log1p(off)
    assert off < 0.5


def test_at_the_capacity_completions_keep_up_and_above_it_the_promise_breaks() -> None:
    trace = talks(300, 2)
    found = find(trace, FLEET, LeastRequests, TARGETS, fill=FULL)
    row = found.outcome.summary(TARGETS)
    assert row["attainment"] >= 0.95
    assert row["completed"] == pytest.approx(found.rate, rel=0.05)
    assert row["goodput"] == pytest.approx(found.rate * row["attainment"], rel=0.05)
    assert found.rate < found.above <= 1.021 * found.rate
    more = 1.15 * found.rate
    above = simulate(sustained(trace, more, window(more, FULL), FULL), FLEET, LeastRequests())
    assert above.attainment(TARGETS) < 0.95
    double = find(trace, uniform(4, COST), LeastRequests, TARGETS, fill=FULL)
    assert double.rate > 1.5 * found.rate


def test_who_promises_an_answer_in_the_end_is_not_served_by_a_queue_that_grows() -> None:
    """Without a target that a queue could break, what is served a second bounds the capacity."""
    trace = strangers(200, 1)
    found = find(trace, FLEET, LeastRequests, SLO(e2e=1e6), fill=FULL)
    flooded = simulate(sustained(trace, 4 * found.rate, 300.0, FULL), FLEET, LeastRequests())
    assert not flooded.flow.sustained
    assert found.rate == pytest.approx(flooded.flow.completed, rel=0.1)


def test_people_who_wait_longer_ask_less_often_and_a_capacity_is_what_they_asked() -> None:
    """Forty turns a person: a fleet at its limit slows them down, long before its queues are seen to grow."""
    random = stream(1, "forty-turns")
    gaps = random.exponential(8.0, (30, 40)) * (np.arange(40) > 0)
    arrival = (np.sort(random.uniform(0, 300, 30))[:, None] + np.cumsum(gaps, axis=1)).ravel()
    order, person = np.argsort(arrival), np.repeat(np.arange(30), 40).astype(np.int32)
    prompt, output = random.integers(100, 600, 1200), random.integers(20, 200, 1200)
    trace = closed(Requests.of(np.sort(arrival) - arrival.min(), prompt, output, session=person[order]))
    found = find(trace, FLEET, LeastRequests, SLO(e2e=1e6), fill=FULL, precision=0.05)
    flooded = simulate(sustained(trace, 3 * found.rate, 60.0, FULL), FLEET, LeastRequests())
    assert found.rate == found.outcome.flow.offered == pytest.approx(flooded.flow.completed, rel=0.05)
    assert found.outcome.flow.completed > 0.95 * found.rate
    assert found.outcome.requests.rate > 1.1 * found.rate  # what they would have asked, had nobody waited


def test_a_capacity_says_its_window_and_how_exact_it_is() -> None:
    answer, _ = compare(talks(120, 4), FLEET, {"least": "least-requests"}, slo=TARGETS, find=True)
    facts = answer["capacity"]
    assert facts["window_seconds"] >= 120.0
    assert f"over a steady window of {facts['window_seconds']:,.0f} s" in facts["means"]
    assert 0.02 <= facts["resolution"] < 1.0
    assert "Another 120 requests of the kind would give a capacity within" in answer["why"]


# ------------------------------------------------------------------------------------- a rate


@pytest.mark.parametrize("rate", [1.5, 3.0, 12.0])
@pytest.mark.parametrize("make", [talks, strangers], ids=["talks", "strangers"])
def test_a_rate_offers_what_it_says(make: partial[Requests], rate: float) -> None:
    outcome = simulate(at_rate(make(300, 5), f"{rate}"), uniform(12, COST), LeastRequests())
    assert outcome.flow.sustained
    assert outcome.offered == pytest.approx(rate, rel=0.12)
    assert outcome.summary()["completed"] == pytest.approx(rate, rel=0.12)


def test_a_fleet_that_does_not_keep_up_is_called_saturated_with_what_was_offered_and_served() -> None:
    answer, runs = compare(at_rate(talks(300, 6), "40"), uniform(1, COST), {"a": "least-requests", "b": "round-robin"})
    flow = runs["a"].flow
    assert flow.completed < 0.5 * flow.offered < 20.0
    assert "of the 40 asked for" in answer["why"]
    assert "every policy is saturated: queues grow" in answer["why"]
    calm, runs = compare(talks(100, 6), uniform(8, COST), {"least": "least-requests"})
    assert "saturated" not in calm["why"]
    assert f"Offered {runs['least'].flow.offered:.3g} requests/s, served" in calm["why"]


def test_a_short_trace_on_a_fleet_that_only_fills_up_is_not_called_saturated() -> None:
    """Sixty a second for seven seconds, answers of three: the fleet holds more and more, and nobody waits."""
    trace = Requests.of(np.arange(400) / 60.0, [200] * 400, [600] * 400)
    answer, runs = compare(trace, parse("20xh200:qwen3-8b"), {"least": "least-requests"})
    flow, waits = runs["least"].flow, runs["least"].ttft
    assert flow.completed < 0.8 * flow.offered and waits.max() < 0.1
    assert flow.fills and "saturated" not in answer["why"]
    assert "over before the fleet has filled up: --rate 60 goes on for longer" in answer["why"]
    flooded, runs = compare(trace, parse("1xl4:qwen3-8b"), {"least": "least-requests"})
    assert runs["least"].ttft.max() > 60 and "is saturated: queues grow" in flooded["why"]
    longer, runs = compare(at_rate(trace, "60"), parse("20xh200:qwen3-8b"), {"least": "least-requests"})
    assert runs["least"].flow.completed > 0.98 * runs["least"].flow.offered and "filled up" not in longer["why"]


@pytest.mark.parametrize("arrival", [[0.0], [3.0, 3.0], [0.0, 1.5]])
def test_of_a_few_requests_no_load_is_told(arrival: list[float]) -> None:
    trace = Requests.of(arrival, [100] * len(arrival), [10] * len(arrival))
    answer, _ = compare(trace, parse("1xh200:qwen3-8b"), {"least": "least-requests"})
    assert "Offered" not in answer["why"]


def test_the_price_of_a_million_tokens_is_that_of_the_steady_load_not_of_the_drain() -> None:
    """One answer that takes ten times as long as all others together changes nothing for those."""
    fleet = parse("2xh200:qwen3-8b")
    calm = Requests.of(np.arange(200) * 0.5, [300] * 200, [100] * 200)
    last = calm.output.copy()
    last[-1] = 20_000
    spent, late = (per_million(simulate(trace, fleet, LeastRequests())) for trace in (calm, replace(calm, output=last)))
    assert spent["usd_per_mtok"] is not None and late["usd_per_mtok"] is not None
    assert late["usd_per_mtok"] == pytest.approx(spent["usd_per_mtok"], rel=0.02)
    assert spent["usd_per_mtok"] == pytest.approx(2 * 3.8 / 3600 / (2 * 100) * 1e6, rel=0.05)


def test_a_rate_that_cannot_be_offered_is_refused_in_a_line() -> None:
    with pytest.raises(BadInput, match="arrive at once"):
        at_rate(Requests.of([0.0, 0.0], [9, 9], [1, 1]), "5")
    with pytest.raises(BadInput, match="more than can be simulated"):
        at_rate(strangers(50, 1), "1e9")


def test_the_figures_of_a_run_in_which_all_were_refused() -> None:
    trace = Requests.of([0.0, 1.0, 2.0], [5_000_000] * 3, [9] * 3)
    row = simulate(trace, parse("1xh200:qwen3-8b"), LeastRequests()).summary(TARGETS)
    assert (row["requests"], row["refused"], row["goodput"], row["attainment"]) == (0, 3, 0.0, 0.0)
    assert row["ttft_mean"] is None and row["tpot_p99"] is None and row["itl_p99"] is None

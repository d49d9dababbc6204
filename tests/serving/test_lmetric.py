"""LMETRIC where its paper says it works, and what it does not promise."""

from __future__ import annotations

import numpy as np
import pytest

from assay.serving.engine import simulate
from assay.serving.fleet import parse
from assay.serving.lmetric import FLEET, WEIGHTS, LMetric, saturated
from assay.serving.routers import BASELINES, Linear
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

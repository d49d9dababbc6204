"""Branching requests on one instance: the compiled engine against a plain one, tokens, blocks and joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.serving.taper.branch_engine import Served, noise, serve
from assay.serving.taper.branch_state import EAGER, OFF, Policy
from assay.sim.llm_cost import StepCost
from assay.workloads.branches import Branching
from tests.oracles.branches import Instance

COST = StepCost(
    tokens=0.010 + 1e-4 * np.maximum(0, np.arange(400) - 20), decode_seq=1e-5, decode_kv=1e-5, prefill_pair=1e-7,
    prefill_kv=1e-6, kv_tokens=4096,
)  # fmt: skip
HOSTED = replace(COST, launch=1e-4, launch_alone=0.012, launch_mixed=0.0125)  # a host that is slow with prompts
BELIEVED = COST.scaled(0.7)
TAPER = Policy("taper", regulated=True)
POLICIES = (
    OFF, EAGER, TAPER, Policy("cap-2", per_request=2), Policy("batch-3", per_batch=3),
    Policy("blind", regulated=True, order="least"), Policy("bold", regulated=True, margin=0.0, forget=1.0),
)  # fmt: skip

stages = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), max_size=3)
answers = st.builds(lambda first, rest: [[first], *rest], st.integers(1, 12), stages)
requests = st.tuples(st.floats(0, 0.5), st.integers(1, 60), answers)


@st.composite
def traces(draw: st.DrawFn) -> Branching:
    rows = draw(st.lists(requests, min_size=1, max_size=8))
    arrival = np.cumsum([gap for gap, _, _ in rows])
    return Branching.of(arrival.tolist(), [prompt for _, prompt, _ in rows], [answer for _, _, answer in rows])


def options(trace: Branching, room: float, **given: Any) -> dict[str, Any]:
    """Room for KV from just enough for the largest request to plenty."""
    largest = int((trace.prompt + trace.tokens).max()) // 4 + int(trace.widths.max()) + 2
    return {
        "ttft": 0.4, "tpot": 0.02, "believed": BELIEVED, "jitter": 0.05, "seed": 3, "block": 4, "chunk": 24,
        "kv_tokens": 4 * int(largest * room), "watermark": 0.05, "most": 6, "prefix_reads": "each", **given,
    }  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    traces(), st.sampled_from(POLICIES), st.floats(1.0, 4.0), st.sampled_from(["each", "once"]),
    st.sampled_from([COST, HOSTED]),
)  # fmt: skip
def test_the_compiled_engine_equals_the_plain_one(
    trace: Branching, policy: Policy, room: float, reads: str, cost: StepCost
) -> None:
    given = options(trace, room, prefix_reads=reads)
    fast, slow = serve(trace, cost, policy, **given), Instance(trace, cost, policy, **given)
    slow.run()
    assert (fast.steps, fast.count("extras"), fast.count("preempted")) == (slow.steps, slow.extras, slow.preempted)
    assert fast.first == pytest.approx([request.first for request in slow.requests], rel=1e-9)
    assert fast.finish == pytest.approx([request.finish for request in slow.requests], rel=1e-9)
    assert fast.theta == pytest.approx(slow.theta, rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=150)
@given(traces(), st.sampled_from(POLICIES), st.floats(1.0, 4.0))
def test_every_token_is_made_once_and_blocks_balance(trace: Branching, policy: Policy, room: float) -> None:
    given = options(trace, room, logged=5000)
    served = serve(trace, COST, policy, **given)
    assert np.array_equal(served.made, trace.length)  # of every branch, after any number of preemptions
    assert served.column("decodes").sum() + served.column("extras").sum() + len(trace) == trace.length.sum()
    assert served.count("used") == served.count("running") == served.count("again") == 0  # joins gave all blocks back
    assert served.count("peak") <= given["kv_tokens"] // given["block"]
    assert (served.first > trace.arrival).all() and (served.finish >= served.first).all()


def alone(policy: Policy, answer: list[list[int]], prompt: int = 32) -> Served:
    trace = Branching.of([0.0], [prompt], [answer])
    return serve(trace, COST, policy, ttft=9.0, tpot=9.0, block=4, logged=1000)


def test_a_shared_prefix_is_held_once_and_a_join_closes_half_filled_blocks() -> None:
    served = alone(EAGER, [[1], [5, 5, 5], [2]])
    # Before each step: 32 tokens of prompt; one more; three branches of their own; all 48 in one run; one more.
    assert served.column("used").tolist() == [8, 9, 12, 12, 12, 12, 12, 13]
    assert served.count("peak") == 9 + 3 * 2  # copies of the prefix would have taken 3 * 10


def test_a_stage_lasts_as_long_as_its_longest_branch_or_as_all_of_them() -> None:
    answer = [[3], [5, 9, 2], [4]]
    assert alone(EAGER, answer).steps == 3 + 9 + 4
    assert alone(OFF, answer).steps == 3 + 16 + 4
    assert alone(Policy("cap-2", per_request=2), answer).steps == 3 + 9 + 4  # 9 beside 5 and 2: longest first


def test_branches_read_the_prefix_each_or_once() -> None:
    trace = Branching.of([0.0], [1000], [[[1], [20] * 4]])
    each, once = (
        serve(trace, COST, EAGER, ttft=9.0, tpot=9.0, kv_tokens=8192, prefix_reads=reads) for reads in ("each", "once")
    )
    assert each.finish[0] - once.finish[0] == pytest.approx(20 * 3 * 1001 * COST.decode_kv)


def test_the_predictor_learns_what_the_steps_really_take() -> None:
    trace = Branching.of([0.1 * i for i in range(40)], [40] * 40, [[[10], [30, 20, 10], [5]]] * 40)
    served = serve(trace, COST, TAPER, ttft=1.0, tpot=0.03, believed=COST.scaled(0.5), jitter=0.02, logged=5000)
    error = np.abs(served.column("guess") / served.column("total") - 1)
    assert error[0] == pytest.approx(0.5)
    assert error[-200:].mean() < 0.02


def test_jitter_has_median_one_and_its_spread() -> None:
    logs = np.log([noise(np.uint64(5), step, 0.1) for step in range(4000)])
    assert abs(np.median(logs)) < 0.01
    assert logs.std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_tokens": 64}, "blocks of KV"),
        ({"block": 12}, "power of two"),
        ({"prefix_reads": "twice"}, "'each' or 'once'"),
        ({"chunk": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    trace = Branching.of([0.0], [100], [[[5], [5, 5]]])
    with pytest.raises(ValueError, match=message):
        serve(trace, COST, EAGER, ttft=1.0, tpot=0.1, **change)


def test_bad_policies_are_named() -> None:
    with pytest.raises(ValueError, match="no order 'shortest'"):
        Policy("x", order="shortest")
    with pytest.raises(ValueError, match="out of range"):
        Policy("x", per_request=0)

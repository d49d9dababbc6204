"""Rollouts on serving GPUs: requests stay in time, turns run exactly once, memory is shared without loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.llm_cost import StepCost
from assay.training import rose
from assay.training.rose.executor import Cluster, Policy, p99, share
from assay.workloads.requests import Requests
from assay.workloads.trajectories import draw

EXAMPLES = Path(__file__).parents[3] / "examples"


@cache
def step(rate: float, seed: int) -> dict[str, dict[str, Any]]:
    return rose.trained("qwen3-8b", rate, 512, "", seed)


@pytest.mark.parametrize(("rate", "seed"), [(1.0, 5), (6.0, 5), (5.0, 6)])
def test_serving_is_in_time_with_the_guard_and_late_without(rate: float, seed: int) -> None:
    """Near capacity, tokens that are all late by what is allowed would fill the lanes."""
    found = rose.served("qwen3-8b", rate, 512, "", seed)
    assert found["rose"]["alone_kept"] and found["rose"]["kept"]
    assert found["rose"]["borrowed"] > 100  # and serving GPUs really rolled out
    assert not found["no-guard"]["kept"]


def test_beyond_its_capacity_serving_is_late_alone_and_hardly_more_beside_rollouts() -> None:
    found = rose.served("qwen3-8b", 8.0, 512, "", 5)
    assert not found["alone"]["kept"]
    assert found["rose"]["ttft_within"] > found["alone"]["ttft_within"] - 0.01


def test_rollouts_gain_and_affinity_saves_reading() -> None:
    found = step(1.0, 5)
    assert found["rose"]["rollout"] < found["roll"]["rollout"]
    assert found["no-affinity"]["reread"] > 5 * found["rose"]["reread"]


def test_where_serving_is_saturated_rollouts_lose_nothing() -> None:
    found = step(8.0, 5)
    assert found["rose"]["step"] <= 1.02 * found["roll"]["step"]


def toy(room: int) -> Cluster:
    cost = StepCost(0.002 + 1e-5 * np.arange(9000), decode_kv=1e-8, prefill_pair=1e-11, kv_tokens=room)
    return Cluster(1, 2, cost, cost, room)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    guard=st.sampled_from(["slack", "turns", "none"]),
    affine=st.booleans(),
    rate=st.floats(0.5, 30),
)
def test_every_trajectory_is_done_exactly_once(seed: int, guard: str, affine: bool, rate: float) -> None:
    work = draw(40, seed)
    work = replace(work, prompt=work.prompt // 8 + 1, output=work.output // 20 + 1, env=work.env / 10)
    random = np.random.default_rng(seed)
    arrival = np.sort(random.random(int(30 * rate)) * 30)
    asked = Requests.of(arrival, random.integers(10, 900, len(arrival)), random.integers(1, 60, len(arrival)))
    found = share(work, asked, toy(int(work.length.max() * 3 + 2000)), Policy(guard=guard, affine=affine, places=4))
    assert np.isfinite(found.done).all() and found.makespan == found.done.max()
    tools = [work.env[a:b].sum() for a, b in zip(work.first[:-1], work.first[1:], strict=True)]
    assert (found.done >= np.array(tools)).all()


def test_serving_alone_is_a_plain_queue() -> None:
    """Requests that never meet take their prefill to the first token, and an iteration a token after it."""
    asked = Requests.of([0.0, 10.0], [100, 100], [5, 1])
    found = share(rose.NOBODY, asked, toy(10_000), Policy(), seconds=100.0)
    cost = toy(10_000).serve
    assert found.ttft == pytest.approx([cost.seconds(0, 0, [(100, 0)])] * 2)
    assert found.tpot[0] == pytest.approx(np.mean([cost.seconds(1, 101 + k) for k in range(4)]), rel=1e-6)
    assert p99([]) == 0.0


def test_near_the_headroom_rollouts_are_halved_put_out_and_done_all_the_same() -> None:
    work = draw(60, 1)
    work = replace(work, output=work.output // 4 + 1, env=work.env / 10)
    arrival = np.linspace(1, 20, 200)
    asked = Requests.of(arrival, np.full(200, 900), np.full(200, 400))
    found = share(work, asked, toy(int(work.length.max() * 2 + 3000)), Policy(places=16))
    assert found.halved > 0 and found.aborts > 0
    assert np.isfinite(found.done).all()


def test_generated_requests_come_in_bursts() -> None:
    asked = rose.generated(0, 1200.0, 8.0)
    by_second = np.bincount(asked.arrival.astype(int), minlength=1200)
    assert 2.0 < by_second.max() / by_second.mean() < 8.0
    assert asked.rate == pytest.approx(8.0, rel=0.2)


def test_bad_input_is_told(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"trajectory": 0, "turn": 0, "prompt_tokens": 900000, "gen_tokens": 5}\n')
    said = refused("compare", "rose", "--trace", str(EXAMPLES / "azure.csv"), "--trajectories", "t.jsonl")
    assert "room for" in said

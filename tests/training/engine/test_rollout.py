"""Rollouts from event to event are rollouts iteration by iteration; nothing is lost, nothing runs where it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.llm_cost import StepCost
from assay.training.engine import rollout_events as events
from assay.training.engine.rollout import RULES, Pool, Rollout, Rule, play, steps
from assay.workloads.trajectories import Trajectories, draw
from tests.oracles.rollout import Oracle

RULE = Rule(limits=(200, 10_000), chunk=64, most=6, rebuild=5, recent=20, visits=2, full=5)


def small(count: int, seed: int) -> Trajectories:
    """Rollouts of some ten tokens a turn, at which an oracle can look one by one."""
    work = draw(count, seed)
    return replace(work, prompt=work.prompt // 12 + 1, output=work.output // 30 + 1, env=work.env / 20)


def pool(seed: int, room: int) -> Pool:
    """Two small instances and a large one; no two take the same time for the same work."""
    random = np.random.default_rng(seed)

    def cost(speed: float) -> StepCost:
        line = (0.01 + 0.0001 * np.arange(200)) * speed * (1 + 0.1 * random.random())
        return StepCost(line, decode_kv=1e-6 * speed, decode_seq=1e-5, prefill_pair=1e-7, prefill_kv=2e-6,
                        launch=0.001, launch_mixed=0.015 * speed, kv_tokens=room)  # fmt: skip

    parts = [Pool.made(cost(1.0)), Pool.made(cost(1.0)), Pool.made(cost(0.4), bucket=1, gpus=4)]
    return parts[0] + parts[1] + parts[2]


@settings(deadline=None)
@given(count=st.integers(1, 40), seed=st.integers(0, 10_000), rule=st.sampled_from(RULES), tight=st.booleans())
def test_from_event_to_event_is_iteration_by_iteration(count: int, seed: int, rule: str, tight: bool) -> None:
    work = small(count, seed)
    chosen = replace(RULE, name=rule)
    places = pool(seed, int(work.length.max() * 1.5) if tight else 100_000)
    hint = np.random.default_rng(seed).integers(0, 2, count)
    found = play(work, places, chosen, hint=hint)
    oracle = Oracle(work, places, chosen, hint)
    assert np.allclose(found.done, oracle.run(), rtol=1e-9, atol=1e-7)
    assert (found.migrations, found.reread) == (oracle.moved, oracle.reread)


@settings(deadline=None)
@given(count=st.integers(1, 60), seed=st.integers(0, 10_000), rule=st.sampled_from(RULES), tasks=st.integers(1, 4))
def test_nothing_is_lost_and_memory_is_given_back(count: int, seed: int, rule: str, tasks: int) -> None:
    work = small(count, seed)
    run = Rollout(work, pool(seed, int(work.length.max() * 2)), replace(RULE, name=rule), task=np.arange(count) % tasks)
    run.submit(np.arange(count), 0.0)
    assert run.until() == [0] and run.until() == []
    inst, found = run.state.inst, run.outcome()
    assert found.finished == count and found.tokens == work.output.sum()
    for column in (events.LOAD, events.RUNNING, events.RESERVED, events.SPARE, events.WAITING, events.SEEN_TOKENS):
        assert (inst[:, column] == 0).all()
    alone = work.env.sum() / count  # nobody is done before its tools are
    assert found.makespan >= alone
    assert run.state.served.sum() == (work.prompt + work.output).sum()


def test_what_lies_on_an_instance_never_exceeds_its_room() -> None:
    work = small(60, 3)
    run = Rollout(work, pool(0, int(work.length.max() * 1.2)), RULE)
    run.submit(np.arange(60), 0.0)
    time = 0.0
    while not run.until(time):
        held = run.state.inst[:, events.RESERVED] + run.state.inst[:, events.SPARE]
        assert (held <= run.state.inst[:, events.ROOM]).all()
        time += 0.05
    assert run.outcome().evictions > 0


def test_steps_follow_one_another_and_equal_single_runs() -> None:
    parts = [small(30, seed) for seed in range(3)]
    found = steps(parts, pool(0, 100_000), RULE)
    single = [play(part, pool(0, 100_000), RULE) for part in parts]
    assert [one.makespan for one in found] == pytest.approx([one.makespan for one in single], rel=1e-6)


def test_tasks_take_turns() -> None:
    """A task that submits ten times as much does not keep the other waiting: its first turns are served as soon."""
    work = small(220, 1)
    task = np.array([0] * 200 + [1] * 20)
    run = Rollout(work, Pool.made(pool(0, 100_000).costs[0]), replace(RULE, quantum=64), task=task)
    run.submit(np.arange(220), 0.0)
    run.until(5.0)
    served = run.state.served / np.array([work[np.arange(200)].length.sum(), work[np.arange(200, 220)].length.sum()])
    assert served[1] > 3 * served[0]


def test_affinity_saves_reading() -> None:
    work = small(60, 5)
    kept, spread = (play(work, pool(0, 100_000), replace(RULE, name=name)) for name in ("sticky", "spread"))
    assert kept.reread == 0 < spread.reread


def test_a_trajectory_that_fits_nowhere_is_told() -> None:
    with pytest.raises(BadInput, match="room for 10"):
        play(small(3, 0), pool(0, 10))


@pytest.mark.timed
@pytest.mark.slow
def test_a_hundred_steps_of_ten_thousand_trajectories_take_five_seconds() -> None:
    import time

    parts = [draw(10_000, seed=0, step=step) for step in range(100)]
    places = Pool.of("h200:llama-3-8b", 32)
    steps(parts[:1], places)
    begin = time.process_time()
    found = steps(parts, places)
    assert sum(one.finished for one in found) == 1_000_000
    assert time.process_time() - begin < 5.0

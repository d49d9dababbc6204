"""A job while things go wrong."""

from __future__ import annotations

import pytest

from assay.record.errors import BadInput
from assay.sim.faults import Fault
from assay.training.engine.faulty import NETWORK, Action, Restart, run
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

PLAN, JOB, WHERE = Plan(Layout(tp=8, dp=2)), Job(64, 4096), ("llama-3-8b", "16xh100:ib100")


def step(plan: Plan = PLAN) -> float:
    return simulate(*WHERE, plan, JOB).step


def test_without_faults_all_steps_are_alike() -> None:
    done = run(*WHERE, PLAN, JOB, 5, [])
    assert done.ended == pytest.approx([step() * (i + 1) for i in range(5)])
    assert done.lost == 0


def test_a_slow_rank_slows_everybody_while_it_lasts() -> None:
    one = step()
    slow = Fault("slow", 5, start=2 * one, stop=3 * one, factor=2.0)
    done = run(*WHERE, PLAN, JOB, 6, [slow])
    forever = run(*WHERE, PLAN, JOB, 6, [Fault("slow", 5, 0.0, factor=2.0)])
    assert 6 * one < done.seconds < forever.seconds
    assert done.ended[1] == pytest.approx(2 * one)  # nothing before it began
    assert done.ended[5] - done.ended[4] == pytest.approx(one)  # and all as before after it ended


def test_what_is_left_of_a_step_goes_on_at_the_new_pace() -> None:
    one = step()
    double = run(*WHERE, PLAN, JOB, 1, [Fault("slow", 5, 0.0, factor=2.0)]).seconds
    half = run(*WHERE, PLAN, JOB, 1, [Fault("slow", 5, one / 2, factor=2.0)]).seconds
    assert half == pytest.approx(one / 2 + double / 2)


def test_degraded_links_between_nodes_cost_what_crosses_them() -> None:
    across = Plan(Layout(tp=8, dp=2), overlap=False)
    inside = Plan(Layout(tp=8, dp=1))
    bad = [Fault("slow", NETWORK, 0.0, factor=10.0)]
    assert run(*WHERE, across, JOB, 1, bad).seconds > step(across)
    alone = simulate("llama-3-8b", "8xh100", inside, JOB).step
    assert run("llama-3-8b", "8xh100", inside, JOB, 1, bad).seconds == pytest.approx(alone)


def test_a_crash_loses_the_step_and_the_restart() -> None:
    one = step()
    done = run(*WHERE, PLAN, JOB, 3, [Fault("crash", 0, 1.5 * one)], Restart(wait=10.0))
    assert done.seconds == pytest.approx(3 * one + 0.5 * one + 10.0)
    assert done.lost == pytest.approx(0.5 * one + 10.0)


def test_a_policy_may_go_on_with_another_plan() -> None:
    class Smaller:
        def on_crash(self, fault: Fault, plan: Plan) -> Action:
            return Action(1.0, Plan(plan.layout, recompute="full"))

    one, after = step(), step(Plan(PLAN.layout, recompute="full"))
    done = run(*WHERE, PLAN, JOB, 2, [Fault("crash", 0, 1.25 * one)], Smaller())
    assert done.ended[1] == pytest.approx(1.25 * one + 1.0 + after)


@pytest.mark.parametrize("fault", [Fault("slow", 99, 0.0), Fault("drop", 0, 0.0)])
def test_faults_that_no_step_knows(fault: Fault) -> None:
    with pytest.raises(BadInput, match="a step knows slow and crash, of ranks below 16"):
        run(*WHERE, PLAN, JOB, 1, [fault])


def test_faults_that_make_no_sense() -> None:
    with pytest.raises(BadInput, match="unknown fault 'melt'"):
        Fault("melt", 0, 0.0)
    with pytest.raises(BadInput, match="should start before it stops"):
        Fault("slow", 0, 5.0, 4.0)

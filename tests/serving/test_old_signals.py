"""Readings that are some seconds apart: what policies then see, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.routers import LeastRequests, RoundRobin
from assay.serving.engine.control import Control
from assay.serving.engine.simulator import Simulation, simulate
from assay.serving.fleet import uniform
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests

COST = StepCost(tokens=0.010 + 1e-5 * np.arange(9000), kv_tokens=100_000)


@dataclass
class Clerk:
    """In turn, and writes down what it sees."""

    seen: list[Any] = field(default_factory=list)

    def route(self, request: Request, fleet: Fleet) -> int:
        self.seen.append((fleet.now, fleet.age.tolist(), fleet.batch_size.tolist(), fleet.kv_free.tolist()))
        return int(request.id) % len(fleet)


def burst(times: Sequence[float], output: int = 1000) -> Requests:
    return Requests.of(times, [100] * len(times), [output] * len(times))


def test_a_policy_sees_the_last_reading_and_how_old_it_is() -> None:
    clerk = Clerk()
    simulate(burst([0.25, 0.5, 0.75, 1.5, 2.0]), uniform(2, COST), clerk, age=1.0)
    now, age, on_board, free = zip(*clerk.seen, strict=True)
    assert now == (0.25, 0.5, 0.75, 1.5, 2.0)
    assert age == ([0.0] * 2, [0.25] * 2, [0.5] * 2, [0.25] * 2, [0.75] * 2)  # readings at 0.25, 1.25, 2.25, …
    assert on_board == ([0, 0], [0, 0], [0, 0], [2, 1], [2, 1])
    assert free[:3] == ([1.0, 1.0],) * 3
    assert max(free[3]) < 1.0


def test_fresh_signals_have_no_age() -> None:
    clerk = Clerk()
    simulate(burst([0.25, 0.5, 0.75]), uniform(2, COST), clerk)
    assert [age for _, age, _, _ in clerk.seen] == [[0.0, 0.0]] * 3
    assert [on_board for _, _, on_board, _ in clerk.seen] == [[0, 0], [1, 0], [1, 1]]


def test_between_two_readings_all_run_to_who_was_idle() -> None:
    """One instance is busy when they are read; the eight who come before the next reading all take the other."""
    first = [0.0, 0.001]
    requests = burst([*first, *np.linspace(1.05, 1.4, 8)])

    class Pinned(LeastRequests):
        def route(self, request: Request, fleet: Fleet) -> int:
            return 0 if int(request.id) < len(first) else super().route(request, fleet)

    for age, went_to_the_idle_one in ((0.0, 5), (1.0, 8)):
        outcome = simulate(requests, uniform(2, COST), Pinned(), age=age)
        assert int((outcome.records["instance"][2:] == 1).sum()) == went_to_the_idle_one


def test_blind_policies_do_not_care() -> None:
    requests = burst(np.linspace(0.0, 3.0, 40).tolist(), output=50)
    fresh, old = (simulate(requests, uniform(3, COST), RoundRobin(), age=age) for age in (0.0, 0.3))
    np.testing.assert_array_equal(fresh.records["finish"], old.records["finish"])


@pytest.mark.parametrize("age", [-0.5, float("nan"), float("inf")])
def test_signals_of_no_age_are_refused(age: float) -> None:
    with pytest.raises(BadInput, match="signals cannot be"):
        simulate(burst([0.0]), uniform(1, COST), RoundRobin(), age=age)


class Never:
    """Holds everything back for ever."""

    def assign(self, queue: Sequence[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        return []


def test_reading_ends_where_nothing_will_ever_happen() -> None:
    outcome = Simulation(burst([0.0, 1.0]), uniform(2, COST), Never(), age=0.1).run()
    assert np.isnan(outcome.records["finish"]).all()


class Idle:
    """A planner that does nothing."""

    period = 0.7

    def plan(self, fleet: Fleet, control: Control) -> None:
        assert fleet.age.max() <= 0.1 + 1e-9


def test_planners_see_old_signals_too_and_the_run_ends() -> None:
    outcome = simulate(burst([0.0, 1.0]), uniform(2, COST), RoundRobin(), planner=Idle(), age=0.1)
    assert np.isfinite(outcome.records["finish"]).all()

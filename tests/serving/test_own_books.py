"""What a router counts itself: prompts without an answer, and the blocks of the prompts on board, each once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from assay.serving.baselines.routers import Dynamo
from assay.serving.engine import seen, simulator
from assay.serving.engine.own_books import with_board
from assay.serving.engine.simulator import Simulation, simulate
from assay.serving.engine.state import World
from assay.serving.fleet import uniform
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Prefixes, Requests
from tests.oracles.serving import Oracle
from tests.serving.conftest import Case, cases

BLOCK = 4
SECOND = StepCost(tokens=np.full(300, 1.0), kv_tokens=400)  # an iteration takes a second


def trace(arrival: list[float], prompt: list[int], output: list[int], shared: int) -> Requests:
    """Prompts that all begin with one segment of `shared` tokens, and go on each in its own way."""
    n = len(prompt)
    ints = lambda values: np.array(values, np.int32)  # noqa: E731
    prefixes = Prefixes(ints([-1]), ints([0]), ints([shared]), np.arange(n + 1), ints([0] * n), ints([-1] * n))
    return Requests.of(arrival, prompt, output, prefixes=prefixes)


class Clerk:
    """Sends everything to instance 0 and writes down the books; asks for the prompts from the nth decision on."""

    def __init__(self, asks_from: int = 0) -> None:
        self.asks_from = asks_from
        self.unanswered: list[int] = []
        self.prompts: list[int] = []

    def route(self, request: Request, fleet: Fleet) -> int:
        self.unanswered.append(int(fleet.unanswered[0]))
        if len(self.unanswered) > self.asks_from:
            self.prompts.append(int(fleet.prompt_tokens(request)[0]))
        return 0


def books(requests: Requests, asks_from: int = 0, **limits: Any) -> Clerk:
    clerk = Clerk(asks_from)
    fleet = replace(uniform(2, SECOND, **({"max_tokens": 200, "max_seqs": 20} | limits)), block=BLOCK)
    simulate(requests, fleet, clerk)
    return clerk


def test_a_prompt_is_unanswered_as_a_whole_until_its_first_token() -> None:
    # 100 tokens in chunks of 40: computed after three seconds, the others come at 0.5, 1.5, 2.5, 3.5
    chunked = books(trace([0, 0.5, 1.5, 2.5, 3.5], [100, 20, 20, 20, 20], [9] * 5, 4), max_seqs=1, max_tokens=40)
    assert chunked.unanswered == [0, 100, 116, 132, 48]  # whose first four tokens are cached when they are sent


def test_what_prompts_share_is_on_board_once_from_the_moment_it_is_sent() -> None:
    sharing = books(trace([0, 0.1, 0.2, 9.5], [40, 44, 47, 40], [3, 3, 20, 2], 20))
    assert sharing.prompts == [40, 40 + 24, 40 + 24 + 24, 44 + 20]  # full blocks; two have ended by then
    apart = books(Requests.of([0, 0.1, 0.2], [40, 44, 47], [3, 3, 20]))
    assert apart.prompts == [40, 84, 128]


def test_a_segment_counts_as_far_as_the_furthest_prompt_on_board() -> None:
    # two end inside a segment of 60 tokens: 52 and 30 of them, of which the longer has ended at nine seconds
    assert books(trace([0, 0.1, 9.5], [52, 30, 9], [3, 30, 3], 60)).prompts == [52, 52, 28]


@pytest.mark.parametrize("asks_from", [1, 2, 3])
def test_who_asks_late_is_told_the_same(asks_from: int) -> None:
    requests = trace([0, 0.1, 0.2, 9.5], [40, 44, 47, 40], [3, 3, 20, 2], 20)
    assert books(requests, asks_from).prompts == books(requests).prompts[asks_from:]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(ages=(0.0, 0.03), loops=True))
def test_dynamos_rule_decides_as_on_a_fleet_written_down_naively(case: Case) -> None:
    ours = Simulation(case.requests, case.fleet, Dynamo(), patience=1.0, **case.options)
    ours.run()
    theirs = Oracle(case.requests, case.fleet, Dynamo(), **case.options).run()
    for s in theirs.sequences:
        assert ours.world.requests["instance"][s.number] == s.instance
        np.testing.assert_allclose(ours.world.requests["finish"][s.number], s.finish, rtol=1e-9)


def test_the_first_question_may_take_as_long_as_compiling_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def compiled(world: World) -> World:
        clock[0] += 100.0
        return with_board(world)

    for module in (seen, simulator):
        monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(seen, "with_board", compiled)
    outcome = simulate(Requests.of([0, 1], [40, 44], [3, 3]), uniform(2, SECOND, max_tokens=200, max_seqs=20), Clerk())
    assert outcome.policy_seconds == 0.0

"""A policy beside itself is a tie: what luck brings is not a lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assay.serving.baselines.routers import LeastRequests, RoundRobin
from assay.serving.engine import contest
from assay.serving.engine.components import router
from assay.serving.engine.luck import Again
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse
from assay.serving.interface import SLO, Fleet, Request
from assay.workloads.chat import chat
from assay.workloads.requests import Requests

FLEET = parse("2xh200:qwen3-32b+2xh100:qwen3-32b")
TARGETS = SLO(ttft=0.15, tpot=0.03)


class AtRandom:
    """Anybody, drawn."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def route(self, request: Request, fleet: Fleet) -> int:
        return int(self.draw.integers(len(fleet)))


class First:
    """All to the first."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def route(self, request: Request, fleet: Fleet) -> int:
        return 0


class InTurn:
    """One after the other, from somewhere on."""

    def __init__(self, seed: int) -> None:
        self.turn = seed

    def route(self, request: Request, fleet: Fleet) -> int:
        self.turn += 1
        return self.turn % len(fleet)


class Fewest:
    """Who has fewest requests; who of them, by an order of its own."""

    def __init__(self, seed: int) -> None:
        self.order = np.random.default_rng(seed).permutation(4)

    def route(self, request: Request, fleet: Fleet) -> int:
        return int(np.lexsort((self.order, fleet.batch_size))[0])


def leaders(trace: Requests, makers: dict[str, Callable[[], Any]], targets: SLO | None) -> list[str]:
    def run(later: Requests, policy: str, seed: int) -> Outcome:
        return simulate(later, FLEET, makers[policy](), record=False)

    runs = {policy: run(trace, policy, 0) for policy in makers}
    table = [{"policy": policy} | runs[policy].summary(targets) for policy in makers]
    contest.add_leads(table, runs, targets, False, Again(trace, run))
    return contest.leaders(table)


def ties(kind: Callable[[int], Any], tries: int, count: int, rate: float, targets: SLO | None) -> int:
    """How often two of a kind are called a tie."""
    found = 0
    for number in range(tries):
        makers = {"a": lambda number=number: kind(2 * number), "b": lambda number=number: kind(2 * number + 1)}
        found += len(leaders(chat(count, rate=rate, seed=number), makers, targets)) == 2
    return found


@pytest.mark.parametrize("targets", [None, TARGETS], ids=["ttft", "goodput"])
def test_a_random_router_beside_itself_is_a_tie(targets: SLO | None) -> None:
    """Under a load at which one run alone would call one of two in seven the winner."""
    assert ties(AtRandom, 20, 400, 30.0, targets) >= 19


def test_who_draws_and_takes_no_seed_draws_anew_in_every_lap() -> None:
    """Traces on which the runs of one that draws the same again agreed that it is ahead of its twin."""
    for number in (4, 27, 65, 73, 98):
        makers = {"a": lambda number=number: AtRandom(2 * number), "b": lambda number=number: AtRandom(2 * number + 1)}
        assert len(leaders(chat(400, rate=30.0, seed=number), makers, None)) == 2


def test_a_lap_holds_the_trace_with_prompts_of_its_own_without_its_first_sessions() -> None:
    trace = chat(400, rate=30.0, seed=1)
    first = simulate(trace, FLEET, RoundRobin(), record=False)
    again = Again(trace, lambda laps, policy, seed: simulate(laps, FLEET, RoundRobin(), record=False))
    whole = [np.sort(first.records["prompt"])] + [
        np.sort(run.records["prompt"][run.judged]) for run in again.laps("a", first)
    ]
    assert [len(each) == len(whole[0]) for each in whole] == [True, False, False, False, False]
    assert all(0.8 * len(whole[0]) < len(each) < len(whole[0]) for each in whole[1:])
    later = again.laps("a", first)[2]
    assert later.cached_ratio == pytest.approx(first.cached_ratio, abs=0.1)  # not as if all had been asked before
    assert first.queueing.max() > 1.0 > later.queueing[:20].max()  # nobody is left over
    assert len(again.known) == 1
    assert Again(trace.part(0, 12), again.run).laps("a", first) == ()


def test_a_twin_is_a_tie_and_a_better_policy_still_wins() -> None:
    trace = chat(1500, rate=30.0, seed=1)
    assert len(leaders(trace, {"a": RoundRobin, "b": RoundRobin}, None)) == 2
    assert leaders(trace, {"least": LeastRequests, "first": lambda: First(3)}, None) == ["least"]


@pytest.mark.slow
@pytest.mark.parametrize("targets", [None, TARGETS], ids=["ttft", "goodput"])
@pytest.mark.parametrize("kind", [AtRandom, InTurn, Fewest])
@pytest.mark.parametrize(("count", "rate"), [(400, 10.0), (400, 30.0), (1500, 30.0)])
def test_of_two_hundred_tries_at_most_one_in_twenty_is_no_tie(
    kind: Callable[[int], Any], count: int, rate: float, targets: SLO | None
) -> None:
    assert ties(kind, 200, count, rate, targets) >= 190


def test_a_policy_that_takes_a_seed_draws_by_it() -> None:
    assert (router("power-of-two", 7).seed, router("power-of-two").seed) == (7, 0)
    assert router("lmetric", 7) is not None

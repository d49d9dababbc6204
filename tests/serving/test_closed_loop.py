"""Sessions are closed loops: a turn comes when the answer that its prompt holds is there, and somebody has thought."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.routers import LeastRequests, RoundRobin
from assay.serving.compare import compare
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.own_trace import in_loop
from assay.serving.engine.simulator import Simulation, simulate
from assay.serving.fleet import FleetSpec, uniform
from assay.serving.interface import Finished, Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads.chat import Agents, chat
from assay.workloads.closed_loop import closed
from assay.workloads.prefixes import turns
from assay.workloads.requests import Requests

COST = StepCost(0.010 + 1e-5 * np.arange(9000), decode_kv=1e-8, kv_tokens=200_000)
BUSY = uniform(2, COST)  # two instances for some 10 requests a second: answers take seconds


def agents(seed: int = 0, count: int = 400, rate: float = 12.0) -> Requests:
    return chat(count, rate=rate, seed=seed, agents=Agents(share=0.7))


def waits(outcome: Outcome) -> tuple[Any, Any]:
    """When each later turn was sent, and when the one before it had ended."""
    before = turns(outcome.requests)
    later = before >= 0
    return outcome.records["arrival"][later], outcome.records["finish"][before[later]]


@pytest.mark.parametrize("seed", [0, 7, 12345])
def test_no_turn_starts_before_the_one_it_continues_has_ended(seed: int) -> None:
    """At this load, played at fixed arrivals, a third of the turns hold an answer that is not there yet."""
    trace = agents(seed)
    sent, ended = waits(simulate(trace, BUSY, LeastRequests()))
    assert len(sent) > 200
    assert (sent >= ended).all()
    sent, ended = waits(simulate(trace, BUSY, LeastRequests(), loop="open"))
    assert (sent < ended).mean() > 0.3


def test_a_turn_comes_its_think_time_after_the_end_of_the_one_before() -> None:
    trace = agents()
    outcome = simulate(trace, BUSY, LeastRequests())
    assert trace.after is not None and trace.think is not None
    later = trace.after >= 0
    due = outcome.records["finish"][trace.after[later]] + trace.think[later]
    np.testing.assert_array_equal(outcome.records["arrival"][later], due)
    np.testing.assert_array_equal(outcome.records["arrival"][~later], trace.arrival[~later])
    assert outcome.ttft.min() > 0  # counted from when a turn was sent, not from the trace's arrival


def test_by_hand() -> None:
    """A first token after 11 ms and nine more every 10 ms; then half a second of thought."""
    cost = StepCost(tokens=0.010 + 1e-5 * (np.arange(9000) > 1) * 100, kv_tokens=100_000)
    requests = Requests.of([0.0, 0.05], [100, 200], [10, 10], after=np.array([-1, 0]), think=np.array([0.0, 0.5]))
    outcome = simulate(requests, uniform(1, cost), RoundRobin())
    assert outcome.records["finish"][0] == pytest.approx(0.101)
    assert outcome.records["arrival"][1] == pytest.approx(0.601)
    assert outcome.ttft.tolist() == pytest.approx([0.011, 0.011])


def test_requests_without_sessions_are_served_exactly_as_at_fixed_arrivals() -> None:
    trace = replace(agents(), session=None, after=None, think=None)
    either = [simulate(trace, BUSY, LeastRequests(), loop=loop) for loop in ("closed", "open")]
    assert [outcome.loop for outcome in either] == ["open", "open"]
    assert either[0].records.tobytes() == either[1].records.tobytes()
    first_turns = replace(trace, session=np.arange(len(trace), dtype=np.int32))  # sessions of one turn wait for nobody
    assert simulate(first_turns, BUSY, LeastRequests()).records.tobytes() == either[0].records.tobytes()


def test_a_session_column_alone_is_a_closed_loop_with_the_gaps_of_the_trace() -> None:
    requests = Requests.of([0.0, 2.0, 2.5], [100, 300, 500], [50, 50, 50], session=np.array([0, 0, 0], np.int32))
    outcome = simulate(requests, uniform(1, COST), RoundRobin())
    assert outcome.loop == "closed"
    ended, sent = outcome.records["finish"], outcome.records["arrival"]
    assert (sent[1:] - ended[:-1]).tolist() == pytest.approx([1.0, 0.0])  # gaps of 2 s and 0.5 s, less 50 tokens' 1 s


def test_the_same_run_twice_is_the_same() -> None:
    runs = [simulate(agents(3), BUSY, LeastRequests()).records.tobytes() for _ in range(2)]
    assert runs[0] == runs[1]


class Sees:
    """Writes down when it is asked about whom, and what it is told."""

    key = "sees"

    def __init__(self) -> None:
        self.asked: dict[int, tuple[float, float]] = {}
        self.ended: set[int] = set()
        self.too_early: list[int] = []
        self.before: Any = None

    def route(self, request: Request, fleet: Fleet) -> int:
        r = int(request.id)
        self.asked[r] = (request.arrival, fleet.now)
        if self.before[r] >= 0 and int(self.before[r]) not in self.ended:
            self.too_early.append(r)
        return fleet.argmin(fleet.batch_size)

    def finished(self, request: Request, done: Finished) -> None:
        self.ended.add(int(request.id))
        assert done.ttft > 0


def test_a_policy_sees_a_turn_only_when_it_is_sent_and_with_that_time_as_its_arrival() -> None:
    trace, router = agents(), Sees()
    router.before = trace.after
    outcome = simulate(trace, BUSY, router)
    assert router.too_early == []
    assert len(router.asked) == len(trace)
    for r, (arrival, now) in router.asked.items():
        assert arrival == now == outcome.records["arrival"][r]


class Holding:
    """A batch router that keeps at most four aboard, in order of arrival."""

    key = "holding"

    def assign(self, queue: list[Request], fleet: Fleet) -> list[tuple[Request, int]]:
        assert [request.arrival for request in queue] == sorted(request.arrival for request in queue)
        free = max(0, 4 - int(fleet.batch_size.sum()))
        return [(request, int(request.id) % len(fleet)) for request in queue[:free]]


def test_turns_that_are_held_back_wait_for_the_one_before_too() -> None:
    outcome = simulate(agents(count=200), BUSY, Holding())
    sent, ended = waits(outcome)
    assert (sent >= ended).all()
    assert np.isfinite(outcome.records["finish"]).all()


def test_a_turn_that_fits_nowhere_ends_when_it_is_refused_and_its_session_goes_on() -> None:
    after, think = np.array([-1, 0, 1, -1, 3]), np.array([0.0, 1.0, 2.0, 0.0, 0.5])
    requests = Requests.of([0, 1, 2, 3, 4], [100, 9000, 120, 9000, 50], [5] * 5, after=after, think=think)
    outcome = simulate(requests, uniform(1, COST, kv_tokens=1600), RoundRobin())
    assert outcome.served.tolist() == [True, False, True, False, True]
    sent, ended = outcome.records["arrival"], outcome.records["finish"]
    assert sent[2] == pytest.approx(ended[0] + 3.0)
    assert sent[4] == 3.5
    assert np.isfinite(ended[outcome.served]).all()


def test_many_refused_turns_in_a_row() -> None:
    n = 5000
    requests = Requests.of(np.arange(n), [9000] * (n - 1) + [10], [5] * n, session=np.zeros(n, np.int32))
    outcome = simulate(requests, uniform(1, COST, kv_tokens=1600), RoundRobin())
    assert outcome.served.sum() == 1


class Idle:
    """A planner that only looks."""

    period = 0.3

    def plan(self, fleet: Fleet, control: Any) -> None:
        pass


def test_with_a_planner_every_turn_is_served() -> None:
    outcome = simulate(agents(count=150), BUSY, LeastRequests(), planner=Idle())
    sent, ended = waits(outcome)
    assert (sent >= ended).all()
    assert np.isfinite(outcome.records["finish"]).all()


def test_requests_that_wait_for_later_ones_are_refused() -> None:
    requests = Requests.of([0.0, 1.0], [10, 10], [5, 5], after=np.array([1, -1]), think=np.zeros(2))
    with pytest.raises(BadInput, match="waits for an earlier one"):
        simulate(requests, BUSY, RoundRobin())
    with pytest.raises(BadInput, match="unknown loop 'ajar'"):
        Simulation(requests, BUSY, RoundRobin(), loop="ajar")


# ------------------------------------------------------------------------------------- what is offered


def test_as_many_requests_a_second_are_offered_while_the_fleet_keeps_up() -> None:
    """Sessions begin as often as before: only their turns come later, and less often where answers take longer."""
    trace = agents(count=8000, rate=16.0)
    quick, slow = (simulate(trace, uniform(n, COST), LeastRequests()) for n in (8, 1))
    assert quick.offered == pytest.approx(16.0, rel=0.1)
    assert slow.offered < 0.8 * quick.offered
    assert quick.early == slow.early == 0.0
    assert simulate(trace, uniform(1, COST), LeastRequests(), loop="open").offered == pytest.approx(
        trace.rate, rel=0.01
    )


def facts(requests: Requests, loop: str = "closed", fleet: FleetSpec = BUSY) -> tuple[str, dict[str, Any]]:
    answer, _ = compare(requests, fleet, {"least": "least-requests"}, loop=loop)
    return answer["trace"]["loop"], answer["table"][0]


def test_compare_says_which_loop_was_played_and_what_was_offered() -> None:
    trace = agents()
    text, row = facts(trace)
    assert text.startswith("closed: ") and " turns are sent " in text
    assert row["offered"] < trace.rate
    text, row = facts(trace, "open")
    assert text.startswith("open: ") and "% of the turns before the one they continue had ended" in text
    assert row["offered"] == pytest.approx(trace.rate, rel=0.01)
    text, _ = facts(Requests.of([0.0, 1.0], [10, 10], [5, 5]))
    assert text == "open: every request at its arrival"


def test_turns_that_a_trace_does_not_name_are_inferred_on_request() -> None:
    trace = agents(count=100)
    nameless = replace(trace, session=None, after=None, think=None)
    assert in_loop(nameless, "closed").after is None
    found = in_loop(nameless, "inferred").after
    assert found is not None
    assert (found >= 0).sum() > 30
    with pytest.raises(BadInput, match="--loop inferred needs prompts that share beginnings"):
        in_loop(Requests.of([0.0], [10], [5]), "inferred")


def test_played_faster_people_think_faster_and_a_part_forgets_who_came_before_it() -> None:
    trace = closed(Requests.of([0.0, 4.0, 9.0], [9] * 3, [50] * 3, session=np.zeros(3, np.int32)))
    faster = trace.faster(2.0)
    assert faster.think is not None and faster.think.tolist() == [0.0, 1.5, 2.0]
    part = trace.part(1, 3)
    assert part.after is not None and part.after.tolist() == [-1, 0]
    assert part.think is not None and part.think.tolist() == [3.0, 4.0]

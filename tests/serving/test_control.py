"""Switches in the middle of service: GPUs are conserved, nobody is lost, and every request finishes exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.serving.baselines.routers import LeastRequests, RoundRobin
from assay.serving.engine.control import Control
from assay.serving.engine.simulator import PolicyFailed, Simulation, simulate
from assay.serving.fleet import FleetSpec, Instance, uniform
from assay.serving.fleet.gpu_pool import Group, Pool, communicators, pack, spread
from assay.serving.interface import Fleet
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.requests import Requests

SLOTS, ROOM = 4, 2000


def cost(width: int, skew: float = 1.0) -> StepCost:
    n = np.arange(600)
    return StepCost(
        tokens=skew * (0.004 + (0.010 + 1e-4 * n) / width), decode_kv=1e-6 / width, kv_tokens=ROOM * width, kv_bytes=1e5
    )


COSTS = {(width, slot): cost(width, 1.0 + 0.5 * slot) for width in (1, 2, 4) for slot in range(SLOTS)}  # skewed engines


def spec(group: Group) -> Instance:
    return Instance(
        COSTS[group.width, group.first], tp=group.width, gpus=group.width, max_seqs=16, max_tokens=256, role=group.role
    )


def trace(seed: int, n: int = 60, rate: float = 12.0) -> Requests:
    random = stream(seed, "test-control")
    return Requests.of(
        np.cumsum(random.exponential(1 / rate, n)),
        random.integers(1, 900, n),
        random.geometric(1 / 40, n).clip(max=900),
    )


def fleet() -> FleetSpec:
    return FleetSpec(tuple(spec(Group(slot, 1)) for slot in range(SLOTS)))


@dataclass(frozen=True)
class Step:
    """One change: which widths and roles, whether KV moves, how long it takes."""

    cut: tuple[tuple[int, str], ...]
    keep: bool
    pause: float


@dataclass
class Scrambler:
    """A planner that follows a schedule, one change a tick."""

    steps: list[Step]
    period: float = 0.13
    pool: Pool = field(default_factory=lambda: Pool(SLOTS, spec))
    seen: list[int] = field(default_factory=list)
    key = "scrambler"

    def begin(self, fleet: Fleet, control: Control) -> None:
        self.pool.begin(control, [Group(slot, 1) for slot in range(SLOTS)])

    def plan(self, fleet: Fleet, control: Control) -> None:
        self.seen.append(sum(group.width for group in self.pool.groups))
        if control.now < self.pool.busy or not self.steps:
            return
        step = self.steps.pop(0)
        groups = pack(SLOTS, step.cut, self.pool.groups)
        place = spread(control, groups, lambda group: float(group.width))
        self.pool.switch(control, groups, step.keep, lambda moved: step.pause, place)


CUTS = (
    ((1, "both"),) * 4,
    ((2, "both"),) * 2,
    ((4, "both"),),
    ((2, "both"), (1, "both"), (1, "both")),
    ((2, "prefill"), (2, "decode")),
    ((1, "prefill"), (2, "decode"), (1, "both")),
    ((1, "prefill"), (1, "decode"), (2, "both")),
    ((2, "decode"), (2, "both")),
)
schedules = st.lists(
    st.builds(Step, st.sampled_from(CUTS), st.booleans(), st.sampled_from([0.0, 0.01, 0.4, 3.0])), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), schedules, st.sampled_from([4.0, 12.0, 60.0]), st.sampled_from(["macro", "step"]))
def test_every_request_finishes_once_through_any_schedule_of_switches(
    seed: int, steps: list[Step], rate: float, mode: str
) -> None:
    planner = Scrambler(list(steps))
    requests = trace(seed, rate=rate)
    simulation = Simulation(requests, fleet(), LeastRequests(), planner=planner, mode=mode, patience=1.0)
    outcome = simulation.run()
    w = simulation.world
    done = sorted(w.finished[: len(requests)].tolist())
    assert done == list(range(len(requests)))  # each exactly once
    assert (outcome.records["emitted"] == requests.output).all()
    assert np.isfinite(outcome.ttft).all() and (outcome.ttft > 0).all() and (outcome.e2e >= outcome.ttft).all()
    for name in ("decodes", "prefills", "waiting", "context", "uncomputed"):
        assert not w.instances[name].any(), name
    assert not w.caches["active"].any()
    assert all(total == SLOTS for total in planner.seen)  # no GPU is lost or doubled


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), schedules)
def test_jumping_and_stepping_agree_through_switches(seed: int, steps: list[Step]) -> None:
    requests = trace(seed, n=30)
    runs = [
        simulate(requests, fleet(), RoundRobin(), planner=Scrambler(list(steps)), mode=mode, patience=1.0)
        for mode in ("macro", "step")
    ]
    assert np.array_equal(runs[0].ttft, runs[1].ttft)
    assert np.array_equal(runs[0].e2e, runs[1].e2e)


def test_a_halt_takes_effect_at_the_end_of_the_iteration_in_flight() -> None:
    stopped: list[float] = []

    @dataclass
    class Pause:
        period: float = 1.0
        key = "pause"

        def plan(self, fleet: Fleet, control: Control) -> None:
            if not stopped:
                control.halt([0], lambda: (stopped.append(control.now), control.resume([0], control.now + 5.0)))  # type: ignore[func-returns-value]

    step = StepCost(np.full(300, 0.3), kv_tokens=10_000)
    plain = uniform(1, step, max_seqs=8, max_tokens=256)
    requests = Requests.of([0.0], [10], [10])
    outcome = simulate(requests, plain, RoundRobin(), planner=Pause())
    assert stopped == [pytest.approx(1.2)]  # iterations end at 0.3, 0.6, 0.9, 1.2
    assert outcome.e2e[0] == pytest.approx(10 * 0.3 + 5.0)


def test_kept_kv_is_not_computed_again_and_dropped_kv_is() -> None:
    def run(keep: bool) -> Any:
        planner = Scrambler([Step(CUTS[0], True, 0.0), Step(CUTS[2], keep, 0.0)], period=0.5)
        requests = Requests.of([0.0, 0.0], [800, 700], [60, 60])
        simulation = Simulation(requests, fleet(), RoundRobin(), planner=planner)
        outcome = simulation.run()
        return outcome, planner.pool

    kept, moved = run(True)
    lost, dropped = run(False)
    assert moved.carried > 1500 and moved.recomputed == 0
    assert dropped.recomputed == moved.carried and dropped.carried == 0
    assert kept.instances["prefilled"].sum() == 1500
    assert lost.instances["prefilled"].sum() >= 1500 + dropped.recomputed
    assert lost.records["preemptions"].tolist() == [1, 1] and kept.records["preemptions"].tolist() == [0, 0]


def test_a_planner_that_strands_requests_is_told_so() -> None:
    @dataclass
    class Strand:
        period: float = 0.5
        key = "strand"

        def plan(self, fleet: Fleet, control: Control) -> None:
            control.accepting(0, False)

    requests = Requests.of([0.0, 0.4], [100, 100], [400, 50])
    one = FleetSpec((replace(spec(Group(0, 1)), max_seqs=1),))
    with pytest.raises(PolicyFailed, match="leaves 1 requests unserved"):
        simulate(requests, one, RoundRobin(), planner=Strand())


def test_an_instance_that_is_let_in_again_looks_at_its_queue() -> None:
    @dataclass
    class Gate:
        period: float = 2.0
        key = "gate"

        def begin(self, fleet: Fleet, control: Control) -> None:
            control.limit(0, 0)

        def plan(self, fleet: Fleet, control: Control) -> None:
            control.limit(0, 16)

    outcome = simulate(Requests.of([0.1], [100], [3]), FleetSpec((spec(Group(0, 1)),)), RoundRobin(), planner=Gate())
    assert outcome.queueing[0] == pytest.approx(1.9)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_packing_conserves_gpus_is_aligned_and_leaves_standing_groups(data: st.DataObject) -> None:
    slots = data.draw(st.sampled_from([4, 8, 16, 32]))

    def widths() -> list[tuple[int, str]]:
        left, found = slots, []
        while left and data.draw(st.integers(0, 9)):
            width = data.draw(st.sampled_from([w for w in (1, 2, 4, 8) if w <= left]))
            found.append((width, data.draw(st.sampled_from(["both", "prefill", "decode"]))))
            left -= width
        return found

    first = widths()
    groups = pack(slots, first)
    again = pack(slots, first, groups)
    assert again == groups
    other = pack(slots, widths(), groups)
    for cut in (groups, other):
        covered = [slot for group in cut for slot in group.slots]
        assert len(covered) == len(set(covered)) and set(covered) <= set(range(slots))
        assert all(group.first % group.width == 0 for group in cut)
    assert len(communicators(slots)) == slots - 1
    with pytest.raises(ValueError, match="do not fit"):
        pack(slots, [*first, (1, "both")] if sum(w for w, _ in first) == slots else [(2 * slots, "both")])

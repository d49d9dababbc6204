"""The compiled orders against heapq and a list."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.serving.engine import state
from assay.serving.engine.queues import add_end, drop_end, leave, pop, push, start
from assay.serving.engine.state import World
from assay.serving.engine.world import build
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests
from tests.serving.conftest import FleetSpec, Instance

SIZE = 60
KEYS = st.sampled_from([-np.inf, 0.0, 1.0, 2.5, 7.0])


def world_of(size: int = SIZE) -> World:
    requests = Requests.of(np.zeros(size), np.ones(size), np.ones(size))
    return build(requests, FleetSpec((Instance(StepCost(np.ones(300)), kv_tokens=100, max_tokens=256),) * 2))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 1), KEYS)), max_size=SIZE))
def test_who_waits_is_admitted_by_key_and_number(steps: list[tuple[int, float] | None]) -> None:
    w = world_of()
    heaps: list[list[tuple[float, int]]] = [[], []]
    numbers = iter(np.random.default_rng(len(steps)).permutation(SIZE).tolist())
    for turn, step in enumerate(steps):
        i = turn % 2 if step is None else step[0]
        if step is not None:
            r = next(numbers)
            w.requests[r]["key"] = step[1]
            push(w.handle[0], i, r)
            heapq.heappush(heaps[i], (step[1], r))
        elif heaps[i]:
            assert pop(w.handle[0], i) == heapq.heappop(heaps[i])[1]
        for one in range(2):
            assert w.instances[one]["waiting"] == len(heaps[one])
            assert w.instances[one]["queue"] == (heaps[one][0][1] if heaps[one] else state.NONE)
    for i in range(2):
        while heaps[i]:
            assert pop(w.handle[0], i) == heapq.heappop(heaps[i])[1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=SIZE))
def test_who_finishes_next_is_first_in_the_heap(steps: list[tuple[int, int]]) -> None:
    heap, listed = np.zeros(SIZE, state.FINISHING), []
    for r, (end, action) in enumerate(steps):
        if action == 0 and listed:  # somebody in the middle is withdrawn
            slot = end % len(listed)
            gone = (int(heap[slot]["end"]), int(heap[slot]["request"]))
            drop_end(heap, len(listed), slot)
            listed.remove(gone)
        elif action == 1 and listed:
            drop_end(heap, len(listed), 0)
            listed.remove(min(listed))
        else:
            add_end(heap, len(listed), end, r)
            listed.append((end, r))
        if listed:
            assert (heap[0]["end"], heap[0]["request"]) == min(listed)
        assert sorted(zip(heap["end"][: len(listed)], heap["request"][: len(listed)], strict=True)) == sorted(listed)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=SIZE))
def test_who_runs_is_kept_in_order_of_admission(steps: list[int]) -> None:
    w = world_of()
    running: list[int] = []
    for r, step in enumerate(steps):
        if step % 3 == 0 and running:
            gone = running.pop(step % len(running))
            leave(w.handle[0], 0, gone)
        else:
            start(w.handle[0], 0, r)
            running.append(r)
        order, r = [], int(w.instances[0]["oldest"])
        while r >= 0:
            order.append(r)
            r = int(w.requests[r]["newer"])
        assert order == running
        assert w.instances[0]["newest"] == (running[-1] if running else state.NONE)

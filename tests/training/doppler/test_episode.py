"""Compiled episodes are those of the definitions: what is looked at, who could be chosen, what the teacher chooses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from assay.training.doppler import policy
from assay.training.doppler.graphs import OpGraph
from tests.oracles.placing_episodes import Placed, taught
from tests.training.doppler.test_runtime import drawn


def player(graph: OpGraph, devices: int) -> policy.Player:
    return policy.Player(policy.Policy(1), policy.View(graph, devices), policy.DOPPLER)


@given(st.integers(0, 10_000), st.integers(2, 16), st.integers(2, 4), st.booleans())
def test_the_teacher_is_list_scheduling_and_looks_at_what_there_is(
    seed: int, nodes: int, devices: int, ports: bool
) -> None:
    random = np.random.default_rng(seed)
    graph = drawn(random, nodes)
    if graph.data.all():
        return
    one = player(graph, devices).play(random, taught=True, ports=ports)
    right, looked = taught(graph, devices, policy.View(graph, devices).bottom,
                           list(zip(one.order.tolist(), one.chosen.tolist(), strict=True)), ports)  # fmt: skip
    assert right
    assert np.allclose(one.live, looked, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 16), st.integers(2, 4))
def test_a_policy_sees_the_same_and_chooses_among_those_whose_inputs_are_placed(
    seed: int, nodes: int, devices: int
) -> None:
    random = np.random.default_rng(seed)
    graph = drawn(random, nodes)
    if graph.data.all():
        return
    one, placed, begin = player(graph, devices).play(random), Placed(graph, devices), 0
    there = {int(u) for u in np.flatnonzero(graph.data)}
    for t, (v, d) in enumerate(zip(one.order.tolist(), one.chosen.tolist(), strict=True)):
        before = there | {u for u, _ in placed.steps}
        able = {w for w in range(graph.nodes) if w not in before and set(graph.inputs[w]) <= before}
        assert set(one.able[begin : one.until[t]].tolist()) == able
        assert v in able
        assert np.allclose(one.live[t], placed.tells(v), atol=1e-9)
        placed.steps.append((v, d))
        begin = int(one.until[t])

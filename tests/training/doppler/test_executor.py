"""Two real workers compute what one process does, whatever the placement, and can be learned from."""

from __future__ import annotations

import numpy as np
import pytest

from assay.training.doppler import executor, rivals
from assay.training.doppler.graphs import chainmm


def test_results_are_those_of_one_process_for_any_placement() -> None:
    graph = chainmm(2)
    random = np.random.default_rng(0)
    places = [rivals.single(graph, 2), rivals.enumerative(graph, 2),
              graph.settled(random.integers(0, 2, graph.nodes))]  # fmt: skip
    seconds, apart = executor.measure(graph, places, workers=2, block=32, rounds=2, seed=0)
    assert seconds.shape == (2, 3)
    assert (seconds > 0).all()
    assert apart <= 1e-4


def test_a_policy_learns_from_real_runs() -> None:
    pytest.importorskip("torch")
    from assay.training.doppler import policy

    graph = chainmm(2)
    layers = policy.Policy(0).layers()
    found = executor.stage_three(graph, layers, workers=2, block=16, episodes=16, seed=0)
    assert found["runs"] == 16 + 3 * 2 * 4
    assert min(found["before"], found["after"]) > 0

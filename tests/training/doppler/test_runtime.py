"""The simulator is work-conserving and keeps to what waits for what; graphs are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.doppler.graphs import GRAPHS, OpGraph, chainmm, ffnn, llama_layer
from assay.training.doppler.rivals import enumerative, round_robin, single
from assay.training.doppler.runtime import play


def drawn(random: np.random.Generator, nodes: int) -> OpGraph:
    """A random graph: some data, some operators without inputs, results of all sizes."""
    inputs = [tuple(sorted({int(u) for u in random.integers(0, v, random.integers(0, 4))})) if v else ()
              for v in range(nodes)]  # fmt: skip
    seconds = random.uniform(1e-4, 3e-3, nodes)
    seconds[[v for v in range(nodes) if not inputs[v] and random.random() < 0.5]] = 0.0
    return OpGraph("drawn", seconds, random.uniform(0, 4e7, nodes), tuple(inputs), np.arange(nodes))


@given(st.integers(0, 10_000), st.integers(2, 25), st.integers(1, 4))
def test_nobody_idles_who_has_something_ready_and_everything_waits_for_its_inputs(
    seed: int, nodes: int, devices: int
) -> None:
    random = np.random.default_rng(seed)
    graph = drawn(random, nodes)
    place = random.integers(0, devices, nodes)
    run = play(graph, place, devices, random)
    ready = np.array([max((run.ends[u] for u in run.dag.indices[a:b]), default=0.0)
                      for a, b in zip(run.dag.indptr[:-1], run.dag.indptr[1:], strict=True)])  # fmt: skip
    assert (run.starts >= ready - 1e-12).all()
    for where in np.unique(run.device):
        mine = np.flatnonzero(run.device == where)
        mine = mine[np.lexsort((run.ends[mine], run.starts[mine]))]
        assert (run.starts[mine][1:] >= run.ends[mine][:-1] - 1e-12).all()  # one at a time
        free = np.concatenate([[0.0], run.ends[mine][:-1]])
        for k in range(len(mine)):  # it would have begun something at once, had anything been ready
            waiting = ready[mine[k:]].min()
            assert run.starts[mine[k]] <= max(free[k], waiting) + 1e-12


@given(st.integers(0, 10_000), st.integers(2, 25), st.integers(2, 4))
def test_a_result_is_sent_once_to_every_device_that_reads_it(seed: int, nodes: int, devices: int) -> None:
    random = np.random.default_rng(seed)
    graph = drawn(random, nodes)
    place = random.integers(0, devices, nodes)
    run = play(graph, place, devices)
    wanted = {(u, int(place[v])) for v, before in enumerate(graph.inputs) for u in before if place[u] != place[v]}
    assert len(run.ends) - nodes == len(wanted)
    ports = sorted(int(place[u]) + devices for u, _ in wanted)
    assert sorted(run.device[nodes:].tolist()) == ports


@pytest.mark.parametrize("name", GRAPHS)
def test_one_device_takes_the_sum_and_none_takes_less_than_its_share_or_the_longest_way(name: str) -> None:
    graph = GRAPHS[name]()
    assert play(graph, single(graph, 4), 4).seconds == pytest.approx(graph.seconds.sum())
    way = graph.dag.ends(graph.seconds).max()
    for place in (round_robin(graph, 4), enumerative(graph, 4)):
        assert play(graph, place, 4).seconds >= max(graph.seconds.sum() / 4, way)
    assert 100 <= graph.nodes <= 260


def test_a_blocked_product_is_the_product() -> None:
    from assay.training.doppler.executor import in_one_process, inputs

    graph, block = chainmm(2), 8
    store = inputs(graph, block, seed=1)
    found = in_one_process(graph, store)
    whole = [np.block([[store[4 * m + 2 * i + j] for j in range(2)] for i in range(2)]) for m in range(5)]
    a, b, c, d, e = whole
    last = np.flatnonzero(graph.meta == graph.meta.max())
    result = np.block([[found[last[2 * i + j]] for j in range(2)] for i in range(2)])
    assert np.allclose(result, a @ b + c @ (d @ e), atol=1e-4)


def test_data_lies_where_it_is_read_most() -> None:
    graph = ffnn(2)
    place = graph.settled(np.arange(graph.nodes) % 3)
    for u in np.flatnonzero(graph.data):
        readers: list[Any] = [int(place[v]) for v, before in enumerate(graph.inputs) if u in before]
        assert readers.count(int(place[u])) == max(readers.count(d) for d in range(3))
    assert not llama_layer().data.all()

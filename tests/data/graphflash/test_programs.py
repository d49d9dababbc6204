"""Answers by functions are those of the definitions, whatever the design, the parts and the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.graphflash import Design, network, simulate
from assay.data.graphflash.programs import PROGRAMS
from assay.data.graphflash.rivals import InMemory
from assay.data.graphflash.run import plan
from assay.data.store.delayed import PROFILES
from tests.oracles import graph_programs as oracle

DESIGNS = [
    Design(mode, layout, local, wake)
    for mode in ("pinned", "rotating")
    for layout in ("bundle", "pair", "vertex")
    for local, wake in ((True, "mail"), (False, "all"))
]


def ran(program: str, graph: Any, **options: Any) -> Any:
    """By functions that take no time."""
    return simulate(program, graph, PROFILES["zero"], cold=(0.0, 0.0), pace=0.0, **options)


def right(program: str, n: int, edges: list[tuple[int, int]], weights: list[float], root: int) -> Any:
    if program == "pagerank":
        return oracle.pagerank(n, edges, 0.85)
    if program == "components":
        return oracle.components(n, edges)
    if program == "labels":
        return oracle.labels(n, edges, 20)
    if program == "triangles":
        return oracle.triangles(n, edges)
    found = oracle.distances(n, edges, weights if program == "sssp" else [1.0] * len(edges), root)
    return found if program == "sssp" else [-1 if far == np.inf else far for far in found]


def agrees(program: str, found: Any, expected: Any) -> bool:
    if program == "triangles":
        return bool(int(found.sum()) == expected)
    if program == "pagerank":
        return float(np.abs(found - expected).sum()) < 1e-6
    return bool(np.array_equal(found, expected))


@given(
    st.sampled_from(list(PROGRAMS)),
    st.integers(2, 14), st.integers(0, 40), st.sampled_from(DESIGNS), st.integers(1, 6), st.integers(1, 3),
    st.sampled_from(["hash", "range", "metis"]), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=20)
def test_every_program_gives_what_its_definition_says(
    program: str, n: int, m: int, design: Design, parts: int, workers: int, how: str, seed: int
) -> None:
    """Loops, repeats, vertices without edges and parts without edges included."""
    rng = np.random.default_rng(seed)
    edges, weights = rng.integers(0, n, (m, 2)), rng.integers(0, 9, m) / 4
    graph = network(edges, weights, n)
    pairs = [tuple(edge) for edge in edges.tolist()]
    found = ran(program, graph, design=design, parts=parts, workers=workers, how=how, root=1)
    assert agrees(program, found.values, right(program, n, pairs, weights.tolist(), 1))


@pytest.mark.parametrize("program", PROGRAMS)
def test_modes_and_layouts_give_the_same_bytes_as_memory(program: str) -> None:
    rng = np.random.default_rng(5)
    graph = network(rng.integers(0, 40, (120, 2)), rng.random(120), 40)
    for local in (True, False):
        seen = []
        for layout in ("bundle", "pair", "vertex"):
            options: dict[str, Any] = {"design": Design("rotating", layout, local), "parts": 6, "workers": 3}
            options["tolerance"] = 0.1
            seen.append(ran(program, graph, **options).values.tobytes())
        options["design"] = Design("pinned", "bundle", local, checkpoint=2)
        kept = ran(program, graph, **options).values
        assert set(seen) == {InMemory(plan(program, graph, **options)).run().tobytes()}
        assert kept.tobytes() == InMemory(plan(program, graph, **options), of=2).run().tobytes()


def test_igraph_agrees_on_a_larger_graph() -> None:
    pytest.importorskip("igraph", reason="pip install igraph")
    from assay.data.graphflash import trials
    from assay.data.graphflash.rivals import Igraph

    graph = trials.graph_of("rmat", 1 << 11, 8, 3)
    for program in PROGRAMS:
        if program == "labels":
            continue  # igraph's breaks ties by lot
        task = plan(program, graph, workers=2)
        peer, found = Igraph(program, task.graph).run(), ran(program, graph, workers=2)
        if program == "triangles":
            assert int(found.values.sum()) == int(peer[0])
        elif program == "pagerank":
            assert np.abs(found.values - peer).sum() < 1e-6
        else:
            assert np.array_equal(found.values, peer), program


def test_only_those_with_mail_are_called() -> None:
    """On a long path a search is in one part at a time."""
    path = network([(i, i + 1) for i in range(63)])
    some = ran("bfs", path, design=Design("rotating"), parts=16, how="range")
    every = ran("bfs", path, design=Design("rotating", wake="all"), parts=16, how="range")
    assert np.array_equal(some.values, np.arange(64)) and np.array_equal(every.values, np.arange(64))
    assert some.woken == 16 + 15, "all to begin with, then one after the other"
    assert every.woken == 16 * 16


def test_running_on_inside_a_part_saves_supersteps_and_living_together_saves_mail() -> None:
    path = network([(i, i + 1) for i in range(63)])
    hops = ran("bfs", path, design=Design("rotating", local=False), parts=4, how="range", workers=2)
    runs = ran("bfs", path, design=Design("rotating"), parts=4, how="range", workers=2)
    kept = ran("bfs", path, design=Design("pinned"), parts=4, how="range", workers=2)
    assert (hops.steps, runs.steps) == (64, 4)
    assert (runs.messages, kept.messages) == (3, 1)


def test_a_bundle_is_one_put_and_a_key_a_vertex_is_many() -> None:
    rng = np.random.default_rng(2)
    graph = network(rng.integers(0, 400, (4000, 2)), n=400)
    puts = {
        layout: ran("components", graph, design=Design("rotating", layout), parts=8).ledger.requests("put", "function")
        for layout in ("bundle", "pair", "vertex")
    }
    woken = ran("components", graph, design=Design("rotating"), parts=8).woken
    assert puts["bundle"] == 2 * woken, "one object and one record each"
    assert puts["bundle"] < puts["pair"] < puts["vertex"] / 10

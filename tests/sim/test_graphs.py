from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim import graphs
from assay.sim.graphs import CSR, Complete, conductance, edges_of, fiedler
from tests.oracles import swarm as oracle


@st.composite
def edge_lists(draw: st.DrawFn, least: int = 1, most: int = 9) -> tuple[int, list[tuple[int, int]]]:
    n = draw(st.integers(least, most))
    node = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(node, node), max_size=3 * n))


@st.composite
def connected(draw: st.DrawFn, least: int = 2, most: int = 9) -> CSR:
    n, extra = draw(edge_lists(least, most))
    tree = [(u, draw(st.integers(0, u - 1))) for u in range(1, n)]
    return CSR.from_edges(tree + extra, n)


def rows(graph: CSR) -> list[list[int]]:
    return [graph.neighbours(u).tolist() for u in range(graph.n)]


def as_networkx(graph: CSR) -> nx.Graph:
    twin = nx.Graph()
    twin.add_nodes_from(range(graph.n))
    twin.add_edges_from(edges_of(graph))
    return twin


def same(one: CSR, other: CSR) -> bool:
    return np.array_equal(one.indptr, other.indptr) and np.array_equal(one.indices, other.indices)


@given(edge_lists())
def test_from_edges_is_the_simple_graph(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    twin = nx.Graph()
    twin.add_nodes_from(range(n))
    twin.add_edges_from((u, v) for u, v in edges if u != v)
    graph = CSR.from_edges(edges, n)
    assert rows(graph) == [sorted(twin[u]) for u in range(n)]
    assert (graph.n, graph.m) == (n, twin.number_of_edges())
    assert graph.degrees.tolist() == [d for _, d in twin.degree()]
    assert graph.is_connected == nx.is_connected(twin)
    assert same(graph, CSR.from_networkx(twin))
    assert same(graph, CSR.from_networkx(nx.MultiDiGraph(twin)))
    assert same(graph, CSR.from_scipy(graph.to_scipy()))


@pytest.mark.parametrize("edges", [[(0, -1)], [(0, 5)], [0, 1], [(0.0, 1.0)], [(0, 1, 2)]])
def test_bad_edges_are_told(edges: list[object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        CSR.from_edges(edges, n=3)  # type: ignore[arg-type]


def test_gamma_is_average_over_least_degree() -> None:
    assert graphs.star(5).gamma == 8 / 5
    assert graphs.cycle(5).gamma == Complete(5).gamma == 1
    assert CSR.from_edges([(0, 1)], 3).gamma == float("inf")


def test_no_nodes_are_not_connected() -> None:
    assert not CSR.from_edges([], 0).is_connected


def test_networkx_is_not_needed() -> None:
    code = "import sys, assay.sim.graphs, assay.protocols.div.swarm; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


FAMILIES = [
    (graphs.cycle(7), nx.cycle_graph(7)),
    (graphs.cycle(20), nx.cycle_graph(20)),
    (graphs.torus(3), nx.grid_2d_graph(3, 3, periodic=True)),
    (graphs.torus(4), nx.grid_2d_graph(4, 4, periodic=True)),
    (graphs.star(2), nx.star_graph(1)),
    (graphs.star(9), nx.star_graph(8)),
    *((graphs.barbell(k, p), nx.barbell_graph(k, p)) for k, p in [(2, 0), (3, 0), (3, 1), (3, 4), (5, 3), (8, 4)]),
    *((graphs.ring_of_cliques(c, s), nx.ring_of_cliques(c, s))
      for c, s in [(2, 3), (3, 2), (5, 2), (3, 3), (3, 4), (3, 6), (4, 5), (5, 4), (6, 3), (2, 10)]),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "twin"), FAMILIES)
def test_families_and_their_closed_forms(graph: CSR, twin: nx.Graph) -> None:
    edges = list(nx.convert_node_labels_to_integers(twin, ordering="sorted").edges())
    assert same(graph, CSR.from_edges(edges))
    counted = conductance(replace(graph, phi=None))
    assert counted.exact
    assert conductance(graph).low == conductance(graph).high == pytest.approx(counted.low, rel=1e-14)


def test_odd_torus_by_looking_at_all_sixteen_million_cuts() -> None:
    torus = graphs.torus(5)
    assert graphs._least_cut(graphs._masks(torus), torus.degrees) == conductance(torus).low == 1 / 4


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_complete_graphs_agree_with_their_rows(n: int) -> None:
    short, long = Complete(n), CSR.from_networkx(nx.complete_graph(n))
    assert (short.n, short.m, short.degree, short.gamma) == (long.n, long.m, long.degree, long.gamma)
    assert short.degrees.tolist() == long.degrees.tolist()
    assert fiedler(short) == pytest.approx(fiedler(long))
    assert conductance(short) == conductance(long)


@given(connected(most=8))
@settings(deadline=None, max_examples=60)
def test_conductance_is_the_least_over_all_cuts_and_within_its_bounds(graph: CSR) -> None:
    exact = oracle.conductance(rows(graph))
    assert conductance(graph) == graphs.Conductance(exact, exact, exact=True)
    value, vector = graphs._second(graph)
    assert value / 2 <= exact + 1e-12
    assert exact <= graphs._sweep(graph, vector) + 1e-12
    assert graphs._sweep(graph, vector) <= np.sqrt(2 * value) + 1e-9


@given(connected(most=12))
@settings(deadline=None)
def test_fiedler_is_networkx_s(graph: CSR) -> None:
    laplacian = nx.normalized_laplacian_matrix(as_networkx(graph)).toarray()
    assert fiedler(graph) == pytest.approx(np.linalg.eigvalsh(laplacian)[1], abs=1e-10)


def test_disconnected_graphs_do_not_mix() -> None:
    graph = CSR.from_edges([(0, 1), (2, 3)])
    assert fiedler(graph) == 0
    assert conductance(graph) == graphs.Conductance(0, 0, exact=True)


@pytest.mark.parametrize(
    ("graph", "value"),
    [(graphs.cycle(5000), 1 - np.cos(2 * np.pi / 5000)), (graphs.torus(40), (1 - np.cos(2 * np.pi / 40)) / 2)],
)
def test_large_sparse_graphs_by_factors(graph: CSR, value: float) -> None:
    assert fiedler(graph) == pytest.approx(value, rel=1e-6)
    bounds = conductance(replace(graph, phi=None))
    assert bounds.low <= conductance(graph).high <= bounds.high


def test_lanczos_dense_and_factors_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graphs.random_regular(600, 4, seed=3)
    by_factors, again = fiedler(graph), fiedler(graph)
    monkeypatch.setattr(graphs, "_FILL", 0)
    by_lanczos = fiedler(graph)
    monkeypatch.setattr(graphs, "_DENSE", 1000)
    assert by_factors == again
    assert by_factors == pytest.approx(fiedler(graph), rel=1e-8)
    assert by_lanczos == pytest.approx(fiedler(graph), rel=1e-8)


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 5))
@settings(deadline=None)
def test_random_regular_graphs_are_simple_regular_connected(n: int, d: int, seed: int) -> None:
    if d >= n or n * d % 2:
        with pytest.raises(ValueError, match="even expected"):
            graphs.random_regular(n, d, seed)
        return
    graph = graphs.random_regular(n, d, seed)
    assert graph.degree == d
    assert all(u not in row and all(a < b for a, b in pairwise(row)) for u, row in enumerate(rows(graph)))
    assert same(graph, CSR.from_edges(np.array(list(edges_of(graph))).reshape(-1, 2), n))
    assert d < 3 or graph.is_connected
    assert same(graph, graphs.random_regular(n, d, seed))


def test_random_regular_is_spread_over_the_graphs() -> None:
    # Of the labelled 3-regular graphs on 6 nodes, 10 are K(3,3) and 60 are prisms.
    triangles = [sum(nx.triangles(as_networkx(graphs.random_regular(6, 3, seed))).values()) for seed in range(700)]
    assert 70 <= triangles.count(0) <= 130
    # Random 8-regular graphs have close to Poisson(7**3 / 6 = 57) triangles: repairs leave no mark.
    many = [sum(nx.triangles(as_networkx(graphs.random_regular(1000, 8, seed))).values()) / 3 for seed in range(12)]
    assert abs(np.mean(many) - 7**3 / 6) < 4 * np.sqrt(7**3 / 6 / 12)


def test_erdos_renyi() -> None:
    assert graphs.erdos_renyi(9, 1).m == 36
    assert graphs.erdos_renyi(9, 0).m == 0
    assert graphs.erdos_renyi(1, 0.5).n == 1
    sizes = [graphs.erdos_renyi(300, 0.1, seed).m for seed in range(20)]
    assert abs(np.mean(sizes) - 4485) < 4 * np.sqrt(4485 * 0.9 / 20)
    hits = sum(graphs.erdos_renyi(6, 0.5, seed).to_scipy().toarray() for seed in range(800))
    assert np.abs(hits[np.triu_indices(6, 1)] / 800 - 0.5).max() < 0.08
    with pytest.raises(ValueError, match="probability"):
        graphs.erdos_renyi(5, 1.5)


@pytest.mark.parametrize(
    "call", ["cycle(2)", "torus(2)", "star(1)", "barbell(1)", "ring_of_cliques(1, 3)", "Complete(0)"]
)
def test_too_small_is_told(call: str) -> None:
    with pytest.raises(ValueError, match=r"at least \d expected"):
        eval(call, vars(graphs))

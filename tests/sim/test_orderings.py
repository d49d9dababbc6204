"""Orders are permutations that shorten what they promise to shorten; partitions are whole, balanced and local."""

from __future__ import annotations

import importlib.util

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.graphs import CSR, cycle, erdos_renyi, ring_of_cliques, torus
from assay.sim.orderings import ORDERS, breadth_first, by_degree, label_propagation, order_of, places
from assay.sim.partitions import PARTITIONERS, amplification, cut_share, partition, spinner
from assay.workloads.graph_generate import communities

graphs = st.builds(
    lambda n, p, seed: erdos_renyi(n, p, seed), st.integers(1, 40), st.floats(0, 0.3), st.integers(0, 99)
)


def shuffled(graph: CSR, seed: int) -> CSR:
    name = np.random.default_rng(seed).permutation(graph.n)
    rows = np.repeat(np.arange(graph.n), graph.degrees)
    return CSR.from_edges(np.stack([name[rows], name[graph.indices]], axis=1), graph.n)


def reach(graph: CSR, order: np.ndarray) -> float:
    """How far apart neighbours stand, on average."""
    place = places(order)
    return float(np.abs(place[np.repeat(np.arange(graph.n), graph.degrees)] - place[graph.indices]).mean())


@given(graphs, st.sampled_from(ORDERS))
def test_every_order_names_every_node_once(graph: CSR, name: str) -> None:
    order = order_of(graph, name)
    assert sorted(order.tolist()) == list(range(graph.n))
    assert order[places(order)].tolist() == sorted(order.tolist()) or places(order)[order].tolist() == list(
        range(graph.n)
    )


@given(graphs)
def test_degrees_fall_along_the_order_of_degrees(graph: CSR) -> None:
    assert (np.diff(graph.degrees[by_degree(graph)]) <= 0).all()


@given(graphs)
def test_breadth_first_is_level_by_level(graph: CSR) -> None:
    """Distances from the start of each component never fall along the order."""
    other = networkx.Graph()
    other.add_nodes_from(range(graph.n))
    other.add_edges_from((u, int(v)) for u in range(graph.n) for v in graph.neighbours(u))
    order = breadth_first(graph).tolist()
    at = 0
    while at < graph.n:
        far = networkx.single_source_shortest_path_length(other, order[at])
        levels = [far[u] for u in order[at : at + len(far)]]  # a KeyError: the component is not in one piece
        assert levels == sorted(levels)
        at += len(far)


@pytest.mark.parametrize("name", ["bfs", "rcm", "community"])
def test_neighbours_of_a_shuffled_grid_come_close_again(name: str) -> None:
    graph = shuffled(torus(30), 3)
    assert reach(graph, order_of(graph, name)) < 0.5 * reach(graph, np.arange(graph.n))


def test_communities_stand_together() -> None:
    made = communities(2000, 20, degree=12, mixing=0.05, seed=4)
    graph = CSR.from_edges(made.edges, 2000)
    block = made.block[order_of(graph, "community")]
    assert (np.diff(block) != 0).sum() < 0.25 * (np.diff(made.block) != 0).sum()


@given(st.integers(3, 12), st.integers(4, 12), st.integers(0, 9))
def test_cliques_in_a_ring_are_told_apart(count: int, size: int, seed: int) -> None:
    graph = shuffled(ring_of_cliques(count, size), seed)
    label = label_propagation(graph, seed=seed)
    rows = np.repeat(np.arange(graph.n), graph.degrees)
    inside = label[rows] == label[graph.indices]
    assert inside.mean() >= 1 - 2.5 / size


def test_an_unknown_order_or_partitioner_is_told() -> None:
    with pytest.raises(ValueError, match="one of degree, bfs"):
        order_of(cycle(4), "alphabet")
    with pytest.raises(ValueError, match="one of hash, range"):
        partition(cycle(4), 2, "alphabet")
    with pytest.raises(ValueError, match="5 parts of 4 nodes"):
        partition(cycle(4), 5, "hash")


# -------------------------------------------------------------------------------------- partitions


@given(graphs, st.integers(1, 6), st.sampled_from(["hash", "range", "spinner"]), st.integers(0, 5))
def test_parts_cover_all_nodes_and_are_balanced(graph: CSR, parts: int, how: str, seed: int) -> None:
    parts = min(parts, graph.n)
    part = partition(graph, parts, how, seed)
    sizes = np.bincount(part, minlength=parts)
    assert len(part) == graph.n and len(sizes) == parts
    assert sizes.max() <= max(1.05 * graph.n / parts, -(-graph.n // parts))


def test_label_propagation_and_metis_cut_far_less_than_hashing() -> None:
    made = communities(3000, 12, degree=12, mixing=0.1, seed=1)
    graph = CSR.from_edges(made.edges, 3000)
    cut = {how: cut_share(graph, partition(graph, 4, how)) for how in PARTITIONERS if how != "metis" or _has_metis()}
    assert cut["spinner"] < 0.6 * cut["hash"]
    if "metis" in cut:
        assert cut["metis"] < 0.6 * cut["hash"]


def _has_metis() -> bool:
    return importlib.util.find_spec("pymetis") is not None


@given(graphs, st.integers(1, 5))
def test_amplification_counts_each_foreign_neighbour_of_a_part_once(graph: CSR, parts: int) -> None:
    part = partition(graph, min(parts, graph.n), "hash")
    held = {(int(part[u]), int(v)) for u in range(graph.n) for v in graph.neighbours(u)}
    outside = sum(part[v] != p for p, v in held)
    assert amplification(graph, part) == pytest.approx(1 + outside / graph.n)


def test_spinner_leaves_isolated_nodes_where_they_are() -> None:
    graph = CSR.from_edges([(0, 1)], 10)
    assert np.bincount(spinner(graph, 2), minlength=2).tolist() == [5, 5]

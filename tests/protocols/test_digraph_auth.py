"""One-way networks: conditions, what no algorithm can do, and a protocol under attack."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols import digraphs
from assay.protocols.digraph_auth import answer, apart, attack, stage, verdict
from assay.protocols.digraphs import all_digraphs, edges, from_edges, holds, members, reach, source
from assay.protocols.full_information import impossible
from assay.protocols.kernel.world import World
from assay.protocols.nodes.directed import SignedFlooding
from tests.oracles import full_information


def complete(n):
    return from_edges(n, [(u, v) for u in range(n) for v in range(n) if u != v])


@st.composite
def networks(draw, low=2, high=6):
    n = draw(st.integers(low, high))
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    return from_edges(n, draw(st.lists(st.sampled_from(pairs), unique=True)))


def as_networkx(graph):
    made = nx.DiGraph(edges(graph))
    made.add_nodes_from(range(len(graph)))
    return made


@given(networks(), st.data())
def test_reach_is_what_a_graph_library_says(graph, data):
    n = len(graph)
    failed = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    v = data.draw(st.sampled_from(sorted(set(range(n)) - failed)))
    rest = as_networkx(graph).subgraph(set(range(n)) - failed)
    assert set(members(reach(graph, v, sum(1 << w for w in failed)))) == nx.ancestors(rest, v) | {v}


def by_definition(condition, graph, f):
    """The condition as it is written down, with sets."""
    n = len(graph)
    made = as_networkx(graph)

    def heard(v, failed):
        rest = made.subgraph(set(range(n)) - set(failed))
        return nx.ancestors(rest, v) | {v}

    some = [set(chosen) for k in range(f + 1) for chosen in combinations(range(n), k)]
    for shared in some if condition == "3-reach" else [set()]:
        for first in some:
            for second in [first] if condition == "1-reach" else some:
                for u, v in combinations(range(n), 2):
                    for a, b in ((u, v), (v, u)):
                        if a in first | shared or b in second | shared:
                            continue
                        common = heard(a, first | shared) & heard(b, second | shared)
                        if len(common) < (f + 1 if condition == "2-reach+" else 1):
                            return False
    return True


@settings(max_examples=60, deadline=None)
@given(networks(high=5), st.integers(0, 2))
def test_conditions_are_their_definitions(graph, f):
    for condition in ("1-reach", "2-reach", "2-reach+", "3-reach"):
        assert holds(condition, graph, f) == by_definition(condition, graph, f), condition


def test_stronger_conditions_imply_weaker_ones_on_all_networks_of_four():
    for graph in all_digraphs(4):
        if holds("3-reach", graph, 1):
            assert holds("2-reach+", graph, 1)
        if holds("2-reach+", graph, 1):
            assert holds("2-reach", graph, 1)
        if holds("2-reach", graph, 1):
            assert holds("1-reach", graph, 1) and holds("one-source", graph, 1)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_on_two_way_networks_the_conditions_are_numbers_and_connectivity(n):
    """n > 3f and connectivity > 2f; n > 2f and > f; n > 3f and > f: the undirected theorems."""
    pairs = list(combinations(range(n), 2))
    for code in range(0, 1 << len(pairs), 1 if n < 5 else 7):
        two_way = [pair for place, pair in enumerate(pairs) if code >> place & 1]
        graph = from_edges(n, [(u, v) for pair in two_way for u, v in (pair, pair[::-1])])
        made = nx.Graph(two_way)
        made.add_nodes_from(range(n))
        connectivity = nx.node_connectivity(made)
        assert holds("3-reach", graph, 1) == (n > 3 and connectivity > 2)
        assert holds("2-reach", graph, 1) == (n > 2 and connectivity > 1)
        assert holds("2-reach+", graph, 1) == (n > 3 and connectivity > 1)


def test_compiled_views_are_the_nested_ones_on_all_networks_of_three():
    for graph in all_digraphs(3):
        for rounds in (1, 2, 3):
            assert impossible(graph, rounds=rounds) == full_information.impossible(graph, rounds), edges(graph)


def test_full_information_never_contradicts_the_proved_side():
    """Without one source, or without 1-reach, agreement is impossible; with 3-reach it is possible unsigned already."""
    for graph in all_digraphs(4):
        lost = impossible(graph)
        if holds("3-reach", graph, 1):
            assert not lost
        if not holds("one-source", graph, 1) or not holds("1-reach", graph, 1):
            assert lost


def test_more_traitors_never_make_a_network_possible():
    for graph in all_digraphs(4)[::9]:
        assert impossible(graph, thorough=True) >= impossible(graph)


def test_the_protocol_breaks_exactly_where_its_condition_fails():
    for place, graph in enumerate(all_digraphs(4)):
        pair = apart(graph, 1, 2)
        assert (pair is None) == holds("2-reach+", graph, 1)
        if pair is None:
            assert [attack(graph, 1, 31 * place + run)[0] for run in range(5)] == [""] * 5
        elif place % 4 == 0:
            assert stage(graph, 1, pair) in ("stall", "apart", "invalid"), edges(graph)


@pytest.mark.slow
def test_a_hundred_thousand_attacks_break_nothing_where_the_unsigned_condition_holds():
    graph = complete(4)
    assert holds("3-reach", graph, 1)
    assert not any(attack(graph, 1, seed)[0] for seed in range(100_000))


def test_the_range_halves_in_every_round():
    for seed in range(40):
        wrong, ranges = attack(complete(4), 1, seed)
        assert wrong == "" and all(b <= a / 2 + 1e-12 for a, b in pairwise(ranges))


def test_honest_nodes_agree_exactly_on_every_network_with_one_source():
    for graph in all_digraphs(4):
        if source(graph, 0) and holds("one-source", graph, 1):
            nodes = [SignedFlooding(graph) for _ in range(4)]
            topology = [tuple(members(row)) for row in graph]
            for code in (0, 5, 15):
                bits = [code >> node & 1 for node in range(4)]
                outcome = World(n=4, f=1, node=nodes, inputs=bits, topology=topology).run("rounds")
                decided = set(outcome.decided().values())
                assert len(outcome.decided()) == 4 and len(decided) == 1 and decided <= set(bits)


def test_the_answer_names_what_spoils_a_network():
    told = answer(from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), 1)
    assert [row["met"] for row in told["table"]] == [False] * 3 and "hears" in told["table"][0]["spoiled_by"]
    assert verdict(complete(4), 1)["approximate"] and not verdict(complete(3), 1)["approximate"]
    with pytest.raises(ValueError, match="a link from 0 to 9"):
        from_edges(4, [(0, 9)])
    with pytest.raises(ValueError, match="no condition"):
        holds("4-reach", complete(3), 1)
    assert len(digraphs.all_digraphs(3)) == 16

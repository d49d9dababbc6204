"""One-way networks: conditions, what no algorithm can do, and a protocol under attack."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, pairwise, product
from multiprocessing import get_context

import networkx as nx
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols import digraph_auth
from assay.protocols.digraph_auth import answer, approximate, attack, digraphs, settled, verdict
from assay.protocols.digraph_auth.digraphs import all_digraphs, apart, edges, from_edges, holds, members, reach, source
from assay.protocols.digraph_auth.directed import SignedFlooding
from assay.protocols.digraph_auth.full_information import impossible
from assay.protocols.faults import Crash
from assay.protocols.faults.two_faced import TwoFaced
from assay.protocols.kernel.asynchronous import Random
from assay.protocols.kernel.world import World
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict
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


@settings(max_examples=60, deadline=None)
@given(networks(high=6), st.integers(0, 2), st.sampled_from(["2-reach", "2-reach+", "3-reach"]))
def test_what_spoils_a_condition_are_two_nodes_that_share_too_little(graph, f, condition):
    pair = apart(condition, graph, f)
    if pair is not None:
        ours, theirs = pair.hears(graph)
        assert pair.u != pair.v and not pair.without_u >> pair.u & 1 and not pair.without_v >> pair.v & 1
        assert (ours & theirs).bit_count() < (f + 1 if condition == "2-reach+" else 1)
        if condition == "3-reach":
            both = pair.without_u & pair.without_v
            assert (pair.without_u | pair.without_v).bit_count() <= min(3 * f, 2 * f + both.bit_count())
        else:
            assert max(pair.without_u.bit_count(), pair.without_v.bit_count()) <= f


def test_a_dense_network_of_24_nodes_and_two_traitors_is_answered_and_too_many_traitors_are_refused():
    links = [(u, v) for u in range(24) for v in range(24) if u != v and (u * 7 + v * 11) % 5]
    assert verdict(from_edges(24, links), 2) == {"exact": True, "approximate": True, "without_signatures": True}
    with pytest.raises(ValueError, match="12,951 sets of at most 4 among 24 nodes; fewer traitors"):
        answer(from_edges(24, links), 4)


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


def test_no_attack_breaks_the_protocol_where_its_condition_holds():
    for place, graph in enumerate(all_digraphs(4)):
        pair = apart("2-reach+", graph, 1)
        assert (pair is None) == holds("2-reach+", graph, 1)
        if pair is None:
            assert [attack(graph, 1, 31 * place + run)[0] for run in range(5)] == [""] * 5


def harmful(seeds):
    """The seeds of attacks on four nodes that broke something."""
    return [seed for seed in seeds if attack(complete(4), 1, seed)[0]]


@pytest.mark.slow
def test_a_hundred_thousand_attacks_break_nothing_where_the_unsigned_condition_holds():
    assert holds("3-reach", complete(4), 1)
    shares = [range(first, first + 1000) for first in range(0, 100_000, 1000)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        assert [seed for found in pool.map(harmful, shares) for seed in found] == []


def test_an_attack_ends_early_only_when_nothing_can_change_any_more():
    """The same attacks, run until nothing is under way: what broke and who decided what is the same."""
    graph = complete(4)
    for seed in range(6):
        faults = {seed % 4: Crash(at=float(10 * seed))}
        correct = [node for node in range(4) if node not in faults]
        short, long = (
            approximate(graph, 1, [0.0, 1.0, 0.25, 1.0], seed, faults).run("async", until=until, metered=False)
            for until in (settled(correct), None)
        )
        assert short.time < long.time and long.stopped == "quiet"
        assert [short.decisions[node] for node in correct] == [long.decisions[node] for node in correct]


def test_nothing_that_is_flooded_goes_back_to_where_it_came_from():
    """Of 12 links among four nodes an item takes 9: each of the three others first hears it from somebody."""
    world = approximate(complete(4), 1, [0.0, 1.0, 0.25, 1.0], 3, {})
    items = len(world.run("async", scheduler=Random(3)).nodes[0].seen)
    assert items == 3 * (4 + 16 + 4) and world.run("async", scheduler=Random(3)).meter.messages == 9 * items


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


def test_the_rule_of_explanations_can_be_broken_where_agreement_is_possible():
    """What the study reports of it is no accident of the draws: here one traitor divides the others for good."""
    graph = from_edges(4, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3), (2, 0), (2, 1)])
    assert holds("2-reach", graph, 1) and not impossible(graph)
    broken = 0
    for traitor, code in product(range(3), range(16)):
        heard = set(members(graph[traitor]))
        for side in [set(chosen) for k in range(len(heard)) for chosen in combinations(heard, k)]:
            honest, faces = SignedFlooding(graph), [(0, side, ()), (1, heard - side, ())]
            nodes = [TwoFaced(honest, faces) if node == traitor else honest for node in range(4)]
            topology = [tuple(members(row)) for row in graph]
            world = World(n=4, f=1, node=nodes, inputs=[code >> node & 1 for node in range(4)], topology=topology)
            decided = world.run("rounds").decided()
            broken += len({value for node, value in decided.items() if node != traitor}) > 1
    assert broken > 0


def judged(rows):
    base = {
        "experiment": "exact", "condition": "2-reach", "rule": None, "seed": 1000, "networks": 200, "agree": 200,
        "promised": 20, "kept": 20, "attacks": 600, "withstood": 600, "rounds": 600, "halved": 600, "wrong": "",
    }  # fmt: skip
    table = pl.from_dicts([base | row for row in rows], infer_schema_length=None)
    return {answer.id: answer for answer in judge(study("digraph-auth"), table)}


@pytest.mark.parametrize(
    ("claim", "row", "broken"),
    [
        ("exact", {}, {"agree": 199}),
        ("sufficient", {}, {"kept": 19}),
        ("withstood", {"experiment": "approximate"}, {"withstood": 599}),
        ("halved", {"experiment": "approximate"}, {"halved": 599}),
        ("explanations", {"experiment": "rivals", "rule": "explanations"}, {"withstood": 599}),
    ],
)
def test_one_counterexample_is_enough_and_is_shown(claim, row, broken):
    assert judged([row])[claim].verdict is Verdict.REPRODUCED
    found = judged([row, row | broken | {"wrong": "links 0→1"}])[claim]
    assert found.verdict is Verdict.NOT_REPRODUCED and found.cases == "links 0→1"


def test_the_sentences_say_whose_condition_was_tried_and_where():
    text = judged([{}])["exact"].text
    assert "2-reach," in text and "assay's candidate" in text and "all networks of four nodes" in text


def test_that_every_protocol_fails_is_not_measured_by_ours():
    found = judged([{"experiment": "approximate"}])["approximate"]
    assert found.verdict is Verdict.NOT_MEASURED and "all protocols" in found.note


def test_all_networks_of_four_nodes_are_settled_whatever_the_seeds():
    """They were once dealt out by the seeds' numbers: with seeds from 1000 on, none was left."""
    asked = []

    class Noting(Lab):
        def run(self, function, cases, **options):
            asked.extend((function, case, seed) for case in cases for seed in self.seeds)
            return pl.DataFrame({"n": [4]})

    digraph_auth.study(Noting("digraph-auth", seeds=(1000, 7)))
    for function in (digraph_auth.exact, digraph_auth.asynchronous):
        dealt = [
            digraph_auth._networks(4, case["graphs"], case["shard"], case["shards"], seed)
            for asked_of, case, seed in asked
            if asked_of is function and case["n"] == 4
        ]
        assert sorted(graph for part in dealt for graph in part) == sorted(all_digraphs(4))
    assert {seed for function, case, seed in asked if case["n"] == 5} == {1000, 7}


def test_the_network_that_refutes_our_condition_for_exact_consensus():
    graph = from_edges(4, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3), (2, 1), (3, 0)])
    assert not holds("2-reach", graph, 1) and not impossible(graph, thorough=True)
    shard = all_digraphs(4).index(graph)
    found = digraph_auth.exact(4, 0, shard, 218, False, seed=1000)["2-reach"]
    assert (found["networks"], found["agree"]) == (1, 0)
    assert found["wrong"] == ("links 0→1 0→2 0→3 1→0 1→2 1→3 2→1 3→0: 2-reach says no, agreement is possible")


def test_the_answer_names_what_spoils_a_network():
    told = answer(from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), 1)
    assert [row["met"] for row in told["table"]] == [False] * 3
    assert all("hears" in row["spoiled_by"] for row in told["table"]) and "candidates" in told["why"]
    assert verdict(complete(4), 1)["approximate"] and not verdict(complete(3), 1)["approximate"]
    with pytest.raises(ValueError, match="a link from 0 to 9"):
        from_edges(4, [(0, 9)])
    with pytest.raises(ValueError, match="no condition"):
        holds("4-reach", complete(3), 1)
    assert len(digraphs.all_digraphs(3)) == 16

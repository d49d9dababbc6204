"""A replay starts nothing too early, waits for all members of a collective, and refuses what cannot run, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.observe.chakra.resample import resample
from assay.observe.graphs.generate import Job, device, generate
from assay.observe.graphs.replay import Link, Network, Plan, break_cycles, critical_path, longest_chain, replay
from assay.record.errors import BadInput
from assay.workloads import chakra
from assay.workloads.chakra import COLL, COMP, RECV, SEND, Graph
from tests.oracles import replay as oracle

NETWORK = Network(Link(2e-6, 100e9), Link(10e-6, 10e9), per_node=2)


def rank_of(nodes: list[dict[str, Any]], rank: int) -> Graph:
    meets = [node["meet"] for node in nodes]
    return Graph.of(
        [node["id"] for node in nodes], [f"n{node['id']}" for node in nodes],
        [COMP if meet is None else COLL for meet in meets], data_deps=[node["deps"] for node in nodes],
        start_micros=[node["turn"] for node in nodes], duration_micros=[round(node["seconds"] * 1e6) for node in nodes],
        attributes={
            "stream": [node["lane"] if meet is None else None for node, meet in zip(nodes, meets, strict=True)],
            "pg_name": meets, "comm_type": [None if meet is None else 0 for meet in meets],
            "comm_size": [None if meet is None else 10**6 for meet in meets],
        },
        rank=rank,
    )  # fmt: skip


@st.composite
def jobs(draw: Any, acyclic: bool = True) -> list[list[dict[str, Any]]]:
    """Some ranks' nodes on a few streams, with the same collectives of two groups on each rank."""
    groups = draw(st.lists(st.sampled_from(["a", "b"]), max_size=4))
    ranks = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 7))
        kinds: list[str | None] = [None] * count
        for group in groups:
            kinds.insert(draw(st.integers(0, len(kinds))), group)
        # keep each rank's collectives of one group in the same order: they are the same letters in the same places
        letters = iter(groups)
        kinds = [next(letters) if kind is not None else None for kind in kinds]
        nodes = []
        for i, kind in enumerate(kinds):
            limit = i if acyclic else len(kinds)
            deps = draw(st.lists(st.integers(0, max(0, limit - 1)), max_size=3, unique=True)) if limit else []
            nodes.append({
                "id": i, "meet": kind, "lane": kind if kind is not None else draw(st.integers(0, 2)),
                "seconds": draw(st.integers(0, 50)) * 1e-6, "deps": deps, "turn": draw(st.integers(0, 9)),
            })  # fmt: skip
        ranks.append(nodes)
    return ranks


def outcome_of(ranks: list[list[dict[str, Any]]], network: Network | None = None) -> Any:
    return replay([rank_of(nodes, rank) for rank, nodes in enumerate(ranks)], network)


@settings(deadline=None, max_examples=40)
@given(jobs(acyclic=False), st.booleans())
def test_a_replay_equals_the_one_by_the_book(ranks: list[list[dict[str, Any]]], priced: bool) -> None:
    network = NETWORK if priced else None
    members = range(len(ranks))
    cost = NETWORK.collective("ALL_REDUCE", members, 1e6) if priced and len(ranks) > 1 else None
    expected = oracle.run(ranks, {"a": cost, "b": cost})
    if isinstance(expected, str):
        with pytest.raises(BadInput, match="cycle" if expected == "cycle" else "in a circle"):
            outcome_of(ranks, network)
        return
    outcome = outcome_of(ranks, network)
    keys = [(rank, node["id"]) for rank, nodes in enumerate(ranks) for node in nodes]
    assert np.allclose(outcome.start, [expected[0][key] for key in keys])
    assert np.allclose(outcome.end, [expected[1][key] for key in keys])


@settings(deadline=None, max_examples=40)
@given(jobs())
def test_nothing_starts_before_what_it_waits_for(ranks: list[list[dict[str, Any]]]) -> None:
    assume(oracle.run(ranks, {}) != "deadlock")
    outcome = outcome_of(ranks, NETWORK)
    plan = outcome.plan
    assert (outcome.start[plan.target] >= outcome.end[plan.source]).all()
    assert outcome.makespan >= longest_chain(plan, NETWORK) - 1e-12
    path = critical_path(outcome)
    assert path["seconds"].sum() == pytest.approx(outcome.makespan)
    assert path["because"][0] == "start" and path["start"][0] == 0


@settings(deadline=None, max_examples=40)
@given(jobs(), st.floats(1, 10), st.floats(1, 10))
def test_a_faster_network_never_makes_it_slower(
    ranks: list[list[dict[str, Any]]], bandwidth: float, latency: float
) -> None:
    assume(oracle.run(ranks, {}) != "deadlock")
    plan = Plan.of([rank_of(nodes, rank) for rank, nodes in enumerate(ranks)])
    base = replay(plan, NETWORK).makespan
    assert replay(plan, NETWORK.scaled(bandwidth=bandwidth)).makespan <= base + 1e-12
    assert replay(plan, NETWORK.scaled(latency=latency)).makespan >= base - 1e-12


def test_a_collective_starts_when_its_last_member_is_ready() -> None:
    reduce = {"id": 1, "meet": "a", "lane": "a", "seconds": 9e-6, "deps": [0], "turn": 1}
    busy: dict[str, Any] = {"id": 0, "meet": None, "lane": 0, "deps": [], "turn": 0}
    ranks: list[list[dict[str, Any]]] = [[busy | {"seconds": micros * 1e-6}, reduce] for micros in (10, 70)]
    outcome = outcome_of(ranks)
    assert outcome.start[[1, 3]] * 1e6 == pytest.approx([70, 70])
    assert outcome.waited[[1, 3]] * 1e6 == pytest.approx([60, 0])
    assert outcome.recorded == 1 and outcome.makespan * 1e6 == pytest.approx(79)


def test_an_unpriced_collective_takes_the_shortest_recorded_time_of_its_members() -> None:
    """Who came first recorded the wait as well."""
    graphs = [
        Graph.of(
            [1], ["nccl"], COLL, data_deps=[[]], duration_micros=[micros], attributes={"pg_name": ["0"]}, rank=rank
        )
        for rank, micros in enumerate((500, 40))
    ]
    outcome = replay(graphs, NETWORK)
    assert outcome.makespan * 1e6 == pytest.approx(40) and (outcome.priced, outcome.recorded) == (0, 1)


def test_hosts_calls_are_no_collectives_where_a_device_runs_them() -> None:
    said: dict[str, list[Any]] = {"is_cpu_op": [True, False], "comm_type": [None, 0], "comm_size": [None, 10**6]}
    names = ["c10d::allreduce_", "ncclKernel"]
    graph = Graph.of([1, 2], names, COLL, data_deps=[[], [1]], duration_micros=[10, 20], attributes=said)
    outcome = replay(graph, Network(Link(0.0, 1e9), ranks=2))
    assert outcome.priced == 1 and outcome.end * 1e6 == pytest.approx([10, 1010])


def test_one_trace_of_many_is_priced_by_the_group_size_it_says_or_else_the_networks() -> None:
    attributes = {"comm_type": [0], "comm_size": [10**6]}
    graph = Graph.of([1], ["nccl"], COLL, data_deps=[[]], duration_micros=[7], attributes=attributes)
    link = Link(0.0, 1e9)
    assert replay(graph, Network(link)).makespan * 1e6 == pytest.approx(7)  # nobody says how many there are
    assert replay(graph, Network(link, ranks=4)).makespan * 1e6 == pytest.approx(1500)
    said = Graph.of([1], ["nccl"], COLL, data_deps=[[]], attributes=attributes | {"pg_size": [2]})
    assert replay(said, Network(link, ranks=4)).makespan * 1e6 == pytest.approx(1000)


def test_two_tiers_price_a_group_by_where_its_members_are() -> None:
    inside, outside = Link(1e-6, 100e9), Link(10e-6, 10e9)
    net = Network(inside, outside, per_node=4)
    for what in chakra.COLLECTIVES:
        within, across = (net.collective(what, ranks, 1e6) for ranks in ((0, 1, 2, 3), (0, 4, 8, 12)))
        both = net.collective(what, range(8), 1e6)
        assert 0 < within < across and both >= within
        assert net.collective(what, (5,), 1e6) == 0.0
        assert Network(inside).collective(what, range(4), 1e6) == within


# ------------------------------------------------------------------------------------------------ sends


def peers(sizes: list[int], received: int) -> list[Graph]:
    n = len(sizes)
    sends = Graph.of(range(n), ["send"] * n, SEND, data_deps=[[]] * n, rank=0,
                     attributes={"comm_dst": [1] * n, "comm_tag": [5] * n, "comm_size": sizes})  # fmt: skip
    receives = Graph.of(range(received), ["recv"] * received, RECV, data_deps=[[]] * received, rank=1,
                        attributes={"comm_src": [0] * received, "comm_tag": [5] * received})  # fmt: skip
    return [sends, receives]


def test_a_send_meets_its_receive_and_takes_the_link() -> None:
    outcome = replay(peers([10**6, 2 * 10**6], 2), Network(Link(0.0, 1e9)))
    assert outcome.end * 1e3 == pytest.approx([1, 3, 1, 3])


def test_a_send_nobody_receives_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"rank 0 waits in node 1 'send' of the channel from rank 0 to rank 1, tag 5"):
        replay(peers([1, 1], 1))


def test_a_send_to_a_rank_whose_trace_is_not_at_hand_runs_alone() -> None:
    assert replay(peers([10**6], 1)[0]).makespan == 0.0


# ------------------------------------------------------------------------------------------------ refusals


def test_a_cycle_of_data_dependencies_is_refused_and_named() -> None:
    graph = Graph.of([1, 2, 3, 4], ["a", "b", "c", "d"], COMP, data_deps=[[], [4], [2], [3]], source="x.et")
    with pytest.raises(BadInput) as refused:
        replay(graph)
    text = str(refused.value)
    assert text.startswith("x.et: cannot replay: data dependencies form a cycle: ") and "\n" not in text
    for label in ("node 2 'b'", "node 3 'c'", "node 4 'd'"):
        assert label in text
    assert "node 1" not in text


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(BadInput, match=r"cycle: node 9 'a' → node 9 'a'"):
        replay(Graph.of([9], ["a"], COMP, data_deps=[[9]]))


def test_control_dependencies_are_not_followed() -> None:
    graph = Graph.of([1, 2], ["a", "b"], COMP, ctrl_deps=[[2, 1], [1]], data_deps=[[], []], duration_micros=[1, 2])
    assert replay(graph).makespan * 1e6 == pytest.approx(3)


def test_a_dependency_on_what_is_not_in_the_trace_is_taken_as_met_and_counted() -> None:
    graph = Graph.of([1], ["a"], COMP, data_deps=[[7, 8]], duration_micros=[4])
    outcome = replay(graph)
    assert outcome.plan.dangling == 2 and outcome.makespan * 1e6 == pytest.approx(4)


def test_an_id_given_twice_an_empty_trace_and_a_rank_given_twice_are_refused() -> None:
    with pytest.raises(BadInput, match="2 nodes have the id 5"):
        replay(Graph.of([5, 5], ["a", "b"], COMP, data_deps=[[], []]))
    with pytest.raises(BadInput, match="no nodes"):
        replay(Graph.of([], [], COMP, data_deps=[]))
    one = Graph.of([1], ["a"], COMP, data_deps=[[]], rank=3)
    with pytest.raises(BadInput, match="two traces are of rank 3"):
        replay([one, one])


def test_a_collective_that_a_rank_never_issues_is_refused_by_name() -> None:
    graphs = [Graph.of(range(n), ["ar"] * n, COLL, data_deps=[[]] * n, attributes={"pg_name": ["dp"] * n}, rank=rank)
              for rank, n in enumerate((3, 2))]  # fmt: skip
    with pytest.raises(
        BadInput, match=r"rank 0 waits in node 2 'ar' of group 'dp' for rank 1, which takes part 2 times"
    ):
        replay(graphs)


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    def rank(order: str, number: int) -> Graph:
        return Graph.of(
            [1, 2], list(order), COLL, data_deps=[[], [1]], attributes={"pg_name": list(order)}, rank=number
        )

    with pytest.raises(BadInput, match="ranks wait for each other in a circle"):
        replay([rank("ab", 0), rank("ba", 1)])


@pytest.mark.parametrize(
    "bad", [{"inside": Link(0.0, 0.0)}, {"inside": Link(-1.0, 1.0)}, {"per_node": 0}, {"ranks": 0}]
)
def test_networks_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Network(**({"inside": Link(1e-6, 1e9)} | bad))


# ------------------------------------------------------------------------------------------------ breaking cycles


@settings(deadline=None, max_examples=40)
@given(jobs(acyclic=False))
def test_breaking_cycles_leaves_a_trace_that_runs_and_names_what_it_took(ranks: list[list[dict[str, Any]]]) -> None:
    graph = rank_of(ranks[0], 0)
    mended, removed = break_cycles(graph)
    if oracle.order(ranks[0]) is not None:
        assert len(removed) == 0 and mended.data_deps == graph.data_deps
    else:
        assert len(removed) >= 1
    Plan.of(mended)
    kept = {(int(graph.id[i]), int(dep)) for i in range(len(graph)) for dep in mended.data_deps[i]}
    before = {(int(graph.id[i]), int(dep)) for i in range(len(graph)) for dep in graph.data_deps[i]}
    assert before - kept == set(removed.select("waits", "for").rows())


def test_the_dependency_that_time_supports_least_is_the_one_that_goes() -> None:
    graph = Graph.of([1, 2, 3], ["a", "b", "c"], COMP, data_deps=[[3], [1], [2]], start_micros=[0, 10, 20],
                     duration_micros=[10, 10, 10])  # fmt: skip
    mended, removed = break_cycles(graph)
    assert removed.select("waits", "for", "support").rows() == [(1, 3, pytest.approx(-30e-6))]
    assert replay(mended).makespan * 1e6 == pytest.approx(30)


def test_a_tangle_of_all_with_all_is_broken_in_bounded_time() -> None:
    n = 60
    graph = Graph.of(range(n), ["x"] * n, COMP, data_deps=[[j for j in range(n) if j != i] for i in range(n)],
                     start_micros=range(n))  # fmt: skip
    mended, _ = break_cycles(graph)
    assert len(Plan.of(mended).graphs) == 1


# ------------------------------------------------------------------------------------------------ generated traces


def test_a_generated_step_without_overlap_takes_what_arithmetic_says() -> None:
    """One rank a stage, no pipeline: compute one after the other; tensor-parallel all-reduces between."""
    job = Job(layers=3, hidden=1024, heads=8, seq=256, batch=2, tp=4)
    graphs = generate(job, device("h100"))
    net = Network(Link(3e-6, 200e9))
    compute = float(graphs[0].duration.sum())
    reduced = 12 * net.collective("ALL_REDUCE", range(4), 2 * 256 * 1024 * 2)
    assert replay(graphs, net).makespan == pytest.approx(compute + reduced)


def test_gradients_are_reduced_while_the_backward_pass_goes_on() -> None:
    job = Job(layers=8, hidden=2048, heads=16, seq=512, batch=4, dp=4)
    graphs = generate(job, device("a100"))
    net = Network(Link(1e-6, 300e9))
    outcome = replay(graphs, net)
    reduced = sum(
        net.collective("ALL_REDUCE", range(4), float(size))
        for size in graphs[0].whole_numbers("comm_size", 0).tolist() if size
    )  # fmt: skip
    compute = float(graphs[0].duration.sum())
    assert compute < outcome.makespan < compute + 0.5 * reduced


def test_a_pipelines_bubble_is_the_one_of_1f1b() -> None:
    """m micro-batches over p equal stages take m + p - 1 passes, if sending costs nothing."""
    job = Job(layers=4, hidden=512, heads=8, seq=256, batch=64, pp=4, microbatches=8, vocab=1)
    graphs = generate(job, device("h100"))
    free = Network(Link(0.0, 1e18))
    ones = []
    for graph in graphs:
        work = [name.startswith(("attention", "mlp")) for name in graph.names]
        ones.append(graph.with_durations(np.where(np.array(work)[graph.name], 1e-3, 0.0)))
    assert replay(ones, free).makespan == pytest.approx((8 + 4 - 1) * 4e-3)


@pytest.mark.parametrize(
    "cut",
    [{"tp": 2, "dp": 2, "pp": 2, "microbatches": 3}, {"dp": 4, "ep": 2, "experts": 4}, {"pp": 4, "microbatches": 2}],
)
def test_every_cut_runs_and_every_collective_has_a_producer(cut: dict[str, int]) -> None:
    job = Job(layers=4, hidden=256, heads=8, seq=64, batch=1, **cut)
    graphs = generate(job, device("h100"))
    assert len(graphs) == job.ranks
    outcome = replay(graphs, NETWORK)
    assert outcome.recorded == 0 and outcome.priced > 0
    for graph in graphs:
        assert (np.diff(graph.data_deps.at)[graph.type == COLL] >= 1).all()
        assert chakra.encode(chakra.decode(chakra.encode(graph))) == chakra.encode(graph)


@pytest.mark.parametrize(("bad", "why"), [({"tp": 3}, "tp=3 does not divide heads"), ({"pp": 0}, "at least 1"),
                                          ({"dp": 4, "ep": 4}, "does not divide experts")])  # fmt: skip
def test_cuts_that_do_not_divide_are_refused(bad: dict[str, int], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Job(**({"layers": 4, "hidden": 64, "heads": 4, "seq": 8, "batch": 1} | bad))


def test_a_resampled_run_still_runs_and_says_nothing_of_the_original() -> None:
    graphs = generate(
        Job(layers=4, hidden=1024, heads=8, seq=256, batch=1, tp=2, dp=2, pp=2, microbatches=2), device("h100")
    )
    again = resample(graphs, seed=3)
    content = b"".join(chakra.encode(graph) for graph in again)
    for word in (*graphs[0].names, "tp 0.0", "dp 0.0"):
        assert word.encode() not in content
    for before, after in zip(graphs, again, strict=True):
        assert after.type.tolist() == before.type.tolist()
        for code in np.unique(before.name):
            drawn, there = (set(g.duration_micros[g.name == code].tolist()) for g in (after, before))
            assert drawn <= there
    one, other = replay(graphs, NETWORK).makespan, replay(again, NETWORK).makespan
    assert other == pytest.approx(one, rel=0.35)
    assert [chakra.encode(g) for g in resample(graphs, seed=3)] == [chakra.encode(g) for g in again]


def test_traces_plans_and_outcomes_print_as_one_short_line() -> None:
    graph = Graph.of(range(5000), ["op"] * 5000, COMP, data_deps=[[]] * 5000, rank=3, source="job.3.et")
    outcome = replay(graph)
    told = [repr(one) for one in (graph, outcome.plan, outcome)]
    assert told[0] == "Graph(rank=3, nodes=5000, source='job.3.et')"
    assert all(len(line) < 120 and "nodes=5000" in line for line in told)

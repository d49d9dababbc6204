from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.div import swarm
from assay.protocols.div.swarm import RULES, run, trajectory
from assay.sim.graphs import CSR, Complete, Graph, barbell, complete, cycle, random_regular, star, torus
from assay.sim.random import stream
from tests.oracles import swarm as oracle
from tests.sim.test_graphs import connected, rows

rules = st.sampled_from(sorted(RULES))


def rows_of(graph: Graph) -> list[list[int]]:
    if isinstance(graph, CSR):
        return rows(graph)
    return [[v for v in range(graph.n) if v != u] for u in range(graph.n)]


some_graph = st.one_of(
    connected(),
    st.builds(Complete, st.integers(1, 9)),
    st.sampled_from([cycle(5), cycle(8), torus(3), star(6), barbell(3, 1), random_regular(8, 3)]),
)


@given(some_graph, rules, st.data(), st.integers(0, 2**32), st.integers(0, 9))
@settings(deadline=None, max_examples=400)
def test_the_kernel_is_the_oracle(graph: Graph, rule: str, data: st.DataObject, seed: int, replica: int) -> None:
    opinions = data.draw(st.lists(st.integers(-4, 6), min_size=graph.n, max_size=graph.n))
    cap = data.draw(st.sampled_from([0, 1, 7, 60, 2000]))
    twin = oracle.run(rows_of(graph), opinions, rule, seed, replica, cap)
    here = run(graph, opinions, rule, seed, [replica], cap)
    assert (here.steps[0], here.final[0], here.censored[0]) == (twin.steps, twin.final, twin.censored)
    assert (here.low[0], here.high[0]) == (twin.low, twin.high)
    assert min(opinions) <= twin.low <= twin.high <= max(opinions)
    swarmed = swarm._Swarm(swarm._wire(graph, rule, cap), np.array(opinions), rule, seed, replica)
    swarmed.advance(cap)
    assert (swarmed.x + swarmed.base).tolist() == twin.opinions
    assert swarmed.count.tolist() == np.bincount(swarmed.x, minlength=swarmed.count.size).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_consensus_comes(rule: str) -> None:
    graph = random_regular(60, 4, seed=2)
    outcome = run(graph, stream(0, rule).integers(10, 20, 60), rule, replicas=5)
    assert not outcome.censored.any()
    assert (outcome.high - outcome.low <= (rule == "average")).all()
    assert (outcome.low <= outcome.final).all()
    assert (outcome.final <= outcome.high).all()


@pytest.mark.parametrize("rule", RULES)
def test_replicas_may_be_grouped_at_will(rule: str) -> None:
    graph, opinions = star(12), np.arange(12) % 5
    whole = run(graph, opinions, rule, seed=3, replicas=6)
    parts = [run(graph, opinions, rule, seed=3, replicas=part) for part in (range(4, 6), [0], range(1, 4))]
    steps = np.concatenate([parts[1].steps, parts[2].steps, parts[0].steps])
    assert whole.steps.tolist() == steps.tolist()
    assert len(set(whole.steps.tolist())) > 1
    path = trajectory(graph, opinions, rule, seed=3, every=7)
    assert (path.steps[-1], path.low[-1]) == (whole.steps[0], whole.low[0])


def test_a_row_of_opinions_for_each_replica() -> None:
    graph = cycle(6)
    both = np.array([[0, 0, 0, 3, 3, 3], [7, 7, 7, 7, 7, 7]])
    outcome = run(graph, both, replicas=2)
    assert outcome.steps[0] == run(graph, both[0]).steps[0]
    assert (outcome.steps[1], outcome.final[1], outcome.average[1]) == (0, 7, 7.0)
    assert outcome.table.shape == (2, 8)


@pytest.mark.parametrize(
    ("rule", "graph", "expected"),
    [
        ("div", star(8), 5.0),
        ("div-edge", star(8), 1.25),
        ("pull", star(8), 5.0),
        ("div", barbell(2, 3), 10 / 12),
        ("div-edge", barbell(2, 3), 10 / 7),
        ("div", complete(8), 1.25),
        ("div-edge", complete(8), 1.25),
    ],
)
def test_the_final_value_is_on_average_the_martingale_s(rule: str, graph: Graph, expected: float) -> None:
    opinions = [10] + [0] * (graph.n - 1)
    outcome = run(graph, opinions, rule, seed=1, replicas=4000)
    assert outcome.average[0] == 10 / graph.n
    assert (outcome.average if rule == "div-edge" else outcome.weighted_average)[0] == pytest.approx(expected)
    error = outcome.final.std() / np.sqrt(outcome.final.size)
    assert abs(outcome.final.mean() - expected) < 4 * error


def test_average_keeps_the_sum() -> None:
    opinions = stream(1).integers(0, 1000, 40)
    path = trajectory(barbell(15, 10), opinions, "average", every=100)
    assert np.abs(path.martingale - opinions.mean()).max() < 1e-9
    assert path.high[-1] - path.low[-1] <= 1
    assert path.low[-1] == opinions.sum() // 40


def test_extremes_only_move_inwards() -> None:
    path = trajectory(torus(5), stream(2).integers(0, 30, 25), every=10)
    assert (np.diff(path.low) >= 0).all()
    assert (np.diff(path.high) <= 0).all()
    assert (path.at_low > 0).all()
    assert path.at_low[-1] == path.at_high[-1] == 25


def test_div_rounds_the_average_on_the_complete_graph_and_not_on_the_star() -> None:
    n = 144
    opinions = stream(5).integers(0, 13, n)
    near = {}
    for graph in (complete(n), star(n)):
        outcome = run(graph, opinions, replicas=100)
        near[type(graph)] = (np.abs(outcome.final - outcome.weighted_average) < 1).mean()
    assert near[Complete] >= 0.95
    assert near[CSR] <= 0.8


def test_pull_voting_on_two_nodes_is_a_coin() -> None:
    outcome = run(complete(2), [0, 1], "pull", replicas=4000)
    assert (outcome.steps == 1).all()
    assert abs(outcome.final.mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)


def test_the_cap_is_reported() -> None:
    outcome = run(barbell(20), [0] * 20 + [1] * 20, "best-of-three", replicas=3, max_steps=20_000)
    assert outcome.censored.all()
    assert (outcome.steps == 20_000).all()
    assert (outcome.low < outcome.high).all()


def test_nothing_to_do() -> None:
    assert run(complete(1), [5]).final.tolist() == [5]
    assert run(CSR.from_edges([], 1), [5]).steps.tolist() == [0]
    assert run(complete(3), [1, 2, 3], replicas=0).steps.size == 0
    assert trajectory(complete(1), [5]).martingale.tolist() == [5.0]
    assert not run(cycle(3), [2, 2, 2], max_steps=0).censored[0]


def test_a_long_run_is_cut_in_pieces_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, opinions = cycle(9), np.arange(9)
    whole = run(graph, opinions, replicas=3)
    monkeypatch.setattr(swarm, "_CHUNK", 5)
    assert run(graph, opinions, replicas=3).steps.tolist() == whole.steps.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run(cycle(3), [1, 2, 3], "vote"), "no rule 'vote'; one of div"),
        (lambda: run(cycle(3), [1, 2]), r"shape \(2,\); \(3,\)"),
        (lambda: run(cycle(3), [1.0, 2.0, 3.0]), "integers expected"),
        (lambda: run(cycle(3), [0, 0, 2**40]), "range below"),
        (lambda: run(cycle(3), [0, 0, 1], max_steps=-1), "count of steps"),
        (lambda: run(CSR.from_edges([(0, 1), (2, 3)]), [0, 0, 1, 1]), "disconnected"),
        (lambda: run(CSR.from_edges([(0, 1)], 3), [0, 0, 1], max_steps=9), "node 2 has no neighbours"),
        (lambda: trajectory(cycle(3), [0, 0, 1], every=0), "at least 1"),
    ],
)
def test_bad_input_is_told(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_disconnected_graphs_run_to_a_cap() -> None:
    outcome = run(CSR.from_edges([(0, 1), (2, 3)]), [0, 0, 1, 1], max_steps=50)
    assert outcome.censored.all()


def test_the_next_process_compiles_nothing() -> None:
    run(star(4), [0, 1, 2, 3])
    code = (
        "from assay.protocols.div import swarm; from assay.sim.graphs import *\n"
        "for rule in swarm.RULES:\n"
        "  for graph in (star(4), cycle(4), complete(4)): swarm.run(graph, [0, 1, 2, 3], rule)\n"
        "print(sum(swarm._advance.stats.cache_misses.values()), len(swarm._advance.signatures))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr

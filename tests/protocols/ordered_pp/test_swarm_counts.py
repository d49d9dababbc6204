"""Counts instead of agents: the batches and the jumps have the distribution of the process itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.protocols.kernel.draws import Source, source
from assay.protocols.ordered_pp import swarm_counts
from assay.protocols.ordered_pp.population import APPROXIMATE_MAJORITY, Table, tabulate
from tests.oracles import population
from tests.oracles.goodness import p_value

LAZY = {("A", "B"): {("U", "U"): 0.5, ("A", "A"): 0.2}, ("A", "U"): ("A", "A"), ("B", "U"): {("B", "B"): 0.7}}
CYCLE = {(0, 1): (0, 0), (1, 2): (1, 1), (2, 0): (2, 2)}


def batches(table: Table, counts: list[int], steps: int, draw: Source) -> tuple[int, ...]:
    """So many meetings by batches alone, however little a batch is worth at this size."""
    state = np.array(counts, np.int64)
    rule = swarm_counts._Compiled(table.reactive, table.start, table.first, table.second, table.chance)
    n, done = int(state.sum()), 0
    while done < steps:
        length = swarm_counts._run_length(draw, n)
        whole = done + length < steps
        length = length if whole else steps - done
        met, a, b = (np.zeros_like(state) for _ in range(3))
        swarm_counts._batch(rule, state, met, a, b, draw, n, length)
        if whole:
            swarm_counts._collide(rule, state, met, draw, n, 2 * length)
        state += met
        done += length + whole
    return tuple(int(count) for count in state)


@pytest.mark.parametrize("rule", [APPROXIMATE_MAJORITY, LAZY, CYCLE], ids=["majority", "lazy", "cycle"])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_batches_have_the_law_of_the_markov_chain(rule: Any, steps: int) -> None:
    table = tabulate(rule, list(dict.fromkeys(state for pair in rule for state in pair)))
    start = (4, 3, 1)
    law = population.law(table, start, steps)
    number = {config: index for index, config in enumerate(law)}
    draw = source(5, "batches", steps)
    seen = [number[batches(table, list(start), steps, draw)] for _ in range(8_000)]
    assert p_value(seen, {number[config]: chance for config, chance in law.items()}) > 1e-3


@pytest.mark.parametrize("rule", [APPROXIMATE_MAJORITY, LAZY, CYCLE], ids=["majority", "lazy", "cycle"])
def test_jumps_have_the_law_of_the_markov_chain(rule: Any) -> None:
    table = tabulate(rule, list(dict.fromkeys(state for pair in rule for state in pair)))
    start = (4, 3, 1)
    law = population.law(table, start, 9)
    number = {config: index for index, config in enumerate(law)}
    outcome = swarm_counts.run(table, start, max_time=9 / 8, replicas=8_000, seed=3)
    seen = [number[tuple(map(int, row))] for row in outcome.counts]
    assert p_value(seen, {number[config]: chance for config, chance in law.items()}) > 1e-3


def test_the_oracles_agree_with_each_other() -> None:
    table = tabulate(LAZY, "ABU")
    law = population.law(table, (3, 3, 1), 5)
    number = {config: index for index, config in enumerate(law)}
    random = np.random.default_rng(1)
    seen = [number[population.meetings(table, (3, 3, 1), 5, random)] for _ in range(4_000)]
    assert p_value(seen, {number[config]: chance for config, chance in law.items()}) > 1e-3


def test_large_batches_agree_with_one_meeting_at_a_time() -> None:
    # 20,000 agents: far enough up that the engine batches (a jump would be worth less here).
    table = tabulate(APPROXIMATE_MAJORITY, "AB")
    start, steps = (11_000, 9_000, 0), 20_000
    fast = swarm_counts.run(table, start, max_time=1.0, replicas=400, seed=8).counts[:, 0]
    random = np.random.default_rng(2)
    slow = [_fast_oracle(start, steps, random) for _ in range(60)]
    assert stats.ks_2samp(fast, slow).pvalue > 1e-3


def _fast_oracle(start: tuple[int, ...], steps: int, random: np.random.Generator) -> int:
    """Approximate majority on an array of agents; the number in state A."""
    agents = np.repeat(np.arange(3), start).tolist()
    n = len(agents)
    after = {(0, 1): (2, 2), (1, 0): (2, 2), (0, 2): (0, 0), (2, 0): (0, 0), (1, 2): (1, 1), (2, 1): (1, 1)}
    first, second = random.integers(0, n, steps).tolist(), random.integers(0, n - 1, steps).tolist()
    for a, b in zip(first, second, strict=True):
        c = b + (b >= a)
        pair = agents[a], agents[c]
        agents[a], agents[c] = after.get(pair, pair)
    return agents.count(0)


@pytest.mark.parametrize("n", [7, 1000, 5000])
def test_runs_have_the_length_of_the_birthday_problem(n: int) -> None:
    draw = source(4, "runs", n)
    seen = [int(swarm_counts._run_length(draw, n)) for _ in range(20_000)]
    survival, pmf = 1.0, {}
    for length in range(max(seen) + 2):
        follow = survival * max(0, n - 2 * length) * max(0, n - 2 * length - 1) / (n * (n - 1))
        pmf[length] = survival - follow
        survival = follow
    assert p_value(seen, pmf) > 1e-3


def test_the_survival_of_a_run_is_accurate_at_a_thousand_million_agents() -> None:
    n, length = 10**9, 30_000
    exact = sum(math.log1p(-2 * i / n) + math.log1p(-2 * i / (n - 1)) for i in range(length))
    assert math.isclose(swarm_counts._log_survival(n, length), exact, rel_tol=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=3, max_size=3).filter(lambda c: sum(c) >= 2), st.integers(0, 50))
def test_no_agent_is_lost(counts: list[int], seed: int) -> None:
    table = tabulate(CYCLE, [0, 1, 2])
    outcome = swarm_counts.run(table, counts, max_time=3.0, seed=seed)
    assert outcome.counts.sum() == sum(counts)
    assert (outcome.counts >= 0).all()


def test_many_states_are_paired_off_one_by_one_with_the_same_result() -> None:
    # Fratricide among 64 colours keeps every colour's count or lowers it; the mean left is known from two colours.
    def rule(a: int, b: int) -> tuple[int, int] | None:
        return (a, 0) if a and b and a != b else None

    few = swarm_counts.run(rule, {1: 5000, 2: 5000}, max_time=1.0, replicas=60, seed=1)
    many = swarm_counts.run(lambda a, b: (a, 0) if a and b and a % 2 != b % 2 else None,
                            {state: 10_000 // 64 + (state <= 16) for state in range(1, 65)},
                            max_time=1.0, replicas=60, seed=2)  # fmt: skip
    left = [outcome.counts[:, outcome.states.index(0)] for outcome in (few, many)]
    assert stats.ks_2samp(left[0], left[1]).pvalue > 1e-3


def test_the_majority_wins_and_the_end_is_silent() -> None:
    outcome = swarm_counts.run(APPROXIMATE_MAJORITY, {"A": 60_000, "B": 40_000}, replicas=5)
    assert outcome.silent.all()
    assert [outcome.final(replica) for replica in range(5)] == [{"A": 100_000}] * 5


def test_one_output_ends_a_run_that_would_go_on() -> None:
    rule = {("a", "b"): ("a", "a"), ("a", "a"): ("a", "c"), ("c", "a"): ("a", "a")}
    outcome = swarm_counts.run(rule, {"a": 50, "b": 50}, outputs={"a": 1, "b": 0, "c": 1}, symmetric=False)
    assert outcome.settled.all() and not outcome.silent.any()
    assert "b" not in outcome.final(0)


def test_equal_seeds_give_equal_runs_and_replicas_differ() -> None:
    runs = [swarm_counts.run(APPROXIMATE_MAJORITY, {"A": 600, "B": 400}, replicas=4, seed=1) for _ in range(2)]
    assert runs[0].interactions.tolist() == runs[1].interactions.tolist()
    assert len(set(runs[0].interactions.tolist())) > 1


@pytest.mark.parametrize(
    ("rule", "counts", "keywords", "word"),
    [
        ({("a", "b"): "c"}, {"a": 1, "b": 1}, {}, "pair of states"),
        ({("a", "b"): {("a", "a"): 1.5}}, {"a": 1, "b": 1}, {}, "probability"),
        ({("a", "b"): {("a", "a"): 0.8, ("b", "b"): 0.8}}, {"a": 1, "b": 1}, {}, "add up"),
        ({}, {"a": 1}, {}, "at least 2"),
        ({}, {"a": -1, "b": 5}, {}, "negative"),
        ({}, [1, 2], {}, "dict"),
        ({}, {"a": 3}, {"max_time": -1}, "max_time"),
        ({}, {"a": 3}, {"outputs": {}}, "leave out"),
        (lambda a, b: (3 * a + 1, 5 * b + 2), {0: 5}, {}, "states"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, rule: Any, counts: Any, keywords: Any, word: str
) -> None:
    # So that a rule without end is soon found out.
    monkeypatch.setattr("assay.protocols.ordered_pp.population.LARGEST", 30)
    with pytest.raises(ValueError, match=word) as caught:
        swarm_counts.run(rule, counts, **keywords)
    assert "\n" not in str(caught.value)

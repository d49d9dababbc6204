"""The integer programmes have the answers that trying everything has, and always the same ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.random import stream
from assay.sim.solvers import milp


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
def test_as_trying_everything(seed: int, n: int, rows: int) -> None:
    random = stream(seed, "test-milp")
    c, a = random.integers(-9, 10, n), random.integers(0, 6, (rows, n))
    hi = random.integers(1, 20, rows)
    found = milp(c, a, np.full(rows, -np.inf), hi, np.full(n, True), most=5)
    tried = [c @ x for x in itertools.product(range(6), repeat=n) if (a @ np.array(x) <= hi).all()]
    assert found.status == "optimal" and found.value == pytest.approx(min(tried)) and found.gap < 1e-9
    assert found.x is not None and (a @ found.x <= hi + 1e-9).all()


def test_the_same_answer_each_time_and_a_limit_by_work() -> None:
    random = stream(1, "test-knapsack")
    weights, worth = random.integers(50, 100, (5, 60)), random.integers(50, 100, 60)
    room = weights.sum(1) // 3
    runs = [milp(-worth, weights, [-np.inf] * 5, room, [True] * 60, most=1, work=200) for _ in range(2)]
    assert runs[0].found and runs[0].value == runs[1].value and (runs[0].x == runs[1].x).all()  # type: ignore[union-attr]
    assert runs[0].bound <= runs[0].value
    assert runs[0].status in ("limit", "optimal")


def test_no_answer_is_an_answer() -> None:
    nothing = milp([1.0], [[1.0]], [2.0], [1.0], [False])
    assert not nothing.found and nothing.status == "infeasible"
    with pytest.raises(ValueError, match="finite"):
        milp([np.nan], [[1.0]], [0.0], [1.0], [False])
    with pytest.raises(ValueError, match="do not go together"):
        milp([1.0, 2.0], np.ones((1, 3)), [0.0], [1.0], [False, True])


def test_of_answers_that_differ_in_the_seventh_digit_the_better_one_is_found() -> None:
    """As where a small rent breaks ties between answers that serve the same: once either, once a scarce mixture."""
    costs = np.array([6e-7, 2e-6, -1.0])
    serves = np.array([[0.5, 0.5, -1.0]])
    found = milp(costs, serves, [0.0], [np.inf], [True, True, False], most=np.array([1.0, 1.0, 0.5]))
    assert found.x is not None and found.x.tolist() == [1.0, 0.0, 0.5]
    assert found.value == pytest.approx(-0.5 + 6e-7, abs=1e-12)

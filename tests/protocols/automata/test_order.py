"""Counters as intervals: every size of a system obeys exactly one order, and guards read the same there."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

import pytest

pytest.importorskip("z3", reason="extra protocols")

from assay.protocols import taco
from assay.protocols.automata.automaton import Automaton, Configuration
from assay.protocols.automata.explicit import instances
from assay.protocols.automata.linear import Linear, holds
from assay.protocols.automata.order import Cut, Order, guard, orders
from assay.protocols.automata.solver import Unrolling


def value(cut: Cut, parameters: dict[str, int]) -> int:
    return -(-cut.over.value(parameters) // cut.factor)


def obeys(order: Order, parameters: dict[str, int]) -> bool:
    for first, *groups in order.chains.values():
        levels = [{value(cut, parameters) for cut in group} for group in groups]
        if any(value(cut, parameters) > 0 for cut in first) or any(len(level) != 1 for level in levels):
            return False
        heights = [0, *(level.pop() for level in levels)]
        if any(a >= b for a, b in pairwise(heights)):
            return False
    return True


def place(order: Order, total: Linear, values: dict[str, int]) -> int:
    reached = [all(total.value(values) >= value(cut, values) for cut in group) for group in order.chains[total][1:]]
    return sum(reached)


def configurations(automaton: Automaton, parameters: dict[str, int]) -> list[dict[str, int]]:
    counters = product(range(sum(parameters.values()) + 1), repeat=len(automaton.shared))
    return [{**parameters, **dict(zip(automaton.shared, values, strict=True))} for values in counters]


@pytest.mark.parametrize("name", ["broadcast", "agreement", "folklore", "commit"])
def test_every_choice_of_parameters_obeys_exactly_one_order(name: str) -> None:
    automaton = taco.load(name)
    found = list(orders(automaton, (), inf))
    for parameters in instances(automaton, 7):
        assert [obeys(order, parameters) for order in found].count(True) == 1, parameters


@pytest.mark.parametrize("name", ["broadcast", "agreement", "folklore", "commit"])
def test_a_guard_holds_in_the_intervals_if_it_holds_for_the_numbers(name: str) -> None:
    automaton = taco.load(name)
    found = list(orders(automaton, (), inf))
    for parameters in instances(automaton, 5):
        order = next(order for order in found if obeys(order, parameters))
        for values in configurations(automaton, parameters)[:200]:
            vector = tuple(place(order, total, values) for total in order.sums)
            for rule in automaton.rules:
                assert order.open(rule, vector) == holds(rule.guard, values), (rule, values)


@pytest.mark.parametrize("name", ["broadcast", "agreement", "rounds"])
def test_a_step_ends_in_intervals_that_the_order_foresees(name: str) -> None:
    automaton = taco.load(name)
    found = list(orders(automaton, (), inf))
    for parameters in instances(automaton, 5):
        order = next(order for order in found if obeys(order, parameters))
        for values in configurations(automaton, parameters)[:100]:
            vector = tuple(place(order, total, values) for total in order.sums)
            for rule in automaton.rules:
                now = Configuration({**dict.fromkeys(automaton.locations, 1), **values})
                after = dict(now.after(rule).values)
                assert tuple(place(order, total, after) for total in order.sums) in order.after(rule, vector)


def test_the_conditions_of_an_order_are_those_that_parameters_meet() -> None:
    automaton = taco.load("agreement")
    for order in orders(automaton, (), inf):
        run = Unrolling(automaton, (), inf)
        order.fix(run, ())
        for parameters in instances(automaton, 5):
            chosen = [run.start[name] == number for name, number in parameters.items()]
            assert run.check(*chosen) is obeys(order, parameters)


def test_a_guard_that_adds_and_subtracts_counters_is_no_interval() -> None:
    assert guard(Linear((("x", 1), ("y", -1))), ("x", "y")) is None

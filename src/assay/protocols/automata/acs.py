"""`acs`: processes are counted, counters are intervals, and the search goes backwards.

If a configuration leads to the goal, so does any with more processes: sets of configurations are upward closed and
known by their least elements. Going back from the goal, only least elements are kept, and there are finitely many of
them (Dickson). Where no start is among them there is no violation for any parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.linear import Conjunction
from assay.protocols.automata.order import ErrorGraph, Order, Place, Vector, decide
from assay.protocols.automata.solver import State, Unrolling, in_time
from assay.protocols.automata.specification import Outcome, Unsupported, Violation, occupancy

if TYPE_CHECKING:
    import numpy.typing as npt

Counts = tuple[int, ...]
"""Processes in each location, in the automaton's order."""


def check(automaton: Automaton, violation: Violation, *, seconds: float = 60.0) -> Outcome:
    """Whether the violation has a run."""
    for goal in violation.goals:
        said = occupancy(automaton, goal)
        if said is None:
            return Unsupported("the goal speaks of counters or parameters; acs takes numbers of processes, smt all")
        if said[1]:
            return Unsupported("the goal wants empty locations; acs takes coverability only, smt and zcs both")
    return decide(automaton, violation, graph, seconds=seconds)


class Antichain:
    """Least elements: none is at least another one in every place. Rows of one array, so that a test is one pass."""

    def __init__(self, width: int) -> None:
        self.rows: npt.NDArray[np.int32] = np.zeros((4, width), np.int32)
        self.filled = 0

    def __len__(self) -> int:
        return self.filled

    @property
    def elements(self) -> npt.NDArray[np.int32]:
        """The elements, one a row."""
        return self.rows[: self.filled]

    def add(self, counts: Counts) -> bool:
        """Add unless some element is nowhere larger; those it is nowhere larger than go. Whether it was added.

        >>> least = Antichain(2)
        >>> least.add((2, 0)), least.add((2, 1)), least.add((1, 0)), least.elements.tolist()
        (True, False, True, [[1, 0]])
        """
        new = np.array(counts, np.int32)
        elements = self.elements
        if (elements <= new).all(axis=1).any():
            return False
        kept = elements[~(elements >= new).all(axis=1)]
        if len(kept) == len(self.rows):
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
        self.rows[: len(kept)] = kept
        self.rows[len(kept)] = new
        self.filled = len(kept) + 1
        return True

    def __contains__(self, counts: Counts) -> bool:
        return bool((self.elements == np.array(counts, np.int32)).all(axis=1).any())


def graph(order: Order, violation: Violation, deadline: float) -> ErrorGraph | None:
    """The error graph of one order; None where no start leads to a goal."""
    least = backward(order, violation, deadline)
    found = _Graph(order, least, violation.start, deadline)
    return found if found.beginnings else None


def backward(order: Order, violation: Violation, deadline: float) -> dict[Vector, Antichain]:
    """From where a goal is reachable: least numbers of processes for every vector."""
    automaton = order.automaton
    place = {name: position for position, name in enumerate(automaton.locations)}
    before = _before(order, deadline)
    known = {vector: Antichain(len(place)) for vector in order.vectors}
    waiting: list[tuple[int, Vector, Counts]] = []
    for goal in violation.goals:
        said = occupancy(automaton, goal)
        assert said is not None
        counts = tuple(said[0].get(name, 0) for name in automaton.locations)
        waiting += [(sum(counts), vector, counts) for vector in known if known[vector].add(counts)]
    heapify(waiting)
    while waiting:
        in_time(deadline)
        _, vector, counts = heappop(waiting)  # few processes first: they cover many of those to come
        if counts not in known[vector]:  # a smaller one has come since
            continue
        for rule, earlier in before[vector]:
            needed = _undone(counts, place[rule.source], place[rule.target])
            if known[earlier].add(needed):
                heappush(waiting, (sum(needed), earlier, needed))
    return known


def _undone(counts: Counts, source: int, target: int) -> Counts:
    needed = list(counts)
    needed[target] = max(needed[target] - 1, 0)
    needed[source] += 1
    return tuple(needed)


def _before(order: Order, deadline: float) -> Mapping[Vector, list[tuple[Rule, Vector]]]:
    before: dict[Vector, list[tuple[Rule, Vector]]] = {vector: [] for vector in order.vectors}
    for vector in order.vectors:
        in_time(deadline)
        for rule in order.automaton.rules:
            if order.open(rule, vector):
                for after in order.after(rule, vector):
                    before[after].append((rule, vector))
    return before


class _Graph:
    """The vectors with their least elements; a place says nothing more."""

    def __init__(self, order: Order, least: Mapping[Vector, Antichain], start: Conjunction, deadline: float) -> None:
        self.order, self.least = order, least
        self.beginnings = [v for v in order.vectors if len(least[v]) and self._starts(v, start, deadline)]

    def _starts(self, vector: Vector, start: Conjunction, deadline: float) -> bool:
        """Whether a start of the automaton is in the set; Late after the time."""
        in_time(deadline)
        run = Unrolling(self.order.automaton, start, deadline)
        at = self.order.fix(run, start)
        run.solver.add(*self.order.inside(vector, run.start, at))
        return run.check(self.within(vector, run.start)) is not False

    def starts(self) -> Iterator[tuple[Vector, Place]]:
        return ((vector, None) for vector in self.beginnings)

    def stays(self, vector: Vector, place: Place) -> Place:
        return place

    def exits(self, vector: Vector, place: Place) -> Iterator[tuple[Vector, Place, list[Rule]]]:
        order = self.order
        leaving: dict[Vector, list[Rule]] = {}
        for rule in order.automaton.rules:
            if order.open(rule, vector):
                for after in order.after(rule, vector):
                    if after != vector and len(self.least[after]):
                        leaving.setdefault(after, []).append(rule)
        return ((after, None, rules) for after, rules in leaving.items())

    def may_be_goal(self, vector: Vector, place: Place) -> bool:
        return True

    def within(self, vector: Vector, state: State) -> Any:
        import z3

        names = self.order.automaton.locations
        return z3.Or(
            [
                z3.And([state[name] >= count for name, count in zip(names, counts, strict=True) if count])
                for counts in self.least[vector].elements.tolist()
            ]
        )

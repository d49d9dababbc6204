"""`zcs`: a location is empty or not, a counter is an interval; what is left is finite and fits a decision diagram.

The diagram holds, for each combination of intervals, the sets of occupied locations from which a goal can be reached.
The abstraction forgets how many processes there are, so its paths are only candidates: each is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2
from typing import Any

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.order import ErrorGraph, Order, Place, Vector, decide
from assay.protocols.automata.solver import State, Unrolling, in_time
from assay.protocols.automata.specification import Outcome, Unsupported, Violation, occupancy

Diagram = Any
"""A node of a binary decision diagram."""


def check(automaton: Automaton, violation: Violation, *, seconds: float = 60.0) -> Outcome:
    """Whether the violation has a run."""
    if any(occupancy(automaton, goal) is None for goal in violation.goals):
        return Unsupported("the goal speaks of counters or parameters; zcs takes numbers of processes, smt all")
    return decide(automaton, violation, graph, seconds=seconds)


def graph(order: Order, violation: Violation, deadline: float) -> ErrorGraph | None:
    """The error graph of one order; None where no start leads to a goal."""
    found = _Graph(order, violation, deadline)
    return found if found.beginnings else None


class Symbols:
    """The variables of the diagram: one for each location, and the binary digits of each sum's interval."""

    def __init__(self, order: Order) -> None:
        from dd import autoref

        self.order = order
        self.bdd = autoref.BDD()
        self.locations = {name: f"at_{name}" for name in order.automaton.locations}
        sizes = [len(chain) for chain in order.chains.values()]
        digits = [max(ceil(log2(size)), 1) for size in sizes]
        self.digits = [[f"sum{i}_{bit}" for bit in range(count)] for i, count in enumerate(digits)]
        self.bdd.declare(*(name for group in self.digits for name in group), *self.locations.values())

    def interval(self, place: int, own: int) -> dict[str, bool]:
        """The digits of one interval."""
        return {name: bool(own >> bit & 1) for bit, name in enumerate(self.digits[place])}

    def vector(self, vector: Vector) -> dict[str, bool]:
        """The digits of all of them."""
        return {k: v for place, own in enumerate(vector) for k, v in self.interval(place, own).items()}

    def at(self, location: str) -> Diagram:
        """That a location is occupied."""
        return self.bdd.var(self.locations[location])

    def goal(self, automaton: Automaton, violation: Violation) -> Diagram:
        """That one of the goals may hold; how many processes are needed is forgotten."""
        total = self.bdd.false
        for goal in violation.goals:
            said = occupancy(automaton, goal)
            assert said is not None
            one = self.bdd.true
            for name, least in said[0].items():
                one &= self.at(name) if least else self.bdd.true
            for name in said[1]:
                one &= ~self.at(name)
            total |= one
        return total

    def moved(self, rule: Rule, here: Diagram) -> Diagram:
        """Occupied locations after a step from these: the source may have had one process or more."""
        left = here & self.at(rule.source)
        if rule.source != rule.target:
            left = self.bdd.exist([self.locations[rule.source], self.locations[rule.target]], left)
        return left & self.at(rule.target)

    def moved_back(self, rule: Rule, there: Diagram) -> Diagram:
        """Occupied locations from which a step may lead to these."""
        came = self.bdd.let({self.locations[rule.target]: True}, there)
        if rule.source != rule.target:
            came = self.bdd.exist([self.locations[rule.source]], came)
        return came & self.at(rule.source)


class _Graph:
    """All abstract configurations from which a goal is reachable."""

    def __init__(self, order: Order, violation: Violation, deadline: float) -> None:
        self.order = order
        self.symbols = Symbols(order)
        self.goal = self.symbols.goal(order.automaton, violation)
        self.reaching = self._backward(deadline)
        self.beginnings = list(self._beginnings(violation, deadline))

    def _backward(self, deadline: float) -> Diagram:
        reaching = fresh = self.goal
        while fresh != self.symbols.bdd.false:
            earlier = self.symbols.bdd.false
            for rule in self.order.automaton.rules:
                in_time(deadline)
                earlier |= self._before(rule, fresh)
            fresh = earlier & ~reaching
            reaching |= fresh
        return reaching

    def _before(self, rule: Rule, there: Diagram) -> Diagram:
        """One step back: the intervals of each sum in turn, then the guard, then the locations."""
        bdd, symbols = self.symbols.bdd, self.symbols
        for place in range(len(self.order.sums)):
            parts = bdd.false
            for own in range(len(self.order.chains[self.order.sums[place]])):
                if not self.order.lets(place, rule, own):
                    continue
                came = bdd.false
                for after in self.order.moves(place, rule, own):
                    came |= bdd.let(symbols.interval(place, after), there)
                parts |= came & bdd.cube(symbols.interval(place, own))
            there = parts
        return symbols.moved_back(rule, there)

    def _beginnings(self, violation: Violation, deadline: float) -> Iterator[tuple[Vector, Diagram]]:
        """The starts that lead to a goal, with what may be occupied there."""
        for vector in self.order.vectors:
            in_time(deadline)
            reaching = self.symbols.bdd.let(self.symbols.vector(vector), self.reaching)
            if reaching == self.symbols.bdd.false:
                continue
            run = Unrolling(self.order.automaton, violation.start, deadline)
            at = self.order.fix(run, violation.start)
            run.solver.add(*self.order.inside(vector, run.start, at))
            occupied = self._occupied(run, reaching)
            if occupied != self.symbols.bdd.false:
                yield vector, occupied

    def _occupied(self, run: Unrolling, reaching: Diagram) -> Diagram:
        """Which locations are occupied at the start, each for itself: how they go together is left to the replay."""
        if run.check() is False:
            return self.symbols.bdd.false
        for name in self.order.automaton.locations:
            if run.check(run.start[name] > 0) is False:
                reaching &= ~self.symbols.at(name)
            elif run.check(run.start[name] == 0) is False:
                reaching &= self.symbols.at(name)
        return reaching

    def starts(self) -> Iterator[tuple[Vector, Place]]:
        return iter(self.beginnings)

    def _here(self, vector: Vector) -> Diagram:
        return self.symbols.bdd.let(self.symbols.vector(vector), self.reaching)

    def stays(self, vector: Vector, place: Place) -> Place:
        order, reaching = self.order, self._here(vector)
        staying = [r for r in order.automaton.rules if order.open(r, vector) and vector in order.after(r, vector)]
        known = fresh = place
        while fresh != self.symbols.bdd.false:
            later = self.symbols.bdd.false
            for rule in staying:
                later |= self.symbols.moved(rule, fresh)
            fresh = later & reaching & ~known
            known |= fresh
        return known

    def exits(self, vector: Vector, place: Place) -> Iterator[tuple[Vector, Place, list[Rule]]]:
        leaving: dict[Vector, tuple[Diagram, list[Rule]]] = {}
        for rule in self.order.automaton.rules:
            if not self.order.open(rule, vector):
                continue
            for after in self.order.after(rule, vector):
                there = self.symbols.moved(rule, place) & self._here(after)
                if after != vector and there != self.symbols.bdd.false:
                    before, rules = leaving.get(after, (self.symbols.bdd.false, []))
                    leaving[after] = (before | there, [*rules, rule])
        return ((after, there, rules) for after, (there, rules) in leaving.items())

    def may_be_goal(self, vector: Vector, place: Place) -> bool:
        return bool((place & self.goal) != self.symbols.bdd.false)

    def within(self, vector: Vector, state: State) -> Any:
        import z3

        return z3.BoolVal(True)

"""From an abstract error graph to a verdict: its paths are replayed exactly, all of them.

A path of the graph is a sequence of interval vectors. While counters only rise there are finitely many, and each is
one question to z3: stretches inside the vectors, joined by the single steps that leave them. A path without a run is
spurious; if all are, there is no violation. A prefix without a run ends its whole branch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from assay.protocols.automata import explicit
from assay.protocols.automata.automaton import Automaton, Configuration, Rule, Schedule
from assay.protocols.automata.counterexample import Counterexample, Inconclusive, Outcome, Proved, Unsupported
from assay.protocols.automata.order import Cut, Order, Vector, guard, orders
from assay.protocols.automata.preprocess import simplify
from assay.protocols.automata.solver import State, Unrolling, one_of
from assay.protocols.automata.specification import Violation

LARGEST_PICTURE = 100_000
Place = Any
"""Where a path is, as a graph sees it: beside the vector, what it knows of the locations."""


class ErrorGraph(Protocol):
    """What lies between the starts and the goals in an abstraction."""

    def starts(self) -> Iterable[tuple[Vector, Place]]:
        """Abstract starts from which a goal is reachable."""

    def stays(self, vector: Vector, place: Place) -> Place:
        """All places that can be come to without leaving the vector."""

    def exits(self, vector: Vector, place: Place) -> Iterable[tuple[Vector, Place, list[Rule]]]:
        """Where to go on to, and by which rules."""

    def may_be_goal(self, vector: Vector, place: Place) -> bool:
        """Whether a goal may be among the places."""

    def within(self, vector: Vector, state: State) -> Any:
        """A condition that a configuration of the graph meets here."""


class Late(Exception):  # noqa: N818 - read as a sentence
    """The time is over, or z3 gave up."""


@dataclass
class Search:
    """A walk over all paths of one graph."""

    order: Order
    violation: Violation
    graph: ErrorGraph
    deadline: float

    def run(self) -> tuple[Configuration, Schedule] | None:
        """A run to a goal, or None if every path is spurious."""
        for vector, place in self.graph.starts():
            run = Unrolling(self.order.automaton, self.violation.start, self.left)
            at = self.order.fix(run, self.violation.start)
            run.solver.add(*self.order.inside(vector, run.start, at))
            found = self._visit(run, at, vector, place)
            if found is not None:
                return found
        return None

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(self.deadline - time.monotonic(), 0.001)

    def _ask(self, run: Unrolling, *conditions: Any) -> bool:
        if time.monotonic() > self.deadline:
            raise Late
        answer = run.check(*conditions)
        if answer is None:
            raise Late
        return answer

    def _visit(
        self, run: Unrolling, at: dict[Cut, Any], vector: Vector, place: Place
    ) -> tuple[Configuration, Schedule] | None:
        """Everything that a path can do from its last step on."""
        order = self.order
        mark = run.push()
        staying = [r for r in order.automaton.rules if order.open(r, vector) and vector in order.after(r, vector)]
        run.stretch(staying)
        run.solver.add(*order.inside(vector, run.now, at), self.graph.within(vector, run.now))
        if self._ask(run):  # else no run goes this way, however it goes on
            here = self.graph.stays(vector, place)
            goal = one_of(self.violation.goals, run.now)
            if self.graph.may_be_goal(vector, here) and self._ask(run, goal):
                return run.witness(goal)
            for after, there, rules in self.graph.exits(vector, here):
                found = self._leave(run, at, after, there, rules)
                if found is not None:
                    return found
        run.pop(mark)
        return None

    def _leave(
        self, run: Unrolling, at: dict[Cut, Any], after: Vector, there: Place, rules: list[Rule]
    ) -> tuple[Configuration, Schedule] | None:
        """One step into the next vector, and on from there."""
        mark = run.push()
        run.stretch(rules, at_most=1)
        run.solver.add(*self.order.inside(after, run.now, at))
        found = self._visit(run, at, after, there)
        if found is None:
            run.pop(mark)
        return found


Build = Callable[[Order, Violation, float], ErrorGraph | None]


def decide(automaton: Automaton, violation: Violation, build: Build, *, seconds: float) -> Outcome:
    """The verdict of an abstraction: `build` makes its error graph for an order, or None where that is empty."""
    deadline = time.monotonic() + seconds
    small = simplify(automaton, violation.start, violation.goals, seconds=seconds)
    if any(guard(form, small.shared) is None for rule in small.rules for form in rule.guard):
        return Unsupported("a guard adds one counter and subtracts another; intervals need sums")
    late = Inconclusive(f"no answer in {seconds:g} s")
    try:
        for order in orders(small, violation.start, seconds):
            if time.monotonic() > deadline:
                return late
            if prod(len(chain) for chain in order.chains.values()) > LARGEST_PICTURE:
                return Inconclusive(f"the counters have more than {LARGEST_PICTURE:,} combinations of intervals")
            graph = build(order, violation, deadline)
            if graph is None:
                continue
            if not small.increments_only:
                return _concrete(automaton, violation)
            found = Search(order, violation, graph, deadline).run()
            if found is not None:
                return Counterexample.of(automaton, violation, *found)
    except Late:
        return late
    return Proved()


def _concrete(automaton: Automaton, violation: Violation) -> Outcome:
    """With resets a path may go round for ever: only small instances are searched for a real run."""
    found = explicit.check(automaton, violation, up_to=5, most=60_000)
    if isinstance(found, Counterexample):
        return found
    return Inconclusive("abstract paths remain; with resets or decrements they are only replayed at small parameters")

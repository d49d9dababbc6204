"""Counters as intervals: the thresholds of the guards cut each counter's range, in an order that parameters decide.

A guard compares a sum of counters with a threshold over the parameters. Which of two thresholds is the larger may
depend on the parameters; each order that the assumptions allow is one finite picture of the counters: the number of
the interval in which each sum lies. All orders together cover all parameters.

An abstraction over such a picture has an error graph, and `decide` makes a verdict of it: its paths are replayed
exactly, all of them. A path is a sequence of interval vectors. While counters only rise there are finitely many, and
each is one question to z3: stretches inside the vectors, joined by the single steps that leave them. A path without a
run is spurious; if all are, there is no violation. A prefix without a run ends its whole branch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import gcd, prod
from typing import Any, Protocol

from assay.protocols.automata import explicit
from assay.protocols.automata.automaton import Automaton, Configuration, Rule, Schedule
from assay.protocols.automata.linear import Conjunction, Linear, about
from assay.protocols.automata.solver import Late, State, Unrolling, at_least_zero, ends, in_time, one_of, simplify
from assay.protocols.automata.specification import (
    Counterexample,
    Inconclusive,
    Outcome,
    Proved,
    Unsupported,
    Violation,
    late,
)

Vector = tuple[int, ...]
"""The interval of each sum."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The least whole number that, times `factor`, is at least `over` (a form over the parameters)."""

    factor: int
    over: Linear


@dataclass(frozen=True, slots=True)
class Guard:
    """One comparison: the sum has reached the cut, or it has not."""

    total: Linear
    cut: Cut
    reached: bool


def guard(form: Linear, shared: Sequence[str]) -> Guard | None:
    """The comparison that a form states; None if it adds one counter and subtracts another."""
    counters = form.only(shared)
    rest = form - counters
    if not counters.terms:  # about parameters alone: the empty sum is zero
        return Guard(Linear(), Cut(1, -1 * rest), reached=True)
    scale = gcd(*(abs(factor) for _, factor in counters.terms))
    if all(factor > 0 for _, factor in counters.terms):
        return Guard(_divided(counters, scale), Cut(scale, -1 * rest), reached=True)
    if all(factor < 0 for _, factor in counters.terms):
        return Guard(_divided(-1 * counters, scale), Cut(scale, rest + Linear((), 1)), reached=False)
    return None


def _divided(form: Linear, by: int) -> Linear:
    return Linear(tuple((name, factor // by) for name, factor in form.terms))


Chain = tuple[tuple[Cut, ...], ...]
"""Cuts in rising order; those of one group are equal. The first group is at most zero: passed from the start."""


@dataclass(frozen=True)
class Order:
    """One order of the thresholds, and what it makes of an automaton."""

    automaton: Automaton
    start: Conjunction
    chains: Mapping[Linear, Chain]
    until: float
    _moves: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)
    _reads: dict[Conjunction, tuple[tuple[int, int, bool], ...]] = field(default_factory=dict, repr=False)

    @property
    def sums(self) -> tuple[Linear, ...]:
        """The sums of counters that guards read."""
        return tuple(self.chains)

    @property
    def vectors(self) -> Iterator[Vector]:
        """Every combination of intervals."""
        return product(*(range(len(chain)) for chain in self.chains.values()))

    def open(self, rule: Rule, vector: Vector) -> bool:
        """Whether the rule's guard holds in these intervals."""
        return all((vector[place] >= group) == reached for place, group, reached in self._read(rule))

    def lets(self, place: int, rule: Rule, own: int) -> bool:
        """Whether the rule's guard allows this interval of this sum."""
        return all((own >= group) == reached for where, group, reached in self._read(rule) if where == place)

    def _read(self, rule: Rule) -> tuple[tuple[int, int, bool], ...]:
        """The guard as (sum, first interval at or above its cut, whether that must be reached)."""
        if rule.guard not in self._reads:
            said = [guard(form, self.automaton.shared) for form in rule.guard]
            self._reads[rule.guard] = tuple(
                (self.sums.index(one.total), _group(self.chains[one.total], one.cut), one.reached)
                for one in said
                if one
            )
        return self._reads[rule.guard]

    def after(self, rule: Rule, vector: Vector) -> Iterator[Vector]:
        """The intervals in which a step of the rule may end."""
        return product(*(self.moves(place, rule, own) for place, own in enumerate(vector)))

    def moves(self, place: int, rule: Rule, own: int) -> tuple[int, ...]:
        """The intervals of one sum in which a step of the rule may end."""
        total = self.sums[place]
        cleared = total.names & set(rule.resets)
        if cleared and cleared != total.names:
            return tuple(range(len(self.chains[total])))
        by = sum(total.factor(name) * step for name, step in rule.update)
        if cleared or by == 0:
            return (0,) if cleared else (own,)
        if (place, by, own) not in self._moves:
            self._moves[place, by, own] = self._possible(place, by, own)
        return self._moves[place, by, own]

    def _possible(self, place: int, change: int, own: int) -> tuple[int, ...]:
        import z3

        bare = Unrolling(_parameters_only(self.automaton), (), self.until)
        at = self.fix(bare, self.start)
        value = z3.FreshInt("value")
        bare.solver.add(value >= 0, value + change >= 0, *self._inside(place, own, value, at))
        reach = range(len(self.chains[self.sums[place]]))
        return tuple(j for j in reach if bare.check(*self._inside(place, j, value + change, at)) is not False)

    def fix(self, run: Unrolling, start: Conjunction) -> dict[Cut, Any]:
        """Make a run's parameters obey this order; the value of each cut."""
        run.solver.add(*(at_least_zero(form, run.start) for form in start if about(form, self.automaton.parameters)))
        cuts = dict.fromkeys(cut for chain in self.chains.values() for group in chain for cut in group)
        at = {cut: cut_value(run, cut) for cut in cuts}
        for chain in self.chains.values():
            run.solver.add(*chain_conditions(chain, at))
        return at

    def inside(self, vector: Vector, state: State, at: Mapping[Cut, Any]) -> list[Any]:
        """The conditions that the counters of a configuration lie in these intervals."""
        import z3

        conditions: list[Any] = []
        for place, own in enumerate(vector):
            value = z3.Sum([factor * state[name] for name, factor in self.sums[place].terms] or [z3.IntVal(0)])
            conditions += self._inside(place, own, value, at)
        return conditions

    def _inside(self, place: int, own: int, value: Any, at: Mapping[Cut, Any]) -> list[Any]:
        chain = self.chains[self.sums[place]]
        low = [value >= at[chain[own][0]]] if own else []
        return low + ([value < at[chain[own + 1][0]]] if own + 1 < len(chain) else [])


def _group(chain: Chain, cut: Cut) -> int:
    return next(position for position, cuts in enumerate(chain) if cut in cuts)


def cut_value(run: Unrolling, cut: Cut) -> Any:
    """A number for the cut, as the run's parameters give it."""
    import z3

    value = z3.FreshInt("cut")
    # factor * value >= over > factor * (value - 1), each as "at least zero".
    extended = {**run.start, "": value}
    up = Linear((("", cut.factor),)) - cut.over
    below = cut.over - Linear((("", cut.factor),), -cut.factor) - Linear((), 1)
    run.solver.add(at_least_zero(up, extended), at_least_zero(below, extended))
    return value


def chain_conditions(chain: Chain, at: Mapping[Cut, Any]) -> list[Any]:
    """That the cuts stand in this order."""
    conditions = [at[cut] <= 0 for cut in chain[0]]
    for group in chain[1:]:
        conditions += [at[group[0]] == at[cut] for cut in group[1:]]
    heads = [group[0] for group in chain[1:]]
    conditions += [at[heads[0]] > 0] if heads else []
    return conditions + [at[a] < at[b] for a, b in pairwise(heads)]


def orders(automaton: Automaton, start: Conjunction, until: float) -> Iterator[Order]:
    """Every order of the thresholds that some parameters bring about."""
    said = [guard(form, automaton.shared) for rule in automaton.rules for form in rule.guard]
    cuts: dict[Linear, dict[Cut, None]] = {}
    for one in said:
        assert one is not None
        cuts.setdefault(one.total, {})[one.cut] = None
    bare = Unrolling(_parameters_only(automaton), (), until)
    bare.solver.add(*(at_least_zero(form, bare.start) for form in start if about(form, automaton.parameters)))
    at = {cut: cut_value(bare, cut) for cut in dict.fromkeys(cut for own in cuts.values() for cut in own)}
    tasks = [(total, cut) for total, own in cuts.items() for cut in own]

    def place(position: int, chains: dict[Linear, Chain]) -> Iterator[dict[Linear, Chain]]:
        in_time(until)
        if position == len(tasks):
            yield chains
            return
        total, cut = tasks[position]
        for chain in _insertions(chains.get(total, ((),)), cut):
            bare.solver.push()
            bare.solver.add(*chain_conditions(chain, at))
            if bare.check() is not False:
                yield from place(position + 1, {**chains, total: chain})
            bare.solver.pop()

    for chains in place(0, {}):
        yield Order(automaton, start, chains, until)


def _insertions(chain: Chain, cut: Cut) -> Iterator[Chain]:
    for i, group in enumerate(chain):
        yield (*chain[:i], (*group, cut), *chain[i + 1 :])
        yield (*chain[: i + 1], (cut,), *chain[i + 1 :])


def _parameters_only(automaton: Automaton) -> Automaton:
    return Automaton(automaton.name, automaton.parameters, (), (), automaton.assumptions, (), ())


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
            run = Unrolling(self.order.automaton, self.violation.start, self.deadline)
            at = self.order.fix(run, self.violation.start)
            run.solver.add(*self.order.inside(vector, run.start, at))
            found = self._visit(run, at, vector, place)
            if found is not None:
                return found
        return None

    def _ask(self, run: Unrolling, *conditions: Any) -> bool:
        in_time(self.deadline)
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
    deadline = ends(seconds)
    try:
        small = simplify(automaton, violation.start, violation.goals, until=deadline)
    except Late:
        return late(seconds)
    if any(guard(form, small.shared) is None for rule in small.rules for form in rule.guard):
        return Unsupported("a guard adds one counter and subtracts another; intervals need sums")
    try:
        for order in orders(small, violation.start, deadline):
            in_time(deadline)
            if prod(len(chain) for chain in order.chains.values()) > LARGEST_PICTURE:
                return Inconclusive(f"the counters have more than {LARGEST_PICTURE:,} combinations of intervals")
            graph = build(order, violation, deadline)
            if graph is None:
                continue
            if not small.increments_only:
                return _concrete(automaton, violation, seconds, deadline)
            found = Search(order, violation, graph, deadline).run()
            if found is not None:
                return Counterexample.of(automaton, violation, *found)
    except Late:
        return late(seconds)
    return Proved()


def _concrete(automaton: Automaton, violation: Violation, seconds: float, deadline: float) -> Outcome:
    """With resets a path may go round for ever: only small instances are searched for a real run."""
    left = max(deadline - time.monotonic(), 0.0)
    found = explicit.check(automaton, violation, up_to=5, most=60_000, seconds=left)
    if isinstance(found, Counterexample):
        return found
    if isinstance(found, Inconclusive) and found.late:
        return late(seconds)
    return Inconclusive("abstract paths remain; with resets or decrements they are only replayed at small parameters")

"""Runs of an automaton as formulas for z3: configurations, stretches of rules, and what a model says.

Each rule moves one process out of one location. As long as no guard changes its truth, such a net is
communication-free: rules can be fired x times each, in some order, if the flow adds up and every rule that fires
finds its source occupied at the start or fed by another rule that fires (Esparza 1997). That is what a stretch says.

`simplify` leaves out, before a question is asked, what cannot matter from its start; every algorithm is faster for it
and no answer changes: rules that change nothing, rules whose guard the assumptions rule out, parts of a guard that are
always true, rules that another rule covers, locations nobody comes to, guards that nobody makes true, variables nobody
reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from assay.protocols.automata.automaton import (
    Automaton,
    Configuration,
    Rule,
    Schedule,
    blocks,
    components,
    in_order,
)
from assay.protocols.automata.linear import Conjunction, Dnf, Linear, Residue, about, distinct

if TYPE_CHECKING:
    import z3


NO_LIMIT = 2**32 - 1  # milliseconds: z3's own word for none


class Late(Exception):  # noqa: N818 - read as a sentence
    """The time is over, or z3 gave up."""


def ends(seconds: float) -> float:
    """The moment, of the clock that never goes back, at which so many seconds are over."""
    return time.monotonic() + seconds


def in_time(until: float) -> None:
    """Late where the moment is past."""
    if time.monotonic() > until:
        raise Late


State = Mapping[str, Any]
"""An expression for every location, shared variable and parameter."""


def at_least_zero(form: Linear, state: State) -> z3.BoolRef:
    """The form at a configuration, as a condition."""
    import z3

    left = [_times(name, factor, state) for name, factor in form.terms if factor > 0]
    right = [_times(name, -factor, state) for name, factor in form.terms if factor < 0]
    left += [z3.IntVal(form.constant)] if form.constant > 0 or not left else []
    right += [z3.IntVal(-form.constant)] if form.constant < 0 or not right else []
    condition: z3.BoolRef = z3.Sum(left) >= z3.Sum(right)
    return condition


def _times(name: str, factor: int, state: State) -> Any:
    import z3

    if isinstance(name, Residue):
        whole = z3.Sum([z3.IntVal(name.form.constant), *(_times(part, own, state) for part, own in name.form.terms)])
        value = whole % name.modulus
    else:
        value = state[name]
    return value * factor if factor > 1 else value


def all_of(forms: Conjunction, state: State) -> z3.BoolRef:
    """Every form is at least zero."""
    import z3

    return z3.And([at_least_zero(form, state) for form in forms])


def one_of(cases: Dnf, state: State) -> z3.BoolRef:
    """One of the cases holds."""
    import z3

    return z3.Or([all_of(case, state) for case in cases])


@dataclass(frozen=True)
class Stretch:
    """How often each rule fires between two configurations."""

    before: State
    firings: Sequence[tuple[Rule, Any]]
    after: State


class Unrolling:
    """A growing run: a solver that knows the start, and stretches added one after another."""

    def __init__(self, automaton: Automaton, start: Conjunction, until: float) -> None:
        import z3

        self.automaton = automaton
        self.until = until
        self.solver = z3.SolverFor("QF_LIA")
        self.stretches: list[Stretch] = []
        self.start: State = self._fresh((*automaton.parameters, *automaton.locations, *automaton.shared))
        self.solver.add(*(one_of(cases, self.start) for cases in (*automaton.assumptions, *automaton.initial)))
        self.solver.add(all_of(start, self.start))
        self.component = components(automaton)

    @property
    def now(self) -> State:
        """The configuration at the end."""
        return self.stretches[-1].after if self.stretches else self.start

    def _fresh(self, names: Iterable[str]) -> dict[str, Any]:
        import z3

        made = {name: z3.FreshInt(name) for name in names}
        self.solver.add(*(value >= 0 for value in made.values()))
        return made

    def push(self) -> int:
        """A place to come back to."""
        self.solver.push()
        return len(self.stretches)

    def pop(self, place: int) -> None:
        """Forget what was added since."""
        self.solver.pop()
        del self.stretches[place:]

    def stretch(self, rules: Sequence[Rule], *, at_most: int | None = None) -> Stretch:
        """Add firings of the rules, in any number and order (or at most so many in all); Late after the time."""
        import z3

        in_time(self.until)  # a thousand rules make a formula that takes seconds to write down
        before = self.now
        firings = [(rule, z3.FreshInt(f"rule{rule.name}")) for rule in rules]
        self.solver.add(*(times >= 0 for _, times in firings))
        if at_most is not None:
            self.solver.add(z3.Sum([times for _, times in firings]) <= at_most)
        deltas: dict[str, list[Any]] = {}
        for rule, times in firings:
            if rule.source != rule.target:
                deltas.setdefault(rule.source, []).append(-times)
                deltas.setdefault(rule.target, []).append(times)
            for name, by in rule.update:
                deltas.setdefault(name, []).append(by * times)
        after = {**before, **self._fresh(deltas)}
        self.solver.add(*(after[name] == z3.Sum([before[name], *parts]) for name, parts in deltas.items()))
        self._supported(before, firings)
        made = Stretch(before, firings, after)
        self.stretches.append(made)
        return made

    def _supported(self, before: State, firings: Sequence[tuple[Rule, Any]]) -> None:
        """On a cycle the flow may add up though nobody is there: then locations get ranks, each fed by a lower one."""
        import z3

        component = self.component
        round_about = [(rule, n) for rule, n in firings if component[rule.source] == component[rule.target]]
        rank = {rule.source: z3.FreshInt(f"rank_{rule.source}") for rule, _ in round_about}
        for location, own in rank.items():
            feeding = [before[location] > 0]
            for rule, times in firings:
                if rule.target != location or rule.source == location:
                    continue
                lower = rank[rule.source] < own if component[rule.source] == component[location] else True
                feeding.append(z3.And(times > 0, lower))
            leaving = [times > 0 for rule, times in round_about if rule.source == location]
            self.solver.add(z3.Implies(z3.Or(leaving), z3.Or(feeding)))

    def check(self, *conditions: Any, within: float = 1.0) -> bool | None:
        """Whether there is such a run; None if z3 gave up, or the time (or this share of what is left) is over."""
        import z3

        left = (self.until - time.monotonic()) * within
        if left <= 0:
            return None
        self.solver.set("timeout", max(1, int(min(left * 1000, NO_LIMIT))))
        answer = self.solver.check(*conditions)
        return None if answer == z3.unknown else bool(answer == z3.sat)

    def witness(self, *conditions: Any) -> tuple[Configuration, Schedule]:
        """A run, after `check` said there is one: its start, and the rules in an order in which they can fire.

        The parameters are made small first, for a run that people can read.
        """
        import z3

        size = z3.Sum([self.start[name] for name in self.automaton.parameters] or [z3.IntVal(0)])
        bounds = [size <= bound for bound in (4, 6, 8, 10, 12, 16, 24, 40)]
        if not any(self.check(*conditions, bound) for bound in bounds):
            self.solver.set("timeout", NO_LIMIT)  # that there is one is known: it is only looked up
            self.solver.check(*conditions)
        model = self.solver.model()

        def value(expression: Any) -> int:
            return int(model.eval(expression, model_completion=True).as_long())

        start = Configuration({name: value(self.start[name]) for name in self.start})
        now, fired = start, list[str]()
        for stretch in self.stretches:
            for rule in in_order(now, [(rule, value(times)) for rule, times in stretch.firings]):
                now = now.after(rule)
                fired.append(rule.name)
        return start, blocks(fired)


Possible = Callable[..., bool]
"""Whether natural numbers meet the assumptions and these conditions; what is not known counts as possible."""


def simplify(automaton: Automaton, start: Conjunction, goals: Dnf, *, until: float) -> Automaton:
    """An automaton with the same answer to whether a run from `start` comes to one of `goals`.

    Rules keep their names, so a schedule of the small automaton is one of the given one. Late after the time.
    """
    in_time(until)
    origin = Unrolling(automaton, start, until)
    rules = [rule for rule in automaton.rules if not rule.idle]
    anywhere = Unrolling(replace(automaton, initial=()), (), until)  # any counts, the assumptions hold
    anywhere.solver.add(all_of(_about_parameters(automaton, start), anywhere.start))

    def possible(*conditions: Any) -> bool:
        in_time(until)
        return anywhere.check(*conditions) is not False

    rules = _guards(rules, possible, anywhere.start)
    level = levels(rules, origin)
    rules = [rule for rule in rules if rule in level]
    return replace(automaton, rules=tuple(_without_unread(automaton, rules, start, goals)))


def levels(rules: Sequence[Rule], origin: Unrolling) -> dict[Rule, int]:
    """The first stretch in which each rule may fire, counted from 0; those that never can are left out.

    A rule needs a process at its source and a guard that holds when the stretch begins. What does not hold at the start
    needs a rule that changes its counters, in a stretch before.
    """
    start = origin.start
    holds = {
        form: 0
        for form in distinct(form for rule in rules for form in rule.guard)
        if origin.check(at_least_zero(form, start)) is not False
    }
    inhabited = {
        name: 0 for name in origin.automaton.locations if origin.check(start[name] > 0) is not False
    }  # fmt: skip
    reading: dict[str, list[Linear]] = {}
    for form in distinct(form for rule in rules for form in rule.guard):
        for name in form.read:
            reading.setdefault(name, []).append(form)
    found: dict[Rule, int] = {}
    while True:
        before = dict(found)
        for rule in rules:
            if rule.source not in inhabited or any(form not in holds for form in rule.guard):
                continue
            own = max(inhabited[rule.source], *(holds[form] for form in rule.guard), 0)
            found[rule] = own
            inhabited[rule.target] = min(own, inhabited.get(rule.target, own))
            for name in (*(name for name, _ in rule.update), *rule.resets):
                for form in reading.get(name, ()):
                    holds[form] = min(own + 1, holds.get(form, own + 1))
        if found == before:
            return found


def _about_parameters(automaton: Automaton, start: Conjunction) -> Conjunction:
    return tuple(form for form in start if about(form, automaton.parameters))


def _guards(rules: Sequence[Rule], possible: Possible, at: Any) -> list[Rule]:
    import z3

    sharp: list[Rule] = []
    said: dict[Conjunction, Conjunction | None] = {}  # large automata repeat few guards many times
    for rule in rules:
        if rule.guard not in said:
            ever = possible(all_of(rule.guard, at))
            kept = tuple(form for form in rule.guard if possible(z3.Not(all_of((form,), at))))
            said[rule.guard] = kept if ever else None
        guard = said[rule.guard]
        if guard is not None:
            sharp.append(replace(rule, guard=guard))
    groups: dict[tuple[Any, ...], list[Rule]] = {}
    for rule in sharp:
        groups.setdefault((rule.source, rule.target, rule.update, rule.resets), []).append(rule)
    return [rule for group in groups.values() for rule in _uncovered(group, possible, at)]


def _uncovered(group: list[Rule], possible: Possible, at: Any) -> list[Rule]:
    """Rules that do the same: one without a guard if theirs leave no gap, else those that no other one covers."""
    import z3

    names = {rule.name for rule in group}
    if len(group) == 1:
        return group
    if len(names) == 1 and not possible(z3.Not(z3.Or([all_of(rule.guard, at) for rule in group]))):
        return [replace(group[0], guard=())]
    kept: list[Rule] = []
    for rule in sorted(group, key=lambda rule: len(rule.guard)):
        guard = all_of(rule.guard, at)
        if all(possible(guard, z3.Not(all_of(other.guard, at))) for other in kept):
            kept.append(rule)
    return kept


def _without_unread(automaton: Automaton, rules: list[Rule], start: Conjunction, goals: Dnf) -> list[Rule]:
    """Updates of variables that no guard and no goal reads; a decrement stays, since it may block."""
    read = {name for rule in rules for form in rule.guard for name in form.names}
    read |= {name for goal in (start, *goals) for form in goal for name in form.names}
    read |= {name for rule in rules for name, by in rule.update if by < 0}
    slim = [
        replace(
            rule,
            update=tuple((name, by) for name, by in rule.update if name in read),
            resets=tuple(name for name in rule.resets if name in read),
        )
        for rule in rules
    ]
    return [rule for rule in slim if not rule.idle]

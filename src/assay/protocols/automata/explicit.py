"""`explicit`: every run at fixed parameters, one configuration at a time. Slow, plain, and no proof beyond them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from assay.protocols.automata.automaton import Automaton, Configuration, Rule, Schedule, blocks, comes_to_rest
from assay.protocols.automata.linear import Conjunction, Dnf, Linear, fixed, holds
from assay.protocols.automata.solver import Late, ends, in_time
from assay.protocols.automata.specification import (
    Counterexample,
    Inconclusive,
    Moment,
    Outcome,
    Passed,
    Question,
    Stall,
    Unsupported,
    Violation,
    late,
)

MOST_STATES = 300_000
LARGEST_SUM = 6  # of a parameter, when none are given


@dataclass(frozen=True, slots=True)
class Checked:
    """No violation at these parameters; nothing is said about others."""

    parameters: tuple[Mapping[str, int], ...]
    states: int


def check(
    automaton: Automaton, question: Question, *, parameters: Mapping[str, int] | None = None,
    up_to: int = LARGEST_SUM, most: int = MOST_STATES, seconds: float = 60.0,
) -> Outcome | Checked:  # fmt: skip
    """Whether the question has a run at these parameters, or at any up to a size."""
    if isinstance(question, Stall) and not comes_to_rest(automaton):
        return Unsupported("liveness needs an automaton without cycles but rules that change nothing")
    sizes = [parameters] if parameters is not None else list(instances(automaton, up_to))
    if not sizes:
        return Inconclusive(f"the assumptions admit no parameters up to {up_to}; give --parameters")
    seen, until = 0, ends(seconds)
    for size in sizes:
        try:
            found, states = search(*at_size(automaton, question, size), size, most - seen, until)
        except Late:
            return late(seconds)
        except OverflowError:
            return Inconclusive(f"more than {most:,} configurations; give smaller --parameters")
        except ValueError as error:
            return Unsupported(str(error))
        seen += states
        if found is not None:
            return Counterexample.of(automaton, question, *found)
    try:
        if not seen and not any(_has_start(*at_size(automaton, question, size), size, until) for size in sizes):
            return Inconclusive("no run starts at these parameters: the inits cannot all hold there")
    except Late:
        return late(seconds)
    return Checked(tuple(sizes), seen)


def at_size(automaton: Automaton, question: Question, parameters: Mapping[str, int]) -> tuple[Automaton, Question]:
    """The same with residues of the parameters as the numbers they are: quicker to read a million times."""

    def here(forms: Conjunction) -> Conjunction:
        return tuple(fixed(form, parameters) for form in forms)

    def all_here(cases: Dnf) -> Dnf:
        return tuple(here(case) for case in cases)

    rules = tuple(replace(rule, guard=here(rule.guard)) for rule in automaton.rules)
    asked: Question
    if isinstance(question, Violation):
        asked = Violation(here(question.start), all_here(question.goals))
    else:
        moments = tuple(Moment(here(one.goal), tuple(map(all_here, one.always))) for one in question.moments)
        final, always = tuple(map(all_here, question.final)), tuple(map(all_here, question.always))
        asked = Stall(here(question.start), always, moments, final)
    return replace(automaton, rules=rules, initial=tuple(map(all_here, automaton.initial))), asked


def instances(automaton: Automaton, up_to: int) -> Iterator[dict[str, int]]:
    """All parameters up to a size that the assumptions admit."""
    for values in product(range(up_to + 1), repeat=len(automaton.parameters)):
        parameters = dict(zip(automaton.parameters, values, strict=True))
        if automaton.admits(parameters):
            yield parameters


def starts(
    automaton: Automaton, parameters: Mapping[str, int], question: Question, until: float = inf
) -> Iterator[Configuration]:
    """All initial configurations at these parameters; Late after the time.

    ValueError where a location may hold any number of processes: then there are infinitely many.
    """
    names = (*automaton.locations, *automaton.shared)
    bounds = [range(_highest(automaton, name, parameters, question) + 1) for name in names]
    upper = [form for form in _sure(automaton, question) if all(form.factor(name) <= 0 for name in names)]
    nothing = dict.fromkeys(names, 0)

    def grow(position: int, values: dict[str, int]) -> Iterator[Configuration]:
        in_time(until)
        if not holds(upper, {**nothing, **values}):  # what is still to come only makes it worse
            return
        if position == len(names):
            now = Configuration(values)
            if automaton.starts_in(now) and holds(question.start, values):
                yield now
            return
        for value in bounds[position]:
            yield from grow(position + 1, {**values, names[position]: value})

    return grow(0, dict(parameters))


def _has_start(automaton: Automaton, question: Question, parameters: Mapping[str, int], until: float) -> bool:
    """Whether there is an initial configuration, whatever the question wants of it."""
    return next(starts(automaton, parameters, replace(question, start=()), until), None) is not None


def _sure(automaton: Automaton, question: Question) -> list[Linear]:
    """The conditions that every start meets."""
    return [form for cases in automaton.initial if len(cases) == 1 for form in cases[0]] + list(question.start)


def _highest(automaton: Automaton, name: str, parameters: Mapping[str, int], question: Question) -> int:
    """The most that an initial condition leaves for a name."""
    bounds = []
    for form in _sure(automaton, question):
        own = form.factor(name)
        others = [factor for term, factor in form.terms if term not in parameters and term != name]
        if own < 0 and all(factor <= 0 for factor in others):
            known = {term: parameters.get(term, 0) for term, _ in form.terms}
            bounds.append(max(form.value(known) // -own, -1))
    if bounds:
        return min(bounds)
    if name in automaton.locations:
        raise ValueError(f"nothing bounds the processes that start in '{name}'")
    return _saturated(automaton, name, parameters, question)


def _saturated(automaton: Automaton, name: str, parameters: Mapping[str, int], question: Question) -> int:
    """A value from which on no guard and no goal can tell a counter apart, if counters only rise."""
    forms = [*(form for rule in automaton.rules for form in rule.guard), *question.forms]
    reading = [form for form in forms if form.factor(name)]
    if not automaton.increments_only or any(_mixed(form, automaton) for form in reading):
        raise ValueError(f"nothing bounds the value that '{name}' starts with")
    fixed = ({term: parameters.get(term, 0) for term, _ in form.terms} for form in reading)
    return max((abs(form.value(values)) + 1 for form, values in zip(reading, fixed, strict=True)), default=0)


def _ceilings(automaton: Automaton, parameters: Mapping[str, int], question: Question) -> dict[str, int]:
    """For the counters that have one, a value at which the search may stop counting."""
    found = {}
    for name in automaton.shared:
        with suppress(ValueError):
            found[name] = _saturated(automaton, name, parameters, question)
    return found


def _mixed(form: Linear, automaton: Automaton) -> bool:
    return len({factor > 0 for name, factor in form.terms if name not in automaton.parameters}) > 1


State = tuple[tuple[int, ...], Passed]
"""The counts of a configuration, and which moments of the question lie behind it."""


def search(
    automaton: Automaton,
    question: Question,
    parameters: Mapping[str, int],
    most: int = MOST_STATES,
    until: float = inf,
) -> tuple[tuple[Configuration, Schedule] | None, int]:
    """The shortest run that the question asks for, if there is one, and how many configurations were seen.

    OverflowError after the most configurations, Late after the time.
    """
    rules = [rule for rule in automaton.rules if not rule.idle]
    names = (*automaton.locations, *automaton.shared)
    ceilings = _ceilings(automaton, parameters, question)
    origin: dict[State, tuple[State, Rule] | None] = {}
    waiting: deque[tuple[Configuration, State]] = deque()

    def note(now: Configuration, passed: Passed, came_from: tuple[State, Rule] | None) -> None:
        lowered = {name: min(now.values[name], ceiling) for name, ceiling in ceilings.items()}
        now = Configuration({**now.values, **lowered}) if came_from else now
        counts = tuple(now.values[name] for name in names)
        for later in question.follow(passed, now.values):
            if (counts, later) not in origin:
                if len(origin) >= most:
                    raise OverflowError
                origin[counts, later] = came_from
                waiting.append((now, (counts, later)))

    for start in starts(automaton, parameters, question, until):
        note(start, (), None)
    while waiting:
        in_time(until)
        now, state = waiting.popleft()
        if question.shown(state[1], now.values):
            (first, _), schedule = _path(state, origin)
            return (Configuration({**parameters, **dict(zip(names, first, strict=True))}), schedule), len(origin)
        for rule in rules:
            if now.enabled(rule):
                note(now.after(rule), state[1], (state, rule))
    return None, len(origin)


def _path(end: State, origin: Mapping[State, tuple[State, Rule] | None]) -> tuple[State, Schedule]:
    fired: list[str] = []
    here = end
    while (step := origin[here]) is not None:
        here, rule = step
        fired.append(rule.name)
    return here, blocks(reversed(fired))

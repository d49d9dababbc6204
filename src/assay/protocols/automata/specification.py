"""What a specification asks for, turned round: which runs must not exist.

Safety is ``start -> [] good``. Its negation is a list of violations: a start that the automaton may choose and a
configuration that it then reaches. Liveness says what happens at last, under fairness. If the only cycles of an
automaton are processes that stay where they are, every run comes to rest, and the negation is a run that comes to
rest in the wrong place: it keeps some conditions all along, passes some moments, and ends in a fair configuration.
A run rests where a rule that changes nothing can be taken for ever, or where no rule can be taken at all.

An algorithm answers such a question by one of four outcomes; a counterexample can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

from assay.protocols.automata.automaton import Automaton, Configuration, Schedule, steps
from assay.protocols.automata.linear import (
    LARGEST_DNF,
    Always,
    And,
    Atom,
    Conjunction,
    Dnf,
    Eventually,
    Formula,
    Linear,
    Literal,
    Or,
    about,
    conjunction,
    dnf,
    holds,
    holds_one,
    is_state,
    negate,
    normal,
    number,
    variable,
)
from assay.record.errors import BadInput

Passed = tuple[bool, ...]
"""Which moments of a question a run has been through."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A run that starts with `start` (beside the automaton's own initial condition) and comes to one of `goals`."""

    start: Conjunction
    goals: Dnf

    @property
    def forms(self) -> tuple[Linear, ...]:
        """All that it reads on the way."""
        return tuple(form for goal in self.goals for form in goal)

    def follow(self, passed: Passed, values: Mapping[str, int]) -> Iterator[Passed]:
        """What may be known after the next configuration: nothing, since only the last one counts."""
        yield ()

    def shown(self, passed: Passed, values: Mapping[str, int]) -> bool:
        """Whether a run that ends here is such a run."""
        return holds_one(self.goals, values)


@dataclass(frozen=True, slots=True)
class Moment:
    """A configuration in which `goal` holds, and from which on all of `always` do."""

    goal: Conjunction
    always: tuple[Dnf, ...] = ()


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that keeps `always`, goes through each of the moments, and rests where all of `final` hold."""

    start: Conjunction = ()
    always: tuple[Dnf, ...] = ()
    moments: tuple[Moment, ...] = ()
    final: tuple[Dnf, ...] = ()

    @property
    def forms(self) -> tuple[Linear, ...]:
        """All that it reads on the way."""
        said = [*self.always, *self.final, *(dnf for moment in self.moments for dnf in moment.always)]
        goals = [form for moment in self.moments for form in moment.goal]
        return tuple(dict.fromkeys([*goals, *(form for cases in said for case in cases for form in case)]))

    def follow(self, passed: Passed, values: Mapping[str, int]) -> Iterator[Passed]:
        """Which moments may lie behind after the next configuration; none at all if it breaks what must hold."""
        if not all(holds_one(cases, values) for cases in self.always):
            return
        choices = []
        for moment, before in zip(self.moments, passed or (False,) * len(self.moments), strict=True):
            kept = all(holds_one(cases, values) for cases in moment.always)
            now = kept and (before or holds(moment.goal, values))
            choices.append([True] * now + [False] * (not before))
        yield from product(*choices)

    def shown(self, passed: Passed, values: Mapping[str, int]) -> bool:
        """Whether a run that rests here is such a run."""
        return all(passed) and all(holds_one(cases, values) for cases in self.final)


Question = Violation | Stall


def shows(question: Question, run: Sequence[Configuration]) -> bool:
    """Whether a run, given by all its configurations, is what the question asks for."""
    if not holds(question.start, run[0].values):
        return False
    known: set[Passed] = {()}
    for now in run:
        known = {later for passed in known for later in question.follow(passed, now.values)}
    return any(question.shown(passed, run[-1].values) for passed in known)


@dataclass(frozen=True, slots=True)
class Asked:
    """The specification holds if and only if none of the questions has a run."""

    kind: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Beyond:
    """A specification outside of what assay can turn into questions."""

    why: str


def question(automaton: Automaton, formula: Formula) -> Asked | Beyond:
    """The questions of a specification.

    >>> from assay.protocols.taco import load
    >>> broadcast = load("broadcast")
    >>> asked = question(broadcast, broadcast.specifications["unforgeability"])
    >>> [(list(map(str, v.start)), [list(map(str, goal)) for goal in v.goals]) for v in asked.questions]
    [(['0 >= having'], [['accepted > 0']])]
    """
    cases = normal(_together(automaton, negate(formula)))
    if all(_is_reachability(case) for case in cases):
        return Asked("safety", tuple(_violations(cases)))
    try:
        stalls = [stall for case in cases for stall in _stalls(case)]
    except _Nested:
        return Beyond("its temporal operators are nested in a way that is not supported")
    rest = resting(automaton)
    return Asked("liveness", tuple(dict.fromkeys(replace(stall, final=(*stall.final, *rest)) for stall in stalls)))


def resting(automaton: Automaton) -> tuple[Dnf, ...]:
    """That a rule which changes nothing is enabled, or no rule at all: for each rule, one of these or not this one."""
    always = {rule.source for rule in automaton.rules if rule.idle and not rule.guard}
    idle: dict[Conjunction, None] = dict.fromkeys((variable(place) - number(1),) for place in sorted(always))
    for rule in automaton.rules:
        if rule.idle and rule.source not in always:
            idle[variable(rule.source) - number(1), *rule.guard] = None
    moving = dict.fromkeys((rule.source, rule.guard) for rule in automaton.rules if not rule.idle)
    said: list[Dnf] = []
    for source, guard in moving:
        disabled = [(-1 * variable(source),), *((-1 * form - number(1),) for form in guard)]
        said.append((*idle, *(case for one in disabled if (case := conjunction(one)) is not None)))
    return tuple(said)


def _together(automaton: Automaton, formula: Formula) -> Formula:
    """<>(a && <> b) is <>(a && b) where a, once true, stays true: somebody is where nobody leaves."""
    match formula:
        case And(parts):
            return And(tuple(_together(automaton, part) for part in parts))
        case Or(parts):
            return Or(tuple(_together(automaton, part) for part in parts))
        case Eventually(part) if not is_state(part):
            merged: list[Formula] = []
            for case in normal(part):
                now = [literal for literal in case if isinstance(literal, Atom)]
                later = [literal for literal in case if not isinstance(literal, Atom)]
                if conjunction(literal.form for literal in now) is None:
                    continue
                if len(later) != 1 or not isinstance(later[0], Eventually) or not is_state(later[0].part):
                    return formula
                if not all(_stays(automaton, literal.form) for literal in now):
                    return formula
                merged.append(Eventually(And((*now, later[0].part))))
            return Or(tuple(merged))
    return formula


def _stays(automaton: Automaton, form: Linear) -> bool:
    """Whether the form, once at least zero, can never fall below it."""
    left = {rule.source for rule in automaton.rules if rule.source != rule.target}
    grows = {place for place in automaton.locations if place not in left}
    grows |= set(automaton.shared) if automaton.increments_only else set()
    fixed = set(automaton.parameters)
    return all(about(variable(name), fixed) or (name in grows and factor > 0) for name, factor in form.terms)


def _is_reachability(case: Sequence[Literal]) -> bool:
    """Conditions on the start, and one configuration to reach."""
    temporal = [literal for literal in case if not isinstance(literal, Atom)]
    return len(temporal) <= 1 and all(isinstance(one, Eventually) and is_state(one.part) for one in temporal)


def _violations(cases: Sequence[Sequence[Literal]]) -> Iterator[Violation]:
    found: dict[Conjunction, dict[Conjunction, None]] = {}
    for case in cases:
        start = conjunction(literal.form for literal in case if isinstance(literal, Atom))
        goals = [_occupied_one_by_one(dnf(literal.part)) for literal in case if isinstance(literal, Eventually)]
        if start is not None:
            # A statement about the start alone is broken at the start: any goal will do.
            found.setdefault(start, {}).update(dict.fromkeys(goals[0] if goals else ((),)))
    return (Violation(start, tuple(goals)) for start, goals in found.items() if goals)


def _occupied_one_by_one(goals: Dnf) -> Dnf:
    """That somebody is in one of several locations, as one goal for each: acs and zcs look at single locations."""
    split: list[Conjunction] = []
    for goal in goals:
        choices = [
            [variable(name) - number(1) for name in form.names]
            if form.constant == -1 and len(form.terms) > 1 and all(factor > 0 for _, factor in form.terms)
            else [form]
            for form in goal
        ]
        split += [tuple(picked) for picked in product(*map(_sorted, choices))]
    return tuple(dict.fromkeys(split))


def _sorted(forms: list[Linear]) -> list[Linear]:
    return sorted(forms, key=str)


class _Nested(Exception):  # noqa: N818
    """The formula is none of the shapes below."""


def _stalls(case: Sequence[Literal]) -> Iterator[Stall]:
    """The runs that meet all literals at once."""
    options = [_options(literal) for literal in case]
    size = 1
    for option in options:
        size *= len(option)
    if size > LARGEST_DNF:
        raise BadInput(f"a specification has more than {LARGEST_DNF} cases; split it into several")
    for picked in product(*options):
        start = conjunction(form for one in picked for form in one.start)
        if start is not None:
            yield Stall(
                start,
                tuple(cases for one in picked for cases in one.always),
                tuple(moment for one in picked for moment in one.moments),
                tuple(cases for one in picked for cases in one.final),
            )


def _options(literal: Literal) -> list[Stall]:
    match literal:
        case Atom(form):
            return [Stall(start=(form,))]
        case Always(Eventually(part)) | Eventually(Always(part)) if is_state(part):
            return [Stall(final=_parts(part))]  # where a run comes to rest, "again and again" and "for good" are one
        case Always(Always(part)):
            return _options(Always(part))
        case Eventually(Eventually(part)):
            return _options(Eventually(part))
        case Always(part) if is_state(part):
            return [Stall(always=_parts(part))]
        case Eventually(part):
            return [moment for inner in normal(part) if (moment := _moment(inner)) is not None]
    raise _Nested


def _moment(case: Sequence[Literal]) -> Stall | None:
    """One moment, with what holds from then on; None if no numbers meet it."""
    inner = [_options(literal) for literal in case]
    if any(len(option) != 1 or option[0].moments for option in inner):
        raise _Nested
    parts = [option[0] for option in inner]
    goal = conjunction(form for part in parts for form in part.start)
    if goal is None:
        return None
    always = tuple(cases for part in parts for cases in part.always)
    return Stall(moments=(Moment(goal, always),), final=tuple(cases for part in parts for cases in part.final))


def _parts(formula: Formula) -> tuple[Dnf, ...]:
    """A condition as several that all hold, so that none of them has many cases."""
    return tuple(dnf(part) for part in formula.parts) if isinstance(formula, And) else (dnf(formula),)


def empty_places(automaton: Automaton, case: Conjunction) -> frozenset[str] | None:
    """The locations that a condition wants empty; None if it says something else."""
    if all(form.constant == 0 and all(factor < 0 for _, factor in form.terms) for form in case):
        names = frozenset(name for form in case for name in form.names)
        return names if names <= set(automaton.locations) else None
    return None


def occupancy(automaton: Automaton, goal: Conjunction) -> tuple[dict[str, int], frozenset[str]] | None:
    """The goal as least numbers of processes and empty locations; None if it says something else."""
    least: dict[str, int] = {}
    empty: set[str] = set()
    for form in goal:
        if (places := empty_places(automaton, (form,))) is not None:
            empty |= places
        elif len(form.terms) == 1 and form.constant < 0 and form.names <= set(automaton.locations):
            ((name, factor),) = form.terms
            least[name] = max(least.get(name, 0), -(form.constant // factor))
        else:
            return None
    return least, frozenset(empty)


@dataclass(frozen=True, slots=True)
class Proved:
    """There is no such run, for any parameters that the assumptions admit."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The algorithm does not take this question; `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The algorithm ended without an answer; `why` is one line. More time may help where it was `late`."""

    why: str
    late: bool = False


def late(seconds: float) -> Inconclusive:
    """No answer in its time."""
    return Inconclusive(f"no answer in {seconds:.3g} s; give more --seconds", late=True)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Parameters, a start and a schedule that break the specification."""

    parameters: Mapping[str, int]
    start: Configuration
    schedule: Schedule
    trail: tuple[Configuration, ...]  # after each entry of the schedule, the start first

    @classmethod
    def of(cls, automaton: Automaton, question: Question, start: Configuration, schedule: Schedule) -> Counterexample:
        """The counterexample, replayed step by step in the automaton as it was given; RuntimeError if it is none."""
        parameters = {name: start.values[name] for name in automaton.parameters}
        run = list(steps(automaton, start, schedule))
        if not (automaton.admits(parameters) and automaton.starts_in(start) and shows(question, run)):
            raise RuntimeError("a counterexample does not show what it should; this is a defect of assay")
        ends = accumulate((times for _, times in schedule), initial=0)
        return cls(parameters, start, schedule, tuple(run[end] for end in ends))

    def rows(self, automaton: Automaton) -> list[dict[str, object]]:
        """One row for each entry of the schedule: the rule, how often, and what is where afterwards."""
        named = [("start", 0), *self.schedule]
        rows: list[dict[str, object]] = []
        for (name, times), now in zip(named, self.trail, strict=True):
            rules = automaton.rules_named(name)
            where = {place: now.values[place] for place in automaton.locations if now.values[place]}
            counts = {variable: now.values[variable] for variable in automaton.shared}
            move = f"{rules[0].source} -> {rules[0].target}" if rules else ""
            rows.append({"rule": name, "move": move, "times": times, "processes": where, "shared": counts})
        return rows


Outcome = Proved | Counterexample | Unsupported | Inconclusive

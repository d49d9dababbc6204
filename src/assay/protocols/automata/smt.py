"""`smt`: one formula for every run, whatever the number of processes.

While counters only rise, a guard changes its truth at most once. A run is therefore a chain of stretches in which no
guard changes, at most one more than there are guards. The formula says that such a chain leads from a start to the
goal; z3 finds one, with parameters and schedule, or there is none for any parameters at all. Short chains are tried on
the way: most runs that break something need few changes.

Liveness asks whether a run can come to rest where it should not: a chain of stretches again, now with one more for
every moment that it has to go through. What must hold all along is asked for where stretches meet, and exactly where it
only forbids to enter locations. That is less than the truth, so "no run" is a proof; a run that z3 finds is replayed
step by step before it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from assay.protocols.automata.automaton import Automaton, Rule, comes_to_rest, steps
from assay.protocols.automata.linear import Conjunction, Dnf, Linear, distinct
from assay.protocols.automata.solver import (
    Late,
    State,
    Stretch,
    Unrolling,
    all_of,
    at_least_zero,
    ends,
    in_time,
    levels,
    one_of,
    simplify,
)
from assay.protocols.automata.specification import (
    Counterexample,
    Inconclusive,
    Moment,
    Outcome,
    Proved,
    Stall,
    Unsupported,
    Violation,
    empty_places,
    late,
    shows,
)

MIXED = "a guard adds one counter and subtracts another; smt needs guards that change truth once"


@dataclass(frozen=True)
class Guards:
    """The guards of an automaton: those that become true as counters rise, those that become false, and when."""

    rising: tuple[Linear, ...]
    falling: tuple[Linear, ...]
    implied: tuple[tuple[Linear, Linear], ...]
    """The second holds wherever the first does."""
    level: Mapping[Rule, int]
    """The first stretch in which a rule may fire."""


def check(automaton: Automaton, violation: Violation, *, seconds: float = 60.0) -> Outcome:
    """Whether the violation has a run."""
    if not automaton.increments_only:
        return Unsupported("smt needs counters that only rise; acs and zcs take resets and decrements")
    try:
        begun = _begun(automaton, violation.start, violation.goals, ends(seconds))
        if begun is None:
            return Unsupported(MIXED)
        run, guards = begun
        for made, left in chain(run, guards):
            if left and made not in GLANCES:
                continue
            goal = one_of(violation.goals, run.now)
            answer = run.check(goal, within=GLANCE if left else 1.0)
            if answer:
                return Counterexample.of(automaton, violation, *run.witness(goal))
    except Late:
        return late(seconds)
    return late(seconds) if answer is None else Proved()


GLANCES = (2, 4, 8)  # stretches after which it is asked whether they lead to the goal already
GLANCE = 0.2  # of the time that is left


def _begun(automaton: Automaton, start: Conjunction, goals: Dnf, until: float) -> tuple[Unrolling, Guards] | None:
    """A run without stretches, and the guards without what cannot matter; None where one may change its truth twice."""
    small = simplify(automaton, start, goals, until=until)
    split = directions(small)
    if split is None:
        return None
    run = Unrolling(small, start, until)
    return run, Guards(*split, _implied(small, split, until), levels(small.rules, run))


def directions(automaton: Automaton) -> tuple[tuple[Linear, ...], tuple[Linear, ...]] | None:
    """The guards that become true as counters rise, and those that become false; None if one may do both."""
    rising: list[Linear] = []
    falling: list[Linear] = []
    for form in distinct([form for rule in automaton.rules for form in rule.guard]):
        signs = {factor > 0 for name, factor in form.terms if name in automaton.shared}
        if len(signs) > 1:
            return None
        (falling if signs == {False} else rising).append(form)
    return tuple(rising), tuple(falling)


def _implied(
    automaton: Automaton, split: tuple[tuple[Linear, ...], tuple[Linear, ...]], until: float
) -> tuple[tuple[Linear, Linear], ...]:
    """Which guards hold wherever another one does, whatever the counters."""
    import z3

    anywhere = Unrolling(replace(automaton, initial=()), (), until)
    found = []
    for one, other in permutations([*split[0], *split[1]], 2):
        in_time(until)
        if one.read & other.read & set(automaton.shared):
            apart = at_least_zero(one, anywhere.start), z3.Not(at_least_zero(other, anywhere.start))
            found += [(one, other)] if anywhere.check(*apart) is False else []
    return tuple(found)


def chain(run: Unrolling, guards: Guards, *, extra: int = 0) -> Iterator[tuple[int, int]]:
    """Stretches for as many changes of truth as there can be, and some more: how many there are, and are to come.

    A guard that becomes true may do so anywhere in a stretch: what fires there held before. One that becomes false
    does so by a single step of its own between two stretches, for until then the rules that it guards may fire. Unless
    there are extra ones, each stretch begins with another guard changed, or nothing fires any more: else there would be
    as many ways to say the same as there are ways to leave stretches empty.
    """
    import z3

    truth = _Truth(run, guards)
    lowered = {name for form in guards.falling for name in form.names}
    crossing = [rule for rule in run.automaton.rules if any(name in lowered for name, _ in rule.update)]
    count = len(guards.rising) + len(guards.falling) + extra + 1
    going: Any = None
    for made in range(1, count + 1):
        stretch = run.stretch(_in_reach(run, guards, run.automaton.rules))
        changed = truth.begin(stretch.before)
        ended, going = going, z3.FreshBool("going")
        if ended is not None and not extra:
            run.solver.add(z3.Implies(going, z3.And(ended, changed)))
        truth.guard(stretch, going, set(guards.falling))
        if guards.falling and made < count:
            truth.guard(run.stretch(_in_reach(run, guards, crossing), at_most=1), going, set())
        yield made, count - made


def _in_reach(run: Unrolling, guards: Guards, rules: Sequence[Rule]) -> list[Rule]:
    """The rules that may fire in the next stretch."""
    return [rule for rule in rules if guards.level.get(rule, len(run.stretches) + 1) <= len(run.stretches)]


class _Truth:
    """Whether each guard holds at each joint, as one variable of the formula."""

    def __init__(self, run: Unrolling, guards: Guards) -> None:
        self.run, self.guards = run, guards
        self.known: dict[tuple[int, Linear], Any] = {}
        self.before: dict[Linear, Any] = {}

    def at(self, form: Linear, state: State) -> Any:
        """The variable."""
        import z3

        if (id(state), form) not in self.known:  # states live as long as the run that has them
            self.known[id(state), form] = holds = z3.FreshBool("holds")
            self.run.solver.add(holds == at_least_zero(form, state))
        return self.known[id(state), form]

    def begin(self, state: State) -> Any:
        """Say at the begin of a stretch what guards can do since the last one; that one of them has changed."""
        import z3

        guards, solver = self.guards, self.run.solver
        now = {form: self.at(form, state) for form in (*guards.rising, *guards.falling)}
        before, self.before = self.before, now
        solver.add(*(z3.Implies(now[one], now[other]) for one, other in guards.implied))
        if before:
            solver.add(*(z3.Implies(before[form], now[form]) for form in guards.rising))
            solver.add(*(z3.Implies(now[form], before[form]) for form in guards.falling))
        return z3.Or([now[form] != before[form] for form in before])

    def guard(self, stretch: Stretch, going: Any, falling: set[Linear]) -> None:
        """Rules fire where their guards hold: falling ones at the end of the stretch, others at its begin."""
        import z3

        allowed: dict[Conjunction, Any] = {}
        for rule, times in stretch.firings:
            if rule.guard not in allowed:
                allowed[rule.guard] = z3.FreshBool("allowed")
                needed = [self.at(f, stretch.after if f in falling else stretch.before) for f in rule.guard]
                self.run.solver.add(z3.Implies(allowed[rule.guard], z3.And(going, *needed)))
            self.run.solver.add(z3.Or(times <= 0, allowed[rule.guard]))


def check_liveness(automaton: Automaton, stall: Stall, *, seconds: float = 60.0) -> Outcome:
    """Whether there is such a run."""
    if not automaton.increments_only or not comes_to_rest(automaton):
        return Unsupported("liveness needs counters that only rise and no cycles but rules that change nothing")
    try:
        begun = _begun(automaton, stall.start, (stall.forms,), ends(seconds))
        if begun is None:
            return Unsupported(MIXED)
        run, guards = begun
        for _ in chain(run, guards, extra=len(stall.moments)):
            pass
    except Late:
        return late(seconds)
    return _rests(run, automaton, stall, seconds)


def _rests(run: Unrolling, automaton: Automaton, stall: Stall, seconds: float) -> Outcome:
    for cases in stall.always:
        _keep(run, [True] * (len(run.stretches) + 1), cases)
    for moment in stall.moments:
        _pass(run, moment)
    run.solver.add(*(one_of(cases, run.now) for cases in stall.final))
    answer = run.check()
    if answer is None:
        return late(seconds)
    if not answer:
        return Proved()
    start, schedule = run.witness()
    if not shows(stall, list(steps(automaton, start, schedule))):
        return Inconclusive("a candidate run breaks, between two stretches, what must always hold")
    return Counterexample.of(automaton, stall, start, schedule)


def _states(run: Unrolling) -> list[Any]:
    return [run.start, *(stretch.after for stretch in run.stretches)]


def _keep(run: Unrolling, since: Sequence[Any], cases: Dnf) -> None:
    """The condition holds at every joint where `since` is true, and nobody enters what it wants empty."""
    import z3

    for passed, state in zip(since, _states(run), strict=True):
        run.solver.add(z3.Implies(passed, one_of(cases, state)))
    places = empty_places(run.automaton, cases[0]) if len(cases) == 1 else None
    for passed, stretch in zip(since, run.stretches, strict=False):
        run.solver.add(z3.Implies(passed, z3.And([times == 0 for times in _entering(stretch, places or ())])))


def _entering(stretch: Stretch, places: Sequence[str] | frozenset[str]) -> list[Any]:
    return [times for rule, times in stretch.firings if rule.target in places]


def _pass(run: Unrolling, moment: Moment) -> None:
    """The moment is one of the joints; what it asks for from then on is kept."""
    import z3

    states = _states(run)
    since = [z3.FreshBool("passed") for _ in states]
    run.solver.add(since[-1])
    for before, now, state in zip([z3.BoolVal(False), *since], since, states, strict=False):
        run.solver.add(z3.Implies(before, now))
        run.solver.add(z3.Implies(z3.And(now, z3.Not(before)), all_of(moment.goal, state)))
    for cases in moment.always:
        _keep(run, since, cases)

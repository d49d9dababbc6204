"""`smt`: one formula for every run, whatever the number of processes.

While counters only rise, a guard changes its truth at most once. A run is therefore a chain of stretches in which no
guard changes, at most one more than there are guards. The formula says that such a chain leads from a start to the
goal; z3 finds one, with parameters and schedule, or there is none for any parameters at all.

Liveness asks whether a run can come to rest where it should not: a chain of stretches again, now with one more for
every moment that it has to go through. What must hold all along is asked for where stretches meet, and exactly where it
only forbids to enter locations. That is less than the truth, so "no run" is a proof; a run that z3 finds is replayed
step by step before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.protocols.automata.automaton import Automaton, Rule, comes_to_rest, steps
from assay.protocols.automata.linear import Conjunction, Dnf, Linear, distinct
from assay.protocols.automata.solver import Late, Stretch, Unrolling, all_of, at_least_zero, ends, one_of, simplify
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


def check(automaton: Automaton, violation: Violation, *, seconds: float = 60.0) -> Outcome:
    """Whether the violation has a run."""
    if not automaton.increments_only:
        return Unsupported("smt needs counters that only rise; acs and zcs take resets and decrements")
    try:
        run = _unrolled(automaton, violation.start, violation.goals, ends(seconds))
    except Late:
        return late(seconds)
    if run is None:
        return Unsupported(MIXED)
    goal = one_of(violation.goals, run.now)
    answer = run.check(goal)
    if answer is None:
        return late(seconds)
    return Counterexample.of(automaton, violation, *run.witness(goal)) if answer else Proved()


def _unrolled(
    automaton: Automaton, start: Conjunction, goals: Dnf, until: float, *, extra: int = 0
) -> Unrolling | None:
    """The formula for every run, without what cannot matter; None where a guard may change its truth twice."""
    small = simplify(automaton, start, goals, until=until)
    split = directions(small)
    if split is None:
        return None
    run = Unrolling(small, start, until)
    chain(run, *split, extra=extra)
    return run


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


def chain(run: Unrolling, rising: Sequence[Linear], falling: Sequence[Linear], *, extra: int = 0) -> None:
    """Stretches for as many changes of truth as there can be, and some more.

    A guard that becomes true may do so anywhere in a stretch: what fires there held before. One that becomes false
    does so by a single step of its own between two stretches, for until then the rules that it guards may fire.
    """
    rules = run.automaton.rules
    lowered = {name for form in falling for name in form.names}
    crossing = [rule for rule in rules if any(name in lowered for name, _ in rule.update)]
    for left in range(len(rising) + len(falling) + extra, -1, -1):
        stretch = run.stretch(rules)
        _guarded(run, stretch, rules, set(falling))
        if falling and left:
            step = run.stretch(crossing, at_most=1)
            _guarded(run, step, crossing, set())


def _guarded(run: Unrolling, stretch: Stretch, rules: Sequence[Rule], falling: set[Linear]) -> None:
    import z3

    truth: dict[Linear, Any] = {}
    for form in distinct([form for rule in rules for form in rule.guard]):
        truth[form] = at_least_zero(form, stretch.after if form in falling else stretch.before)
    for rule, times in stretch.firings:
        if rule.guard:
            run.solver.add(z3.Implies(times > 0, z3.And([truth[form] for form in rule.guard])))


def check_liveness(automaton: Automaton, stall: Stall, *, seconds: float = 60.0) -> Outcome:
    """Whether there is such a run."""
    if not automaton.increments_only or not comes_to_rest(automaton):
        return Unsupported("liveness needs counters that only rise and no cycles but rules that change nothing")
    try:
        run = _unrolled(automaton, stall.start, (stall.forms,), ends(seconds), extra=len(stall.moments))
    except Late:
        return late(seconds)
    return Unsupported(MIXED) if run is None else _rests(run, automaton, stall, seconds)


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

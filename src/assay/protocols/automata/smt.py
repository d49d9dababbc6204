"""`smt`: one formula for every run, whatever the number of processes.

While counters only rise, a guard changes its truth at most once. A run is therefore a chain of stretches in which no
guard changes, at most one more than there are guards. The formula says that such a chain leads from a start to the
goal; z3 finds one, with parameters and schedule, or there is none for any parameters at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.counterexample import Counterexample, Inconclusive, Outcome, Proved, Unsupported
from assay.protocols.automata.linear import Linear, distinct
from assay.protocols.automata.preprocess import simplify
from assay.protocols.automata.solver import Stretch, Unrolling, at_least_zero, one_of
from assay.protocols.automata.specification import Violation


def check(automaton: Automaton, violation: Violation, *, seconds: float = 60.0) -> Outcome:
    """Whether the violation has a run."""
    if not automaton.increments_only:
        return Unsupported("smt needs counters that only rise; acs and zcs take resets and decrements")
    small = simplify(automaton, violation.start, violation.goals, seconds=seconds)
    split = directions(small)
    if split is None:
        return Unsupported("a guard adds one counter and subtracts another; smt needs guards that change truth once")
    run = Unrolling(small, violation.start, seconds)
    chain(run, *split)
    goal = one_of(violation.goals, run.now)
    answer = run.check(goal)
    if answer is None:
        return Inconclusive(f"z3 found no answer in {seconds:g} s")
    return Counterexample.of(automaton, violation, *run.witness(goal)) if answer else Proved()


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

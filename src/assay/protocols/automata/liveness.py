"""Liveness by `smt`: can a run come to rest where it should not?

As in `smt`, a run is a chain of stretches, now with one more for every moment that it has to go through. What must
hold all along is asked for where stretches meet, and exactly where it only forbids to enter locations. That is less
than the truth, so "no run" is a proof; a run that z3 finds is replayed step by step before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.protocols.automata import smt
from assay.protocols.automata.automaton import Automaton, steps
from assay.protocols.automata.counterexample import Counterexample, Inconclusive, Outcome, Proved, Unsupported
from assay.protocols.automata.linear import Dnf
from assay.protocols.automata.preprocess import simplify
from assay.protocols.automata.solver import Stretch, Unrolling, all_of, one_of
from assay.protocols.automata.specification import Moment, Stall, empty_places, shows
from assay.protocols.automata.structure import comes_to_rest


def check(automaton: Automaton, stall: Stall, *, seconds: float = 60.0) -> Outcome:
    """Whether there is such a run."""
    if not automaton.increments_only or not comes_to_rest(automaton):
        return Unsupported("liveness needs counters that only rise and no cycles but rules that change nothing")
    small = simplify(automaton, stall.start, (stall.forms,), seconds=seconds)
    split = smt.directions(small)
    if split is None:
        return Unsupported("a guard adds one counter and subtracts another; smt needs guards that change truth once")
    run = Unrolling(small, stall.start, seconds)
    smt.chain(run, *split, extra=len(stall.moments))
    for cases in stall.always:
        _keep(run, [True] * (len(run.stretches) + 1), cases)
    for moment in stall.moments:
        _pass(run, moment)
    run.solver.add(*(one_of(cases, run.now) for cases in stall.final))
    answer = run.check()
    if answer is None:
        return Inconclusive(f"z3 found no answer in {seconds:g} s")
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

"""The same protocol with what a process has noticed in its location: large automata from small ones.

Tools that derive automata from program code get them in this shape: a process first receives, which may show it that
some thresholds are passed, and then acts on what it knows, which may lag behind what was sent. The number of
locations grows with the subsets of thresholds, so this also makes automata of any size for timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.linear import (
    Always,
    And,
    Atom,
    Dnf,
    Eventually,
    Formula,
    Linear,
    Or,
    distinct,
    linear,
    substitute,
    variable,
)
from assay.record.errors import BadInput

Noticed = frozenset[int]
Widened = Callable[[str], Linear]
"""What stands for a name of the small automaton: a location is the sum of all it has become."""


def noticing(automaton: Automaton) -> Automaton:
    """The automaton in which a process knows which guards it has seen come true, and acts on those alone.

    >>> from assay.protocols.taco import load
    >>> small = load("broadcast")
    >>> large = noticing(small)
    >>> len(small.rules), len(large.rules), len(large.locations)
    (6, 41, 16)
    """
    guards = distinct([form for rule in automaton.rules for form in rule.guard])
    for form in guards:
        if any(factor < 0 for name, factor in form.terms if name in automaton.shared):
            raise BadInput(f"'{form}' can become false again; only thresholds that stay passed can be noticed")
    sets = [frozenset(chosen) for size in range(len(guards) + 1) for chosen in combinations(range(len(guards)), size)]
    shown = {place: [_name(place, seen) for seen in sets] for place in automaton.locations}

    def widened(name: str) -> Linear:
        return linear(dict.fromkeys(shown[name], 1)) if name in shown else variable(name)

    rules = chain.from_iterable(_steps(automaton, guards, seen, more) for seen in sets for more in sets if seen <= more)
    unborn = [((-1 * variable(_name(place, seen)),),) for place in automaton.locations for seen in sets if seen]
    return Automaton(
        f"{automaton.name}Noticing", automaton.parameters, automaton.shared,
        tuple(name for names in shown.values() for name in names), automaton.assumptions,
        (*(_in_dnf(cases, widened) for cases in automaton.initial), *unborn),
        tuple(Rule(str(i), *rule) for i, rule in enumerate(rules)),
        {name: _in_formula(formula, widened) for name, formula in automaton.specifications.items()},
    )  # fmt: skip


def _name(place: str, seen: Noticed) -> str:
    return "_".join([place, *(str(i) for i in sorted(seen))])


Step = tuple[str, str, tuple[Linear, ...], tuple[tuple[str, int], ...]]


def _steps(automaton: Automaton, guards: tuple[Linear, ...], seen: Noticed, more: Noticed) -> Iterator[Step]:
    """Notice some more, then act or not."""
    passed = tuple(guards[i] for i in sorted(more - seen))
    for place in automaton.locations:
        if more != seen:
            yield _name(place, seen), _name(place, more), passed, ()
        for rule in automaton.rules:
            if rule.source == place and {guards.index(form) for form in rule.guard} <= more and not rule.idle:
                yield _name(place, seen), _name(rule.target, more), passed, rule.update


def _in_dnf(cases: Dnf, widened: Widened) -> Dnf:
    return tuple(tuple(substitute(form, widened) for form in case) for case in cases)


def _in_formula(formula: Formula, widened: Widened) -> Formula:
    match formula:
        case Atom(form):
            return Atom(substitute(form, widened))
        case And(parts):
            return And(tuple(_in_formula(part, widened) for part in parts))
        case Or(parts):
            return Or(tuple(_in_formula(part, widened) for part in parts))
        case Always(part):
            return Always(_in_formula(part, widened))
        case Eventually(part):
            return Eventually(_in_formula(part, widened))

"""What can be left out before a question is asked: it makes every algorithm faster and changes no answer.

For one start: rules that change nothing, rules whose guard the assumptions rule out, parts of a guard that are
always true, rules that another rule covers, locations nobody comes to, variables nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from assay.protocols.automata.automaton import Automaton, Rule
from assay.protocols.automata.linear import Conjunction, Dnf
from assay.protocols.automata.solver import Unrolling, all_of
from assay.protocols.automata.structure import reached

Possible = Callable[..., bool]
"""Whether natural numbers meet the assumptions and these conditions; what is not known counts as possible."""


def simplify(automaton: Automaton, start: Conjunction, goals: Dnf, *, seconds: float = 10.0) -> Automaton:
    """An automaton with the same answer to whether a run from `start` comes to one of `goals`.

    Rules keep their names, so a schedule of the small automaton is one of the given one.
    """
    origin = Unrolling(automaton, start, seconds)
    inhabited = [name for name in automaton.locations if origin.check(origin.start[name] > 0) is not False]
    rules = [rule for rule in automaton.rules if not rule.idle]
    anywhere = Unrolling(replace(automaton, initial=()), (), seconds)  # any counts, the assumptions hold
    anywhere.solver.add(all_of(_about_parameters(automaton, start), anywhere.start))
    rules = _guards(rules, lambda *conditions: anywhere.check(*conditions) is not False, anywhere.start)
    alive = reached(inhabited, rules)
    rules = [rule for rule in rules if rule.source in alive]
    return replace(automaton, rules=tuple(_without_unread(automaton, rules, start, goals)))


def _about_parameters(automaton: Automaton, start: Conjunction) -> Conjunction:
    return tuple(form for form in start if form.names <= set(automaton.parameters))


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

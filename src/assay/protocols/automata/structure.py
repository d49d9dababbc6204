"""The graph of an automaton's locations: which can be reached, and which lie on a cycle together."""

from __future__ import annotations

from collections.abc import Iterable

from assay.protocols.automata.automaton import Automaton, Rule


def reached(start: Iterable[str], rules: Iterable[Rule]) -> frozenset[str]:
    """The locations that a process can come to from these by some of the rules, guards aside."""
    known = set(start)
    moves = [(rule.source, rule.target) for rule in rules]
    waiting = list(known)
    while waiting:
        here = waiting.pop()
        for source, target in moves:
            if source == here and target not in known:
                known.add(target)
                waiting.append(target)
    return frozenset(known)


def components(automaton: Automaton) -> dict[str, int]:
    """A number for each location, the same for two that can reach each other, rising along the rules.

    >>> from assay.protocols.automata.automaton import Rule
    >>> moves = [("a", "b"), ("b", "a"), ("b", "c")]
    >>> rules = tuple(Rule(str(i), *move) for i, move in enumerate(moves))
    >>> components(Automaton("x", (), (), ("c", "a", "b"), (), (), rules))
    {'c': 1, 'a': 0, 'b': 0}
    """
    below = {location: reached([location], automaton.rules) for location in automaton.locations}
    same = {a: frozenset(b for b in below[a] if a in below[b]) for a in automaton.locations}
    # What reaches more lies earlier; two with equal reach are one component or unrelated.
    groups = sorted(dict.fromkeys(same.values()), key=lambda group: (-len(below[min(group)]), min(group)))
    return {location: groups.index(same[location]) for location in automaton.locations}


def comes_to_rest(automaton: Automaton) -> bool:
    """Whether no process can go round for ever, but for rules that change nothing.

    >>> from assay.protocols.taco.builtin import load
    >>> comes_to_rest(load("broadcast")), comes_to_rest(load("rounds"))
    (True, False)
    """
    component = components(automaton)
    return all(rule.idle or component[rule.source] != component[rule.target] for rule in automaton.rules)

"""From counts to a schedule: an order in which rules fire so and so often, while no guard changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.protocols.automata.automaton import Configuration, Rule


def in_order(start: Configuration, firings: Sequence[tuple[Rule, int]]) -> list[Rule]:
    """The rules, as often as they are to fire, in an order that can be fired from the start.

    A rule fires next if what remains can still be fired afterwards: every rule left finds its source occupied, or fed
    by others that are. With such a rule at hand there always is another, until none is left.
    """
    counts = {name: value for name, value in start.values.items() if value}
    left = {position: times for position, (_, times) in enumerate(firings) if times}
    rules = [rule for rule, _ in firings]
    order: list[Rule] = []
    while left:
        position = next((p for p in left if _may_fire(p, left, rules, counts)), None)
        if position is None:
            raise ValueError("these counts cannot be fired in any order")
        _fire(rules[position], position, left, counts)
        order.append(rules[position])
    return order


def _fire(rule: Rule, position: int, left: dict[int, int], counts: dict[str, int]) -> None:
    counts[rule.source] = counts.get(rule.source, 0) - 1
    counts[rule.target] = counts.get(rule.target, 0) + 1
    left[position] -= 1
    if not left[position]:
        del left[position]


def _may_fire(position: int, left: Mapping[int, int], rules: Sequence[Rule], counts: Mapping[str, int]) -> bool:
    rule = rules[position]
    if counts.get(rule.source, 0) < 1:
        return False
    remaining, after = dict(left), dict(counts)
    _fire(rule, position, remaining, after)
    fed = {name for name, count in after.items() if count > 0}
    waiting = set(remaining)
    while supported := {p for p in waiting if rules[p].source in fed}:
        fed |= {rules[p].target for p in supported}
        waiting -= supported
    return not waiting

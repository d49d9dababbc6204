"""A threshold automaton, its configurations, and what one process may do next.

All correct processes run the same small automaton. What they have sent is counted in shared variables; a rule may
fire when the counts pass a threshold over the parameters (how many processes, how many may be faulty). A
configuration says how many processes are in each location and what the counts are; the parameters never change.

Then the graph of its locations (which can be reached, which lie on a cycle together), and the way from counts to a
schedule: an order in which rules fire so and so often, while no guard changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from assay.protocols.automata.linear import Conjunction, Dnf, Formula, Linear, holds, holds_one
from assay.record.errors import BadInput
from assay.sim.random import stream

MOST_FIRINGS = 100_000  # of one replay: a schedule that is longer is a mistake


@dataclass(frozen=True, slots=True)
class Rule:
    """One process moves from `source` to `target`; a guard with || stands as several rules of the same name."""

    name: str
    source: str
    target: str
    guard: Conjunction = ()
    update: tuple[tuple[str, int], ...] = ()  # what is added to a shared variable; below zero: a decrement
    resets: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return self.source == self.target and not self.update and not self.resets

    def __str__(self) -> str:
        guard = " and ".join(map(str, self.guard)) or "true"
        added = [f"{name} {'+' if by > 0 else '-'}= {abs(by)}" for name, by in self.update]
        effect = "; ".join([*added, *(f"{name} = 0" for name in self.resets)])
        return f"{self.name}: {self.source} -> {self.target} when {guard}{' do ' + effect if effect else ''}"


@dataclass(frozen=True, slots=True)
class Automaton:
    """A threshold automaton with its specifications, as a `.ta` file gives it."""

    name: str
    parameters: tuple[str, ...]
    shared: tuple[str, ...]
    locations: tuple[str, ...]
    assumptions: tuple[Dnf, ...]  # all hold: the resilience condition
    initial: tuple[Dnf, ...]
    rules: tuple[Rule, ...]
    specifications: Mapping[str, Formula] = field(default_factory=dict)

    @property
    def increments_only(self) -> bool:
        """Whether shared variables never fall: the class in which a proof by one formula is complete."""
        return not any(rule.resets or any(by < 0 for _, by in rule.update) for rule in self.rules)

    def admits(self, parameters: Mapping[str, int]) -> bool:
        """Whether the assumptions hold."""
        return all(holds_one(cases, parameters) for cases in self.assumptions)

    def starts_in(self, configuration: Configuration) -> bool:
        """Whether the configuration is an initial one."""
        return all(holds_one(cases, configuration.values) for cases in self.initial)

    def rules_named(self, name: str) -> tuple[Rule, ...]:
        """The rules that one numbered rule of the file was split into."""
        return tuple(rule for rule in self.rules if rule.name == name)


@dataclass(frozen=True, slots=True)
class Configuration:
    """How many processes are where, what the shared variables are, and the parameters, all by name."""

    values: Mapping[str, int]

    def enabled(self, rule: Rule) -> bool:
        """Whether a process may take the rule: it is there, the guard holds, no variable would fall below zero."""
        values = self.values
        falls_below = any(values[name] + by < 0 for name, by in rule.update)
        return values[rule.source] > 0 and not falls_below and holds(rule.guard, values)

    def after(self, rule: Rule) -> Configuration:
        """The configuration after one process took the rule."""
        values = dict(self.values)
        values[rule.source] -= 1
        values[rule.target] += 1
        for name, by in rule.update:
            values[name] += by
        values.update(dict.fromkeys(rule.resets, 0))
        return Configuration(values)


Schedule = tuple[tuple[str, int], ...]
"""Names of rules, and how often each fires before the next one does."""


def blocks(fired: Iterable[str]) -> Schedule:
    """Rules one after another as a schedule.

    >>> blocks(["1", "1", "4", "1"])
    (('1', 2), ('4', 1), ('1', 1))
    """
    return tuple((name, len(list(group))) for name, group in groupby(fired))


def configuration(automaton: Automaton, parameters: Mapping[str, int], counts: Mapping[str, int]) -> Configuration:
    """A configuration from the parameters and the counts that are not zero; BadInput on a name it does not know."""
    known = {*automaton.locations, *automaton.shared}
    for name in counts:
        if name not in known:
            raise BadInput(f"{automaton.name} has no location or shared variable '{name}'")
    if set(parameters) != set(automaton.parameters):
        raise BadInput(f"{automaton.name} has the parameters {', '.join(automaton.parameters)}; give each a value")
    return Configuration({**dict.fromkeys((*automaton.locations, *automaton.shared), 0), **counts, **parameters})


def steps(automaton: Automaton, start: Configuration, schedule: Schedule) -> Iterator[Configuration]:
    """Fire the schedule one process at a time: every configuration, the start first.

    Raises ValueError where a rule is not enabled: then the schedule is none of this automaton's.
    """
    if sum(times for _, times in schedule) > MOST_FIRINGS:
        raise ValueError(f"the schedule has more than {MOST_FIRINGS} steps")
    now = start
    yield now
    for position, (name, times) in enumerate(schedule):
        for _ in range(times):
            rule = next((rule for rule in automaton.rules_named(name) if now.enabled(rule)), None)
            if rule is None:
                raise ValueError(f"rule {name} is not enabled at entry {position + 1} of the schedule")
            now = now.after(rule)
            yield now


def simulate(automaton: Automaton, start: Configuration, *, seed: int = 0, steps: int = 1000) -> Iterator[str]:
    """A random run: the names of the rules as they fire, until none that changes anything is enabled."""
    random = stream(seed, "automata", automaton.name)
    moving = [rule for rule in automaton.rules if not rule.idle]
    now = start
    for _ in range(steps):
        enabled = [rule for rule in moving if now.enabled(rule)]
        if not enabled:
            return
        rule = enabled[int(random.integers(len(enabled)))]
        now = now.after(rule)
        yield rule.name


def weaken(automaton: Automaton, condition: Linear) -> Automaton:
    """The automaton with an assumption replaced by another one over the same parameters.

    Assumptions with the same factors go first (N > 3*T for N >= 3*T), then those over the same parameters.
    """
    single = [cases[0][0] for cases in automaton.assumptions if len(cases) == 1 and len(cases[0]) == 1]
    same = [form for form in single if form.terms == condition.terms]
    alike = [form for form in single if form.read == condition.read]
    replaced = same or alike
    if not replaced:
        told = "; ".join(map(str, single)) or "none"
        raise BadInput(f"'{condition}' replaces no assumption of {automaton.name}; there are: {told}")
    kept = tuple(cases for cases in automaton.assumptions if not (len(cases) == 1 and set(cases[0]) & set(replaced)))
    return replace(automaton, assumptions=(*kept, ((condition,),)))


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

    >>> from assay.protocols.taco import load
    >>> comes_to_rest(load("broadcast")), comes_to_rest(load("rounds"))
    (True, False)
    """
    component = components(automaton)
    return all(rule.idle or component[rule.source] != component[rule.target] for rule in automaton.rules)


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

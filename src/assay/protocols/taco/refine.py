"""Does a node do what its automaton says? A test by simulation, not a proof.

The node runs on the kernel under random schedules with faulty nodes beside it. After every delivery each correct node
is looked at: where it is, seen as a location, and what it has added to the counters. Every change must be one rule of
the automaton, or a few in a row, whose guards hold at that moment. A step that no rule explains is returned; that none
was found says only that these schedules showed none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from assay.protocols.automata.automaton import Automaton, Configuration
from assay.protocols.interface import Node, NodeId
from assay.protocols.kernel.asynchronous import Asynchronous, Random
from assay.protocols.kernel.world import World

Look = Callable[[NodeId, Node], tuple[str, Mapping[str, int]]]
"""A node seen from outside: its location, and what it has added to each shared variable so far."""
LONGEST_STEP = 4  # rules that one delivery may take, since a node hears its own messages at once


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A step of a node that is no rule of the automaton."""

    seed: int
    delivery: int
    node: NodeId
    before: str
    after: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, delivery {self.delivery}: node {self.node} goes from {self.before} to {self.after},"
            " and no rules of the automaton do that here"
        )


@dataclass(frozen=True, slots=True)
class Refinement:
    """What the schedules showed."""

    schedules: int
    steps: int  # changes of a node that rules explained
    rules: frozenset[str]  # that were needed
    unexplained: Unexplained | None


def refine(
    world: Callable[[int], World], automaton: Automaton, parameters: Mapping[str, int], look: Look, *,
    schedules: int = 100, limit: int = 10_000,
) -> Refinement:  # fmt: skip
    """Run `world(seed)` under that many random schedules and explain every step; stops at the first it cannot."""
    steps, used = 0, set[str]()
    for seed in range(schedules):
        run = Asynchronous(world(seed), metered=False)
        scheduler = Random(seed)
        now = _seen(run, automaton, parameters, look)
        run.begin()
        while True:
            later = _seen(run, automaton, parameters, look)
            explained = _explain(automaton, now, later)
            if isinstance(explained, NodeId):
                before, after = now[0][explained], later[0][explained]
                return Refinement(
                    seed + 1, steps, frozenset(used), Unexplained(seed, run.steps, explained, before, after)
                )
            steps, now = steps + bool(explained), later
            used |= set(explained)
            if not run.pending or run.steps >= limit:
                break
            run.deliver(scheduler.pick(run.pending, run))
    return Refinement(schedules, steps, frozenset(used), None)


Seen = tuple[dict[NodeId, str], dict[NodeId, Mapping[str, int]], Configuration]


def _seen(run: Asynchronous, automaton: Automaton, parameters: Mapping[str, int], look: Look) -> Seen:
    places: dict[NodeId, str] = {}
    added: dict[NodeId, Mapping[str, int]] = {}
    for node in run.outcome.correct:
        places[node], added[node] = look(node, run.nodes[node])
    where = list(places.values())
    counts = {name: where.count(name) for name in automaton.locations}
    shared = {name: sum(own.get(name, 0) for own in added.values()) for name in automaton.shared}
    return places, added, Configuration({**parameters, **counts, **shared})


def _explain(automaton: Automaton, before: Seen, after: Seen) -> list[str] | NodeId:
    """The rules that lead from one sight to the next, or the first node for which there are none."""
    explained: list[str] = []
    now = before[2]
    for node, place in before[0].items():
        if place == after[0][node] and before[1][node] == after[1][node]:
            continue
        gained = {name: after[1][node].get(name, 0) - before[1][node].get(name, 0) for name in automaton.shared}
        found = _chain(automaton, now, place, after[0][node], gained, LONGEST_STEP)
        if found is None:
            return node
        names, now = found
        explained += names
    return explained


def _chain(
    automaton: Automaton, now: Configuration, place: str, goal: str, gained: Mapping[str, int], left: int
) -> tuple[list[str], Configuration] | None:
    """Rules from a location to another that add just this much, each enabled when its turn comes."""
    if place == goal and not any(gained.values()):
        return [], now
    if left == 0:
        return None
    for rule in automaton.rules:
        if rule.source != place or rule.idle or not now.enabled(rule):
            continue
        owed = {name: more - dict(rule.update).get(name, 0) for name, more in gained.items()}
        rest = _chain(automaton, now.after(rule), rule.target, goal, owed, left - 1)
        if rest is not None:
            return [rule.name, *rest[0]], rest[1]
    return None

"""All schedules of a small world, one by one: no reduction, no cleverness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.protocols.interface import Message, NodeId
from assay.protocols.kernel.asynchronous import Asynchronous
from assay.protocols.kernel.world import World

Decided = frozenset[tuple[NodeId, Any, Any]]


def reachable(world: World, injected: Sequence[tuple[NodeId, NodeId, Message]] = ()) -> set[Decided]:
    """Every set of decisions (node, slot, value) that some prefix of some schedule leads to."""
    run = Asynchronous(world, metered=False)
    run.begin()
    for event in injected:
        run.inject(*event)
    found: set[Decided] = set()
    seen: set[str] = set()
    stack = [run.save()]
    while stack:
        saved = stack.pop()
        run.load(saved)
        decided = frozenset((entry.node, entry.slot, entry.value) for entry in run.outcome.log)
        pending = sorted(event.identity for event in run.pending)
        state = repr(([vars(node) for node in run.nodes], pending, sorted(decided)))
        if state in seen:
            continue
        seen.add(state)
        found.add(decided)
        for place in range(len(run.pending)):
            run.load(saved)
            run.deliver(place)
            stack.append(run.save())
    return found

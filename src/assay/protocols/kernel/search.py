"""Adversarial schedules by the thousand: many seeds, several schedulers, until a judge objects.

>>> from assay.protocols.faults.two_faced import twins
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.bracha import Bracha
>>> def two_liars(seed):
...     return twins(World(n=4, f=1, node=Bracha, seed=seed), {0: ("a", "b"), 1: (None, None)}, half={2})
>>> found = search(two_liars, lambda world, outcome: "split" if outcome.conflicts else None, schedules=100)
>>> print(found.trace)
step  from  to  message
   1     0   2  ('ready', 'b')
   2     1   2  ('ready', 'b')
   3     0   3  ('ready', 'a')
   4     1   3  ('ready', 'a')
split
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.protocols.kernel.asynchronous import DelayVictim, Fifo, QuorumStarver, Random, Scheduler, SplitBrain
from assay.protocols.kernel.explore import Judge
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.trace import Trace, byzantine, happened, shrink
from assay.sim.random import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World


@dataclass(frozen=True)
class Searched:
    """How far the search came, and what it found."""

    schedules: int
    deliveries: int
    finished: int
    """Runs that came to their end (quiet, or `until`) before the limit."""
    decided: int
    """Runs in which a node that is not Byzantine put something out; in the others there was little to judge."""
    seconds: float
    trace: Trace | None = None
    """The first violation, shrunk."""
    seed: int = -1
    """Of the world in which it happens."""
    length: int = 0
    """Deliveries before shrinking."""


def scheduler(world: World, seed: int) -> Scheduler:
    """One of the built-in schedulers, by the seed, with victims and halves drawn at random."""
    rng = stream(seed, "search")
    total = world.n + len(world.clients)
    chosen = frozenset(rng.permutation(total)[: int(rng.integers(1, max(2, total)))].tolist())
    match seed % 6:
        case 0 | 1:
            return Random(seed, timers=float(10.0 ** rng.uniform(-3, 0)))
        case 2:
            return DelayVictim(sorted(chosen)[:1], seed)
        case 3:
            return SplitBrain(chosen, seed)
        case 4:
            return QuorumStarver(seed)
    return Fifo() if rng.random() < 0.1 else DelayVictim(chosen, seed)


def search(
    make: Callable[[int], World], judge: Judge, schedules: int, *, first: int = 0, limit: int = 2_000,
    until: Callable[[Outcome], bool] | None = None, seconds: float = 3600.0,
) -> Searched:  # fmt: skip
    """Run `make(seed)` under `scheduler` for so many seeds; stop at the first run that the judge objects to."""
    begun = time.perf_counter()
    deliveries = finished = decided = 0
    for seed in range(first, first + schedules):
        world = make(seed)
        outcome = world.run("async", scheduler=scheduler(world, seed), until=until, limit=limit, metered=False)
        deliveries += outcome.meter.deliveries
        finished += outcome.stopped != "limit"
        liars = byzantine(world)
        decided += any(entry.node not in liars for entry in outcome.log)
        done = seed + 1 - first
        if judge(world, outcome) is not None:
            again = world.run(
                "async", scheduler=scheduler(world, seed), until=until, limit=limit, metered=False, traced=True
            )
            events = happened(world, again)
            trace = shrink(world, judge, events)
            return Searched(done, deliveries, finished, decided, time.perf_counter() - begun, trace, seed, len(events))
        if time.perf_counter() - begun > seconds:
            break
    return Searched(done, deliveries, finished, decided, time.perf_counter() - begun)

"""The search for violations in synchronous rounds: no schedule, only what the liars say, to whom and when.

>>> from assay.protocols.interface import Fault
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.signed_broadcast import SignedBroadcast
>>> world = World(n=3, f=0, node=SignedBroadcast, inputs=["a"], faults={0: Fault()})
>>> said = lies(world, world.run("rounds", traced=True))
>>> [(round, src, dst, msg[:2]) for round, src, dst, msg in said]
[(0, 0, 1, ('chain', 'a')), (0, 0, 2, ('chain', 'a'))]
>>> recite(world, said[:1]).decided()  # the sender speaks to one node only, and f = 0 was too hopeful
{1: 'a', 2: None}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag
from assay.protocols.kernel.explore import Judge
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.trace import Trace, byzantine, delta

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

Lie = tuple[int, NodeId, NodeId, Message]
"""In which round, who, to whom, what."""


class Script(Node):
    """Says its lines in their rounds, and listens to nobody."""

    def __init__(self, lines: Sequence[Lie]) -> None:
        self.lines = tuple(lines)

    def start(self, ctx: Ctx) -> None:
        """Lines of round 0 at once, the others later."""
        self.timeout(ctx, 0)
        for round in sorted({line[0] for line in self.lines if line[0] > 0}):
            ctx.timer(round, round)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """It is this round's turn."""
        for round, _, dst, msg in self.lines:
            if round == tag:
                ctx.send(dst, msg)


def lies(world: World, outcome: Outcome) -> tuple[Lie, ...]:
    """What Byzantine nodes said to the others in a traced run; each message takes one round."""
    liars = byzantine(world)
    return tuple(
        (int(arrived) - 1, src, dst, msg) for arrived, src, dst, msg in outcome.trace
        if src in liars and dst not in liars
    )  # fmt: skip


def recite(world: World, said: Sequence[Lie]) -> Outcome:
    """The run in which Byzantine nodes say exactly this."""
    liars = byzantine(world)

    def make(node: NodeId) -> Node:
        return Script([lie for lie in said if lie[1] == node]) if node in liars else world.make(node)

    kept = {node: fault for node, fault in world.faults.items() if node >= world.n}
    return replace(world, node=make, faults={**kept, **{node: Fault() for node in liars}}).run("rounds", metered=False)


@dataclass(frozen=True)
class Searched:
    """How far the search came, and what it found."""

    runs: int
    seconds: float
    said: tuple[Lie, ...] | None = None
    """Lies that lead to the first violation, of which none can be left out."""
    why: str = ""
    seed: int = -1

    def __str__(self) -> str:
        """A table of the lies."""
        rows = tuple((src, dst, (f"round {round}", *msg)) for round, src, dst, msg in self.said or ())
        return str(Trace(rows, self.why))


def search(make: Callable[[int], World], judge: Judge, runs: int, *, first: int = 0) -> Searched:
    """Run `make(seed)` in rounds for so many seeds, until the judge objects; then leave out what is not needed."""
    begun = time.perf_counter()
    for seed in range(first, first + runs):
        world = make(seed)
        outcome = world.run("rounds", metered=False, traced=True)
        if judge(world, outcome) is not None:
            said, why = _shrink(world, judge, lies(world, outcome))
            return Searched(seed + 1 - first, time.perf_counter() - begun, said, why, seed)
    return Searched(runs, time.perf_counter() - begun)


def _shrink(world: World, judge: Judge, said: tuple[Lie, ...]) -> tuple[tuple[Lie, ...], str]:
    kept, why = said, ""

    def wrong(part: Sequence[Lie]) -> bool:
        nonlocal kept, why
        objection = judge(world, recite(world, part))
        if objection is not None:
            kept, why = tuple(part), objection
        return objection is not None

    if not wrong(said):
        raise ValueError("the judge has no objection when the lies are repeated; is a node's randomness its input?")
    delta(wrong, lambda: kept)
    return kept, why

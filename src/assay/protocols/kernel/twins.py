"""Twins: a Byzantine node as two copies of the correct code that share its name and its keys.

Each copy talks to its own part of the world and does not know of the other; copies of different twin nodes on one side
talk to each other. Out of nothing but correct code this makes equivocation, double votes and amnesia, in any protocol
(Bano et al., Twins: BFT systems made robust, OPODIS 2021).

>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.bracha import Bracha
>>> world = twins(World(n=4, f=1, node=Bracha, inputs=["a"]), {0: ("a", "b")}, half={2, 3})
>>> world.run("timed").decided()  # 2, 3 and the second copy are a quorum; 1 follows
{1: 'b', 2: 'b', 3: 'b'}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag, Through

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

TWIN = "twin"


class _Side(Through):
    """What one copy sees: only its half, and its fellows' copies of the same side."""

    __slots__ = ("side", "twin")

    def __init__(self, under: Ctx, twin: Twin, side: int) -> None:
        super().__init__(under)
        self.twin, self.side = twin, side

    @property
    def input(self) -> Any:
        return self.twin.inputs[self.side]

    def send(self, to: NodeId, msg: Message) -> None:
        if to in self.twin.fellows:
            self.under.send(to, (TWIN, self.side, msg))
        elif (to in self.twin.half) == bool(self.side):
            self.under.send(to, msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        for other in (*self.under.peers, self.under.id) if to is None else to:
            self.send(other, msg)

    def timer(self, delay: float, tag: Tag) -> None:
        self.under.timer(delay, (TWIN, self.side, tag))

    def decide(self, value: Any, slot: Any = 0) -> None:
        """Nobody asks what it decides."""


class Twin(Node):
    """Two copies of a node: the second talks to `half`, the first to the others."""

    def __init__(
        self, copies: tuple[Node, Node], inputs: tuple[Any, Any], half: Collection[NodeId], fellows: Collection[NodeId]
    ) -> None:
        self.copies, self.inputs = copies, inputs
        self.half, self.fellows = frozenset(half), frozenset(fellows)

    def start(self, ctx: Ctx) -> None:
        """Both start."""
        for side, copy in enumerate(self.copies):
            copy.start(_Side(ctx, self, side))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The copy of the sender's side hears it."""
        if src in self.fellows:
            _, side, msg = msg
        else:
            side = int(src in self.half)
        self.copies[side].recv(_Side(ctx, self, side), src, msg)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The copy that set it."""
        _, side, inner = tag
        self.copies[side].timeout(_Side(ctx, self, side), inner)


def twins(world: World, inputs: Mapping[NodeId, tuple[Any, Any]], half: Collection[NodeId]) -> World:
    """The world with twins in place of these nodes; each copy has its own input. Clients are in a half or not too."""
    fellows = frozenset(inputs)

    def make(node: NodeId) -> Node:
        if node not in fellows:
            return world.make(node)
        return Twin((world.make(node), world.make(node)), inputs[node], half, fellows)

    kept = {node: fault for node, fault in world.faults.items() if node >= world.n}
    return replace(world, node=make, faults={**kept, **{node: Fault() for node in fellows}})

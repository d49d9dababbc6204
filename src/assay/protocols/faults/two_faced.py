"""The two-faced node: copies of the correct code under one name and one key, each with a part of the world to itself.

Each copy talks to its own audience and does not know of the others; copies of different two-faced nodes on one side
talk to each other. Out of nothing but correct code this makes equivocation, double votes and amnesia, in any protocol
(Bano et al., Twins: BFT systems made robust, OPODIS 2021).

>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.broadcast import Bracha
>>> world = twins(World(n=4, f=1, node=Bracha, inputs=["a"]), {0: ("a", "b")}, half={2, 3})
>>> world.run("timed").decided()  # 2, 3 and the second copy are a quorum; 1 follows
{1: 'b', 2: 'b', 3: 'b'}
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag, Through

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

FACE = "face"
Face = tuple[Any, Collection[NodeId], Collection[NodeId]]
"""The input of one copy, whom it talks to, and whom it never hears."""


class _Behind(Through):
    """What one copy sees: an input of its own, its audience, and the fellows' copies of the same side."""

    __slots__ = ("node", "place")

    def __init__(self, under: Ctx, node: TwoFaced, place: int) -> None:
        super().__init__(under)
        self.node, self.place = node, place

    @property
    def input(self) -> Any:
        return self.node.faces[self.place][0]

    def send(self, to: NodeId, msg: Message) -> None:
        if to in self.node.fellows:
            self.under.send(to, (FACE, self.place, msg))
        elif to in self.node.faces[self.place][1]:
            self.under.send(to, msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        for other in (*self.under.peers, self.under.id) if to is None else to:
            self.send(other, msg)

    def timer(self, delay: float, tag: Tag) -> None:
        self.under.timer(delay, (FACE, self.place, tag))

    def decide(self, value: Any, slot: Any = 0) -> None:
        """Nobody asks what it decides."""


class TwoFaced(Node):
    """Plays an honest node towards each audience. `fellows` are the other two-faced nodes, and this one, if they plot.

    Without fellows it is on its own, and takes its name for granted: what it forges, it forges in its own name.
    """

    def __init__(self, honest: Node, faces: Iterable[Face], fellows: Collection[NodeId] = ()) -> None:
        self.faces = [(given, frozenset(audience), frozenset(deaf)) for given, audience, deaf in faces]
        self.copies = [copy.deepcopy(honest) for _ in self.faces]
        self.fellows = frozenset(fellows)

    def _heard(self, place: int, src: NodeId, msg: Message) -> Message | None:
        """What this copy hears of it: fellows say which side they speak to."""
        if src in self.fellows:
            return msg[2] if msg[1] == place else None
        return None if src in self.faces[place][2] else msg

    def start(self, ctx: Ctx) -> None:
        """All copies start."""
        for place, node in enumerate(self.copies):
            node.start(_Behind(ctx, self, place))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """All copies that are to hear it do."""
        for place, node in enumerate(self.copies):
            heard = self._heard(place, src, msg)
            if heard is not None:
                node.recv(_Behind(ctx, self, place), src, heard)

    def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
        """The same, a round at once."""
        for place, node in enumerate(self.copies):
            heard = [(src, self._heard(place, src, msg)) for src, msg in inbox]
            node.tick(_Behind(ctx, self, place), [(src, msg) for src, msg in heard if msg is not None])

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The copy that set it."""
        _, place, inner = tag
        self.copies[place].timeout(_Behind(ctx, self, place), inner)


def twins(world: World, inputs: Mapping[NodeId, tuple[Any, Any]], half: Collection[NodeId]) -> World:
    """The world with two-faced nodes in these places: the second copy, with the second input, has `half` to itself.

    Clients are in a half or not too.
    """
    everybody = range(world.n + len(world.clients))
    sides = [node for node in everybody if node not in half], list(half)

    def make(node: NodeId) -> Node:
        made = world.make(node)
        if node not in inputs:
            return made
        return TwoFaced(made, zip(inputs[node], sides, sides[::-1], strict=True), inputs)

    kept = {node: fault for node, fault in world.faults.items() if node >= world.n}
    return replace(world, node=make, faults={**kept, **{node: Fault() for node in inputs}})

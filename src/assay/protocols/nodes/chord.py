"""Chord: nodes on a ring, a key belongs to the first node at or after it, and fingers halve the way that is left.

Each node knows its predecessor, its next successors, and for each power of two the node that follows it at that
distance. Every period it asks its successor for the successor's predecessor and successors (stabilize), tells it of
itself (notify), looks one finger up anew (fix fingers), and asks whether the predecessor is alive. A newcomer takes its
successor's fingers as a first guess, and what lies between the two as its records.

When stabilizing shows a nearer successor it is done again at once, and a node that gets a new predecessor tells the old
one: otherwise many nodes that join in one gap would take a period each to line up. Once a round of fingers a node has
itself looked up by others: if they find somebody else at its place, two rings have interleaved, which stabilizing alone
does not notice (Liben-Nowell, Balakrishnan and Karger, PODC 2002).

Stoica, Morris, Karger, Kaashoek and Balakrishnan, Chord: A Scalable Peer-to-peer Lookup Service for Internet
Applications, SIGCOMM 2001.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.overlay import Agent, Load, Settings
>>> skill = {3: "translate"}
>>> agents = [Agent(f"did:web:{node}", (skill.get(node, "plan"),), f"10.0.0.{node}:80") for node in range(16)]
>>> load = Load(("translate",), (1.0,), rate=0.1, begin=60.0, end=80.0)
>>> run = World(n=16, node=partial(Chord, Settings(load=load)), inputs=agents).run("timed", limit=90.0)
>>> {operation.result[1] for operation in run.operations}
{('did:web:3',)}
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId
from assay.protocols.nodes.overlay import BITS, KEY_BYTES, MASK, Routed, Settings, Then, ident


class Chord(Routed):
    """A node of a Chord ring."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Routed.shapes,
        "state": (str, int), "ring": (str, int, int, tuple), "notify": (str,), "nearer": (str, int),
        "ping": (str, int), "pong": (str, int), "fingers": (str, int), "hints": (str, int, tuple),
    }  # fmt: skip

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.predecessor: NodeId | None = None
        self.successors: list[NodeId] = []
        self.fingers: dict[int, NodeId] = {}
        self.finger = 0  # the one fixed last
        self._index()

    def perfect(self, node: NodeId, members: Sequence[NodeId]) -> Chord:
        """The tables that a node would have if it knew all members: what maintenance strives for."""
        self.me = ident(node)
        others = sorted((other for other in members if other != node), key=lambda other: self.ahead(ident(other)))
        self.joined = True
        self.successors = others[: self.settings.replicas]
        self.predecessor = others[-1] if others else None
        offsets = [self.ahead(ident(other)) for other in others]
        self._guess(others, offsets)
        self._index()
        return self

    def ahead(self, place: int) -> int:
        """How far a place is from here, clockwise."""
        return (place - self.me) & MASK

    # Routing

    def _index(self) -> None:
        """The tables, sorted by distance, for `next_hop`."""
        me = self.me
        known = {(ident(node) - me) & MASK: node for node in (*self.fingers.values(), *self.successors)}
        known.pop(0, None)
        self.offsets = sorted(known)
        self.contacts = [known[offset] for offset in self.offsets]
        self.nearest = (ident(self.successors[0]) - me) & MASK if self.successors else 0
        self.span = (me - ident(self.predecessor)) & MASK if self.predecessor is not None else 0

    def next_hop(self, key: int, final: bool) -> tuple[NodeId, bool]:
        """The successor, if the key lies before it; else the last contact before the key."""
        me = self.me
        if (me - key) & MASK < self.span or not self.successors:
            return -1, True
        if final:  # the sender took this node for the root; it does not know of the predecessor yet
            return (-1, True) if self.predecessor is None else (self.predecessor, True)
        ahead = (key - me) & MASK
        if ahead <= self.nearest:
            return (self.successors[0], True) if ahead else (-1, True)
        return self.contacts[bisect_left(self.offsets, ahead) - 1], False

    def neighbours(self) -> list[NodeId]:
        """The next successors."""
        return self.successors[: self.settings.replicas - 1]

    def drop(self, ctx: Ctx, node: NodeId) -> None:
        """Forget a node."""
        if node in self.successors:
            self.successors.remove(node)
        if node == self.predecessor:
            self.predecessor = None
        for finger in [finger for finger, known in self.fingers.items() if known == node]:
            del self.fingers[finger]
        if not self.successors and self.contacts:
            self.successors = [other for other in self.contacts if other != node][:1]
        self._index()

    # Joining

    def resolved(self, ctx: Ctx, then: Then, hops: int | None, holder: NodeId, records: tuple[Any, ...]) -> None:
        """A place on the ring was found, or a finger."""
        if then[0] == "enter":
            if hops is not None and not self.joined and holder != ctx.id:
                self.successors = [holder]
                self._index()
                self.call(ctx, holder, "fingers", (), ("fingers",))
                self.call(ctx, holder, "pull", (), ("pull",))
                self.call(ctx, holder, "state", (), ("stabilize",))
                self.enter(ctx)
        elif then[0] == "place":
            if hops is not None:
                self.on_nearer(ctx, holder, ("nearer", holder))
        elif then[0] == "finger":
            if hops is not None and self.fingers.get(then[1]) != holder:
                self.fingers[then[1]] = holder
                self._index()
        else:
            super().resolved(ctx, then, hops, holder, records)

    def on_fingers(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A newcomer asks for a first guess."""
        _, number = msg
        ctx.send(src, ("hints", number, tuple(self.contacts)))

    def on_hints(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The successor's contacts serve as fingers until they are looked up."""
        _, number, known = msg
        if self.answered(src, number) is not None:
            offered = {self.ahead(ident(node)): node for node in (src, *self.named(ctx, known)) if node != ctx.id}
            offsets = sorted(offered)
            self._guess([offered[offset] for offset in offsets], offsets)
            self._index()

    def _guess(self, nodes: list[NodeId], offsets: list[int]) -> None:
        """Each finger is the first of these nodes at or after its place."""
        for finger in range(BITS):
            position = bisect_left(offsets, 1 << finger)
            if position < len(nodes) and (1 << finger) > offsets[0]:
                self.fingers[finger] = nodes[position]

    # Maintenance

    def maintain(self, ctx: Ctx) -> None:
        """Stabilize, fix one finger, check the predecessor."""
        if self.predecessor is not None:
            self.call(ctx, self.predecessor, "ping", (), ("ping",))
        if not self.successors:
            return
        self.call(ctx, self.successors[0], "state", (), ("stabilize",))
        self.finger -= 1
        if self.finger >= self.nearest.bit_length():
            key = ((self.me + (1 << self.finger)) & MASK).to_bytes(KEY_BYTES)
            self.resolve(ctx, "find", key, (), ("finger", self.finger), 0.0)
        else:
            self.finger = BITS
            self._locate(ctx)

    def _locate(self, ctx: Ctx) -> None:
        """Let others look for this node: they find it, or who they take for the node at its place."""
        key = self.me.to_bytes(KEY_BYTES)
        ticket = self._ticket(ctx, "find", key, (), ("place",), 0.0)
        self.call(ctx, self.successors[0], "find", (key, ctx.id, ticket, 1, False, ()), ("locate",))

    def on_state(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody takes this node for its successor."""
        _, number = msg
        if self.joined:
            before = -1 if self.predecessor is None else self.predecessor
            ctx.send(src, ("ring", number, before, tuple(self.successors)))

    def on_ring(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The successor's view: is there somebody between, and who comes next?"""
        _, number, before, after = msg
        if self.answered(src, number) is None or src not in self.successors[:1]:
            return
        line = [src, *(node for node in self.named(ctx, after) if node not in (ctx.id, src))]
        between = 0 <= before < ctx.n and 0 < self.ahead(ident(before)) < self.nearest
        if between:
            line.insert(0, before)
        line = list(dict.fromkeys(line))[: self.settings.replicas]
        if line != self.successors:
            self.successors = line
            self._index()
        if between:
            self.call(ctx, before, "state", (), ("stabilize",))
        else:
            ctx.send(src, ("notify",))

    def on_notify(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A node before this one speaks up; if it is nearer than the predecessor, it takes its place."""
        old = self.predecessor
        if old is not None and (self.me - ident(src)) & MASK >= self.span:
            if old != src:
                ctx.send(src, ("nearer", old))
            return
        self.predecessor = src
        if not self.successors:
            self.successors = [src]
        self._index()
        if old is not None:
            ctx.send(old, ("nearer", src))

    def on_nearer(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The successor found somebody between."""
        _, node = msg
        if 0 <= node < ctx.n and 0 < self.ahead(ident(node)) < self.nearest:
            self.call(ctx, node, "state", (), ("nearer", node))
            self.successors.insert(0, node)
            del self.successors[self.settings.replicas :]
            self._index()

    def on_pong(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The predecessor is alive."""
        _, number = msg
        self.answered(src, number)

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """A successor that died is followed by the next one, at once."""
        if then[0] in ("stabilize", "nearer") and self.successors:
            self.call(ctx, self.successors[0], "state", (), ("stabilize",))
        else:
            super().unanswered(ctx, to, then)

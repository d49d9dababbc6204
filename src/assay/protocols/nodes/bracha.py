"""Bracha's reliable broadcast: all correct nodes deliver the same message, or none does, whatever f < n/3 nodes do.

The sender sends; everybody echoes the first thing it hears from the sender; a quorum of echoes, or f + 1 who are
ready, makes one ready; 2f + 1 who are ready make one deliver. Two quorums of echoes share a correct node, which echoes
once: so no two correct nodes get ready for different messages first.

Bracha, Asynchronous Byzantine Agreement Protocols, Information and Computation 75, 1987.

>>> from assay.protocols.faults import Equivocate
>>> from assay.protocols.kernel.world import World
>>> lying = World(n=4, f=1, node=Bracha, inputs=["a"], faults={0: Equivocate(kinds=("send",))}, seed=5)
>>> len(set(lying.run("timed").decided().values())) <= 1
True
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId


class Bracha(Node):
    """One broadcast. The sender's input is what it sends; every node decides what it delivers."""

    def __init__(self, sender: NodeId = 0) -> None:
        self.sender = sender
        self.echoed = self.ready = self.delivered = False
        self.echoes: defaultdict[Any, set[NodeId]] = defaultdict(set)
        self.readies: defaultdict[Any, set[NodeId]] = defaultdict(set)

    def start(self, ctx: Ctx) -> None:
        """The sender speaks."""
        if ctx.id == self.sender and ctx.input is not None:
            ctx.broadcast(("send", ctx.input))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Echo once, get ready once, deliver once."""
        if len(msg) != 2:
            return
        kind, value = msg
        if kind == "send" and src == self.sender and not self.echoed:
            self.echoed = True
            ctx.broadcast(("echo", value))
        elif kind == "echo":
            self.echoes[value].add(src)
            if len(self.echoes[value]) > (ctx.n + ctx.f) // 2:
                self._get_ready(ctx, value)
        elif kind == "ready":
            self.readies[value].add(src)
            if len(self.readies[value]) > ctx.f:
                self._get_ready(ctx, value)
            if len(self.readies[value]) > 2 * ctx.f and not self.delivered:
                self.delivered = True
                ctx.decide(value)

    def _get_ready(self, ctx: Ctx, value: Any) -> None:
        if not self.ready:
            self.ready = True
            ctx.broadcast(("ready", value))

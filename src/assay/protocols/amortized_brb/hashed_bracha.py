"""Bracha's broadcast with the message sent once and only its digest echoed: n|m| + 2n²κ bits instead of 2n²|m|.

A node that is to deliver a digest whose message it never got asks those who echoed it; f + 1 of them are correct and
have it. The baseline of every broadcast that claims to send less.

>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=4, f=1, node=HashedBracha, inputs=[b"hello"]).run("timed")
>>> outcome.decided()
{0: b'hello', 1: b'hello', 2: b'hello', 3: b'hello'}
"""

from __future__ import annotations

from collections import defaultdict

from assay.protocols.amortized_brb.vouching import DIGEST, as_bytes, digest
from assay.protocols.interface import Ctx, Message, Node, NodeId


class HashedBracha(Node):
    """One broadcast of bytes. The sender's input is what it sends; every node decides what it delivers."""

    def __init__(self, sender: NodeId = 0) -> None:
        self.sender = sender
        self.echoed = self.ready = self.delivered = False
        self.bodies: dict[bytes, bytes] = {}
        self.echoes: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.readies: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.missing: bytes | None = None
        self.asked: set[NodeId] = set()
        self.served: set[NodeId] = set()

    def start(self, ctx: Ctx) -> None:
        """The sender speaks."""
        if ctx.id == self.sender and ctx.input is not None:
            ctx.broadcast(("send", as_bytes(ctx.input)))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Echo once, get ready once, deliver once."""
        if len(msg) != 2 or not isinstance(msg[1], bytes):
            return
        kind, value = msg
        if kind == "send" and src == self.sender and not self.echoed:
            self.echoed = True
            self._have(ctx, value)
            ctx.broadcast(("echo", digest(value)))
        elif kind == "body":
            self._have(ctx, value)
        elif len(value) != DIGEST:
            return
        elif kind == "echo":
            self.echoes[value].add(src)
            if len(self.echoes[value]) > (ctx.n + ctx.f) // 2:
                self._get_ready(ctx, value)
            if value == self.missing:
                self._ask(ctx)
        elif kind == "ready":
            self.readies[value].add(src)
            if len(self.readies[value]) > ctx.f:
                self._get_ready(ctx, value)
            self._deliver(ctx, value)
        elif kind == "want" and value in self.bodies and src not in self.served:
            self.served.add(src)
            ctx.send(src, ("body", self.bodies[value]))

    def _have(self, ctx: Ctx, body: bytes) -> None:
        name = digest(body)
        if name == self.missing or not self.bodies:
            self.bodies[name] = body
            self._deliver(ctx, name)

    def _get_ready(self, ctx: Ctx, value: bytes) -> None:
        if not self.ready:
            self.ready = True
            ctx.broadcast(("ready", value))

    def _deliver(self, ctx: Ctx, value: bytes) -> None:
        if self.delivered or len(self.readies[value]) <= 2 * ctx.f:
            return
        if value in self.bodies:
            self.delivered = True
            ctx.decide(self.bodies[value])
        elif self.missing is None:
            self.missing = value
            self._ask(ctx)

    def _ask(self, ctx: Ctx) -> None:
        """Ask everyone who echoed what is missing, f + 1 at most: one of them is correct and has it."""
        assert self.missing is not None
        for other in sorted(self.echoes[self.missing] - self.asked - {ctx.id}):
            if len(self.asked) <= ctx.f and not self.delivered:
                self.asked.add(other)
                ctx.send(other, ("want", self.missing))

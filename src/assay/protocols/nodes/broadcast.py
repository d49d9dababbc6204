"""Broadcasts that bear traitors: `Bracha` in asynchrony, `SignedBroadcast` in rounds.

Bracha's reliable broadcast: all correct nodes deliver the same message, or none does, whatever f < n/3 nodes do.

The sender sends; everybody echoes the first thing it hears from the sender; a quorum of echoes, or f + 1 who are
ready, makes one ready; 2f + 1 who are ready make one deliver. Two quorums of echoes share a correct node, which echoes
once: so no two correct nodes get ready for different messages first.

Bracha, Asynchronous Byzantine Agreement Protocols, Information and Computation 75, 1987.

>>> from assay.protocols.faults import Equivocate
>>> from assay.protocols.kernel.world import World
>>> lying = World(n=4, f=1, node=Bracha, inputs=["a"], faults={0: Equivocate(kinds=("send",))}, seed=5)
>>> len(set(lying.run("timed").decided().values())) <= 1
True

Signed broadcast in synchronous rounds (Dolev and Strong): agreement whatever f < n nodes do, in f + 1 rounds.

A value travels with a chain of signatures, the sender's first. A node accepts a value in round r only with r different
signatures, adds its own, and passes it on. A value that comes in round f + 1 carries f + 1 signatures, one of them by a
correct node, which has shown it to everybody. In the end a node delivers the one value it has accepted, or `NOTHING`
if there is none or more than one.

Two accepted values are proof enough that the sender lies: further ones are not passed on.

Dolev, Strong, Authenticated algorithms for Byzantine agreement, SIAM Journal on Computing 12(4), 1983.

>>> outcome = World(n=5, f=3, node=SignedBroadcast, inputs=["hello"]).run("rounds")
>>> outcome.decided(), outcome.meter.rounds  # messages in four rounds; the fifth begins with the delivery
({0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello', 4: 'hello'}, 5)
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel import wire


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


NOTHING = None
"""What is delivered where the sender was caught, or never heard."""
Chain = tuple[tuple[NodeId, bytes], ...]


class SignedBroadcast(Node):
    """One broadcast, in the mode "rounds" only. The sender's input is what it sends; every node decides."""

    def __init__(self, sender: NodeId = 0) -> None:
        self.sender = sender
        self.accepted: list[Any] = []

    def start(self, ctx: Ctx) -> None:
        """The sender signs and speaks; everybody waits for the last round."""
        ctx.timer(ctx.f + 2, "last")
        if ctx.id == self.sender and ctx.input is not None:
            self.accepted.append(ctx.input)
            ctx.broadcast(("chain", ctx.input, self._signed(ctx, ctx.input, ())), to=ctx.peers)

    def _signed(self, ctx: Ctx, value: Any, chain: Chain) -> Chain:
        return (*chain, (ctx.id, ctx.sign(wire.encode((self.sender, value, chain)))))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A value with enough signatures is accepted and passed on, the first two of them."""
        match msg:
            case ("chain", value, tuple(chain)) if len(self.accepted) < 2 and value not in self.accepted:
                if ctx.now <= len(chain) <= ctx.n and ctx.now <= ctx.f + 1 and self._genuine(ctx, value, chain):
                    self.accepted.append(value)
                    if ctx.now <= ctx.f:
                        signers = {who for who, _ in chain}
                        others = [peer for peer in ctx.peers if peer not in signers]
                        ctx.broadcast(("chain", value, self._signed(ctx, value, chain)), to=others)

    def _genuine(self, ctx: Ctx, value: Any, chain: tuple[Any, ...]) -> bool:
        """Different signers, the sender first, each over all that came before it, this node not among them."""
        signers = []
        for place, link in enumerate(chain):
            match link:
                case (int(who), bytes(mark)) if 0 <= who < ctx.n and who != ctx.id:
                    if not ctx.verify(who, wire.encode((self.sender, value, chain[:place])), mark):
                        return False
                    signers.append(who)
                case _:
                    return False
        return signers[:1] == [self.sender] and len(set(signers)) == len(signers)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The last round is over: deliver."""
        ctx.decide(self.accepted[0] if len(self.accepted) == 1 else NOTHING)

"""Signed broadcast in synchronous rounds (Dolev and Strong): agreement whatever f < n nodes do, in f + 1 rounds.

A value travels with a chain of signatures, the sender's first. A node accepts a value in round r only with r different
signatures, adds its own, and passes it on. A value that comes in round f + 1 carries f + 1 signatures, one of them by a
correct node, which has shown it to everybody. In the end a node delivers the one value it has accepted, or `NOTHING`
if there is none or more than one.

Two accepted values are proof enough that the sender lies: further ones are not passed on.

Dolev, Strong, Authenticated algorithms for Byzantine agreement, SIAM Journal on Computing 12(4), 1983.

>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=5, f=3, node=SignedBroadcast, inputs=["hello"]).run("rounds")
>>> outcome.decided(), outcome.meter.rounds  # messages in four rounds; the fifth begins with the delivery
({0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello', 4: 'hello'}, 5)
"""

from __future__ import annotations

from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel import wire

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

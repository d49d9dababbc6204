"""Coins for randomised agreement, as sub-protocols: each decides 0 or 1 once.

A coin is made from the number of the round: ``partial(IdealCoin, seed)`` is one, and any node that
decides a bit another. The node that owns it starts it only when the protocol has come to the toss.
"""

from __future__ import annotations

from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.sim.random import stream


class IdealCoin(Node):
    """A common coin as an ideal functionality: one bit for all, revealed to a node when f + 1 nodes have asked.

    It stands for a threshold signature, with the same messages (a share from each node) and none of the cryptography:
    the bit is a function of the seed and the round. Nothing in a simulation looks at the seed before the coin does,
    but nothing could stop a real adversary from it.

    >>> from functools import partial
    >>> from assay.protocols.kernel.world import World
    >>> len(set(World(n=4, f=1, node=partial(IdealCoin, 3, 1)).run("timed").decided().values()))
    1
    """

    def __init__(self, seed: int, round: int) -> None:
        self.seed, self.round = seed, round
        self.asked: set[NodeId] = set()
        self.revealed = False

    def start(self, ctx: Ctx) -> None:
        """Ask."""
        ctx.broadcast(("ask",))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody asks: more than f of them include a correct node."""
        if msg == ("ask",):
            self.asked.add(src)
            if len(self.asked) > ctx.f and not self.revealed:
                self.revealed = True
                ctx.decide(int(stream(self.seed, "coin", self.round).integers(2)))

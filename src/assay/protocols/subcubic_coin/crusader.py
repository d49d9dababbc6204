"""Crusader agreement on a bit: correct nodes that all bring the same bit keep it, and no two end with different bits.

Some may end without one (None). A bit that f + 1 nodes bring is relayed, one that 2f + 1 bring is a candidate, so a
candidate was brought by a correct node; every node names its first candidate, and ends with a bit if n - f nodes name
nothing else. Two such sets of n - f share a correct node, which names one bit only. 2n² to 3n² messages, f < n/3.

>>> from assay.protocols.kernel.world import World
>>> set(World(n=4, f=1, node=Crusader, inputs=[1, 1, 1, 1]).run("async").decided().values())
{1}
>>> ends = set(World(n=4, f=1, node=Crusader, inputs=[1, 0, 1, 0], seed=2).run("async").decided().values())
>>> not {0, 1} <= ends
True

The first half is the binary-value broadcast of Mostefaoui, Moumen and Raynal, PODC 2014.
"""

from __future__ import annotations

from assay.protocols.interface import Ctx, Message, Node, NodeId


class Crusader(Node):
    """One agreement. The input is 0 or 1; a parent protocol may call `propose` instead."""

    def __init__(self) -> None:
        self.brought: tuple[set[NodeId], set[NodeId]] = (set(), set())
        self.relayed = [False, False]
        self.candidates: list[int] = []
        self.named: dict[NodeId, int] = {}
        self.ended = False

    def start(self, ctx: Ctx) -> None:
        """Propose the input."""
        if ctx.input in (0, 1):
            self.propose(ctx, int(ctx.input))

    def propose(self, ctx: Ctx, bit: int) -> None:
        """Bring this bit."""
        if not self.relayed[bit]:
            self.relayed[bit] = True
            ctx.broadcast(("bring", bit))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Count, relay, name a candidate, end."""
        match msg:
            case ("bring", (0 | 1) as bit):
                self.brought[bit].add(src)
                if len(self.brought[bit]) > ctx.f:
                    self.propose(ctx, int(bit))
                if len(self.brought[bit]) > 2 * ctx.f and bit not in self.candidates:
                    self.candidates.append(int(bit))
                    if len(self.candidates) == 1:
                        ctx.broadcast(("name", int(bit)))
            case ("name", (0 | 1) as bit):
                self.named.setdefault(src, int(bit))
            case _:
                return
        votes = [bit for bit in self.named.values() if bit in self.candidates]
        if not self.ended and len(votes) >= ctx.n - ctx.f:
            self.ended = True
            ctx.decide(votes[0] if len(set(votes)) == 1 else None)

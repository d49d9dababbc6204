"""Agreement on a bit without setup: Ben-Or's, and crusader agreement, which may end without one.

Ben-Or's agreement on a bit: no setup, no common coin, f < n/5; fast by luck only.

A round has two steps. *report*: nodes send their bits. *propose*: a node that got more than (n + f)/2 equal reports
proposes that bit, others propose nothing. f + 1 equal proposals make it the node's bit, more than (n + f)/2 decide it;
a node that saw fewer tosses a coin of its own. Two correct nodes never propose different bits in one round, and what
one decides all hold from then on. If a scheduler keeps the reports balanced, the coins must happen to agree: that takes
exponentially many rounds.

Ben-Or, Another Advantage of Free Choice, PODC 1983.

>>> from assay.protocols.kernel.world import World
>>> len(set(World(n=6, f=1, node=BenOr, inputs=[0, 1, 0, 1, 0, 1]).run("async").decided().values()))
1

Crusader agreement on a bit: correct nodes that all bring the same bit keep it, and no two end with different bits.

Some may end without one (None). A bit that f + 1 nodes bring is relayed, one that 2f + 1 bring is a candidate, so a
candidate was brought by a correct node; every node names its first candidate, and ends with a bit if n - f nodes name
nothing else. Two such sets of n - f share a correct node, which names one bit only. 2n² to 3n² messages, f < n/3.

>>> set(World(n=4, f=1, node=Crusader, inputs=[1, 1, 1, 1]).run("async").decided().values())
{1}
>>> ends = set(World(n=4, f=1, node=Crusader, inputs=[1, 0, 1, 0], seed=2).run("async").decided().values())
>>> not {0, 1} <= ends
True

The first half is the binary-value broadcast of Mostefaoui, Moumen and Raynal, PODC 2014.
"""

from __future__ import annotations

from assay.protocols.interface import Ctx, Message, Node, NodeId

NOTHING = 2
AHEAD = 100_000  # rounds that a node keeps messages for


class BenOr(Node):
    """One agreement. The input is 0 or 1; a parent protocol may call `propose` instead."""

    def __init__(self) -> None:
        self.round = 0
        self.bit = -1
        self.decision = -1
        self.last = -1
        """The round after which a node that has decided is not needed any more."""
        self.proposed = False
        self.reports: dict[int, dict[NodeId, int]] = {}
        self.proposals: dict[int, dict[NodeId, int]] = {}

    def start(self, ctx: Ctx) -> None:
        """Propose the input."""
        if ctx.input in (0, 1):
            self.propose(ctx, int(ctx.input))

    def propose(self, ctx: Ctx, bit: int) -> None:
        """Begin with this bit."""
        if self.round == 0:
            self.bit = bit
            self._enter(ctx)

    def _enter(self, ctx: Ctx) -> None:
        self.round += 1
        self.proposed = False
        ctx.broadcast(("report", self.round, self.bit))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Count, and go on with n - f messages of a step."""
        match msg:
            case ("report", int(number), (0 | 1) as bit) if self.round <= number <= self.round + AHEAD:
                self.reports.setdefault(number, {}).setdefault(src, int(bit))
            case ("propose", int(number), (0 | 1 | 2) as bit) if self.round <= number <= self.round + AHEAD:
                self.proposals.setdefault(number, {}).setdefault(src, int(bit))
            case _:
                return
        while self.round and self._step(ctx):
            pass

    def _step(self, ctx: Ctx) -> bool:
        """One step, if enough have come in."""
        if 0 <= self.last < self.round:
            return False
        quorum = (ctx.n + ctx.f) // 2
        if not self.proposed:
            if len(self.reports.get(self.round, ())) < ctx.n - ctx.f:
                return False
            self.proposed = True
            reports = list(self.reports[self.round].values())
            found = next((bit for bit in (0, 1) if reports.count(bit) > quorum), NOTHING)
            ctx.broadcast(("propose", self.round, found))
            return True
        if len(self.proposals.get(self.round, ())) < ctx.n - ctx.f:
            return False
        self._conclude(ctx, list(self.proposals[self.round].values()), quorum)
        return True

    def _conclude(self, ctx: Ctx, proposals: list[int], quorum: int) -> None:
        bit = max((0, 1), key=proposals.count)
        if proposals.count(bit) > ctx.f:
            self.bit = bit
        else:
            self.bit = int(ctx.rng.integers(2))
        if proposals.count(bit) > quorum and self.decision < 0:
            self.decision, self.last = bit, self.round + 1
            ctx.decide(bit)
        self.reports.pop(self.round, None)
        self.proposals.pop(self.round, None)
        if self.last < 0 or self.round < self.last:
            self._enter(ctx)
        else:
            self.round += 1


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

"""A parasite: miners that keep their blocks back, mine on them together, and show them when they are ahead.

The miner inside is an honest one and does not know. While its coalition has hidden blocks, the fault does not let the
public ones through to it: all it sees is the hidden chain, so that is what it mines on. What it finds goes to the
members alone. Once the hidden chain is `lead` blocks higher than the public one, all of it is published, and the honest
miners, who follow their rule, drop their own last blocks. A coalition that falls behind keeps trying, as in the paper;
with `patience` it gives up once it is that many blocks behind.

Work is not forged: a member finds blocks as often as the miner inside does.

Nesterenko and Oglio, QUANTAS 2, arXiv:2605.08547. Eyal and Sirer, Majority Is Not Enough, FC 2014.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.chain import Miner, share
>>> members = range(8)
>>> world = World(n=12, node=partial(Miner, rate=0.01), faults=coalition(members, lead=3), seed=2)
>>> outcome = world.run("rounds", limit=4000)
>>> share(outcome, members) > 0.8  # they have 2/3 of the power
True
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from assay.protocols.interface import Ctx, Fault, Message, NodeId
from assay.protocols.nodes.chain import Block, Hash, parse


@dataclass
class Parasite(Fault):
    """A member of a coalition of miners that withhold their blocks."""

    members: frozenset[NodeId]
    lead: int = 1
    patience: int | None = None
    hoard: dict[Hash, Block] = field(default_factory=dict)
    """What only the coalition knows."""
    unseen: dict[Hash, tuple[NodeId, Block]] = field(default_factory=dict)
    """Public blocks that the miner inside has not been shown, and who sent them."""
    public: int = 0
    """The height of the highest public block."""
    own: set[Hash] = field(default_factory=set)
    covered: set[NodeId] = field(default_factory=set)
    """Who has got the newest block already, because it was published at once."""

    def __post_init__(self) -> None:
        if self.lead < 1 or (self.patience is not None and self.patience < 1):
            raise ValueError(f"a parasite with lead {self.lead} and patience {self.patience}; at least 1 expected")

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterator[tuple[NodeId, Message]]:
        """A block that is not public goes to the members only."""
        block = parse(msg) if msg[0] == "block" else None
        if block is None:
            yield to, msg
            return
        name = block.hash
        if block.miner == ctx.id and name not in self.own:
            self.own.add(name)
            self.hoard[name] = block
            self.covered.clear()
            yield from self._publish(ctx)
        if to in self.covered:
            self.covered.discard(to)
        elif name not in self.hoard:
            yield to, msg
        elif to in self.members:
            yield to, ("hoard", *block)

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Iterator[tuple[NodeId, Message]]:
        """The miner inside sees public blocks only while there is no hidden chain, or where one stands on them."""
        block = parse(msg) if msg[0] in ("block", "hoard") else None
        if block is None:
            yield src, msg
            return
        name = block.hash
        if msg[0] == "hoard":
            if src in self.members:
                self.hoard[name] = block
                yield from self._line(block.parent)
                yield src, ("block", *block)
        else:
            self.public = max(self.public, block.height)
            if not self.hoard.pop(name, None):
                self.unseen[name] = (src, block)
        if self.patience is not None and self.hoard and self._height() + self.patience <= self.public:
            self.hoard.clear()
        if not self.hoard:
            shown, self.unseen = self.unseen, {}
            for sender, public in shown.values():
                yield sender, ("block", *public)

    def _line(self, name: Hash) -> list[tuple[NodeId, Message]]:
        """The unseen blocks that lead to this one, lowest first."""
        line: list[tuple[NodeId, Message]] = []
        while name in self.unseen:
            sender, block = self.unseen.pop(name)
            line.append((sender, ("block", *block)))
            name = block.parent
        return line[::-1]

    def _height(self) -> int:
        return max(block.height for block in self.hoard.values())

    def _publish(self, ctx: Ctx) -> Iterator[tuple[NodeId, Message]]:
        """Everything to everybody, lowest first, once the hidden chain is far enough ahead."""
        if self._height() < self.public + self.lead:
            return
        self.public = self._height()
        for block in sorted(self.hoard.values(), key=lambda block: block.height):
            for peer in ctx.peers:
                yield peer, ("block", *block)
        self.covered = set(ctx.peers)
        self.hoard.clear()


def coalition(members: Iterable[NodeId], lead: int = 1, patience: int | None = None) -> dict[NodeId, Fault]:
    """The faults of a world in which these miners are one parasite.

    >>> sorted(coalition([2, 0]))
    [0, 2]
    """
    everyone = frozenset(members)
    return {member: Parasite(everyone, lead, patience) for member in everyone}

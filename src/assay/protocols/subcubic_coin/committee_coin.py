"""A cheap common coin made of many costly ones: small committees toss, publish, and everybody takes the majority.

Each committee of a public plan tosses a strong coin among its members. A member tells its bit to the parties that
listen to it; a party takes a committee's bit when more than half of those it listens to say the same, and stops waiting
when all but a few committees have spoken. The majority of so many fair bits is rarely close, so the few that are
missing or corrupted rarely matter. A round of majority and a crusader agreement then mend the few parties that were
misled. The output is a bit, common to all correct parties with constant probability.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.subcubic_coin.committees import Plan
>>> plan = Plan(n=8, committees=15, size=4, links=3, missing=0, faults=1)
>>> outcome = World(n=8, f=1, node=partial(CommitteeCoin, plan, partial(ideal, 7))).run("async")
>>> len(set(outcome.decided().values()))
1
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Parent, Tag, Through
from assay.protocols.nodes.agreement import IdealCoin
from assay.protocols.subcubic_coin.ben_or import Crusader
from assay.protocols.subcubic_coin.committees import Plan
from assay.sim.random import key

Inner = Callable[[Any], Node]
"""Makes the strong coin of a toss, from a name that all its members share."""


def ideal(seed: int, name: tuple[int, int]) -> Node:
    """An ideal strong coin: one fair bit for a committee (round, number), shown when more than f members asked."""
    return IdealCoin(key(seed, "toss", *name), 0)


class Seat(Node):
    """A node in a committee: it knows the others by their places, and is not aware of anybody else."""

    def __init__(self, members: Sequence[NodeId], faults: int, inner: Node) -> None:
        self.members, self.faults, self.inner = tuple(members), faults, inner
        self.places = {member: place for place, member in enumerate(members)}

    def start(self, ctx: Ctx) -> None:
        """Take the seat."""
        self.inner.start(_Seated(ctx, self))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Only members are heard."""
        if src in self.places:
            self.inner.recv(_Seated(ctx, self), self.places[src], msg)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The inner node's timer."""
        self.inner.timeout(_Seated(ctx, self), tag)


class _Seated(Through):
    """A context in which the committee is the world."""

    __slots__ = ("seat",)

    def __init__(self, under: Ctx, seat: Seat) -> None:
        self.under, self.seat = under, seat

    @property
    def id(self) -> NodeId:  # type: ignore[override]
        return self.seat.places[self.under.id]

    @property
    def n(self) -> int:  # type: ignore[override]
        return len(self.seat.members)

    @property
    def f(self) -> int:  # type: ignore[override]
        return self.seat.faults

    @property
    def peers(self) -> Sequence[NodeId]:  # type: ignore[override]
        own = self.id
        return [place for place in range(self.n) if place != own]

    @property
    def input(self) -> Any:
        return None

    def send(self, to: NodeId, msg: Message) -> None:
        self.under.send(self.seat.members[to], msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        places = range(self.n) if to is None else to
        self.under.broadcast(msg, to=[self.seat.members[place] for place in places])


@lru_cache(maxsize=4)
def _layout(plan: Plan) -> tuple[list[list[int]], list[dict[NodeId, list[NodeId]]], list[list[frozenset[NodeId]]]]:
    """Members by committee; by committee and member, who listens to it; by committee and party, whom it listens to."""
    members = plan.members().tolist()
    listeners: list[dict[NodeId, list[NodeId]]] = []
    sources: list[list[frozenset[NodeId]]] = []
    for committee, row in enumerate(members):
        heard = [[row[place] for place in places] for places in plan.heard(committee).tolist()]
        audience: dict[NodeId, list[NodeId]] = {member: [] for member in row}
        for party, told_by in enumerate(heard):
            for member in told_by:
                audience[member].append(party)
        listeners.append(audience)
        sources.append([frozenset(told_by) for told_by in heard])
    return members, listeners, sources


class _Ending(Crusader):
    """Begins when it is told to; the input, if there is one, is the owner's."""

    def start(self, ctx: Ctx) -> None:
        pass


class CommitteeCoin(Parent):
    """One toss; decides 0 or 1. `settled` tells afterwards whether the crusader agreement ended with a bit."""

    def __init__(self, plan: Plan, inner: Inner, round: int = 0, tolerance: float = 1 / 4) -> None:
        """`tolerance`: the share of a committee's members (less one) that its coin is asked to bear."""
        super().__init__()
        self.plan, self.inner, self.round, self.tolerance = plan, inner, round, tolerance
        self.said: dict[int, tuple[set[NodeId], set[NodeId]]] = {}
        self.taken: dict[int, int] = {}
        self.majorities: dict[NodeId, int] = {}
        self.counted = self.mended = False
        self.settled = False

    def start(self, ctx: Ctx) -> None:
        """Toss in every committee one sits in."""
        members, _, _ = _layout(self.plan)
        for committee, row in enumerate(members):
            if ctx.id in row:
                self.sub(ctx, ("toss", committee))

    def child(self, ctx: Ctx, name: Any) -> Node | None:
        """The coin of a committee one sits in, or the agreement at the end."""
        members, _, _ = _layout(self.plan)
        match name:
            case ("toss", int(committee)) if 0 <= committee < self.plan.committees and ctx.id in members[committee]:
                faults = int(self.tolerance * (self.plan.size - 1))
                return Seat(members[committee], faults, self.inner((self.round, committee)))
            case "agree":
                return _Ending()
        return None

    def decided(self, ctx: Ctx, name: Any, value: Any, slot: Hashable) -> None:
        """Publish a committee's bit; put out the agreed one."""
        if name == "agree":
            self.settled = value is not None
            ctx.decide(value if value is not None else self._majority())
        elif slot == 0:
            _, listeners, _ = _layout(self.plan)
            ctx.broadcast(("publish", name[1], int(value)), to=listeners[name[1]][ctx.id])

    def message(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Count what committees publish, then what parties concluded."""
        match msg:
            case ("publish", int(committee), (0 | 1) as bit) if 0 <= committee < self.plan.committees:
                if src in _layout(self.plan)[2][committee][ctx.id]:
                    self._count(ctx, src, committee, int(bit))
            case ("majority", (0 | 1) as bit):
                self.majorities.setdefault(src, int(bit))
                if len(self.majorities) >= ctx.n - ctx.f and not self.mended:
                    self.mended = True
                    found = self.sub(ctx, "agree")
                    if found is not None and isinstance(found[0], Crusader):
                        found[0].propose(found[1], self._majority())

    def _count(self, ctx: Ctx, src: NodeId, committee: int, bit: int) -> None:
        said = self.said.setdefault(committee, (set(), set()))
        if src in said[1 - bit]:
            return
        said[bit].add(src)
        if committee not in self.taken and 2 * len(said[bit]) > self.plan.links:
            self.taken[committee] = bit
            if len(self.taken) >= self.plan.committees - self.plan.missing and not self.counted:
                self.counted = True
                ctx.broadcast(("majority", int(2 * sum(self.taken.values()) > len(self.taken))))

    def _majority(self) -> int:
        return int(2 * sum(self.majorities.values()) > len(self.majorities))

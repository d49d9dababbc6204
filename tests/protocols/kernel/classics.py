"""Lamport's mutual exclusion and single-decree Paxos, each with a twin that leaves out one condition."""

from __future__ import annotations

from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag


class Lamport(Node):
    """A queue of requests by logical clocks (Lamport, 1978). Needs links that keep the order, and no crashes."""

    def __init__(self, times: int = 2) -> None:
        self.left = times
        self.clock = 0
        self.queue: dict[NodeId, tuple[int, NodeId]] = {}
        self.heard: dict[NodeId, tuple[int, NodeId]] = {}
        self.asked = -1
        self.inside = False

    def start(self, ctx: Ctx) -> None:
        """The first request."""
        self.request(ctx)

    def request(self, ctx: Ctx) -> None:
        """Into everybody's queue."""
        if self.left:
            self.left -= 1
            self.clock += 1
            self.queue[ctx.id] = (self.clock, ctx.id)
            self.asked = ctx.invoke("acquire", "lock", None)
            ctx.broadcast(("request", self.clock), to=ctx.peers)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Whatever arrives moves the clock."""
        kind, time = msg
        self.clock = max(self.clock, time) + 1
        self.heard[src] = (time, src)
        if kind == "request":
            self.queue[src] = (time, src)
            ctx.send(src, ("ack", self.clock))
        elif kind == "release":
            self.queue.pop(src, None)
        self.enter(ctx)

    def all_later(self, ctx: Ctx, mine: tuple[int, NodeId]) -> bool:
        """Whether everybody has said something since: nothing earlier can still come."""
        return all(self.heard.get(other, (0, other)) > mine for other in ctx.peers)

    def enter(self, ctx: Ctx) -> None:
        """First in the queue, and nothing earlier to come."""
        mine = self.queue.get(ctx.id)
        if mine is None or self.inside or min(self.queue.values()) != mine or not self.all_later(ctx, mine):
            return
        self.inside = True
        ctx.complete(self.asked, None)
        ctx.timer(0.01, "leave")

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Out again, and once more."""
        self.inside = False
        ctx.complete(ctx.invoke("release", "lock", None), None)
        del self.queue[ctx.id]
        self.clock += 1
        ctx.broadcast(("release", self.clock), to=ctx.peers)
        self.request(ctx)


class Hasty(Lamport):
    """Enters as soon as it is first in its own queue."""

    def all_later(self, ctx: Ctx, mine: tuple[int, NodeId]) -> bool:
        """One answer is enough for it."""
        return any(self.heard.get(other, (0, other)) > mine for other in ctx.peers)


class Paxos(Node):
    """Single-decree Paxos (Lamport, 1998): every node proposes its input, accepts and learns. Bears crashes only."""

    stable = ("round", "promised", "accepted")

    def __init__(self, tries: int = 3) -> None:
        self.tries = tries
        self.round = 0
        self.promised = -1
        self.accepted: tuple[int, Any] | None = None
        self.promises: dict[NodeId, Any] = {}
        self.votes: dict[int, set[NodeId]] = {}
        self.done = False

    def start(self, ctx: Ctx) -> None:
        """A proposal of its own, if it has anything to propose."""
        if ctx.input is not None:
            self.propose(ctx)

    def propose(self, ctx: Ctx) -> None:
        """With a ballot that nobody else has."""
        self.round += 1
        self.ballot = self.round * ctx.n + ctx.id
        self.promises = {}
        ctx.timer(0.1, ("retry", self.round))
        ctx.broadcast(("prepare", self.ballot))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Once more, some times."""
        if not self.done and tag[1] == self.round < self.tries:
            self.propose(ctx)

    def chosen(self, ctx: Ctx) -> Any:
        """What the highest ballot among the promises accepted, or its own input."""
        taken = [promise for promise in self.promises.values() if promise is not None]
        return max(taken)[1] if taken else ctx.input

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Both phases."""
        kind, ballot, *rest = msg
        if kind == "prepare" and ballot > self.promised:
            self.promised = ballot
            ctx.send(src, ("promise", ballot, self.accepted))
        elif kind == "promise" and ballot == getattr(self, "ballot", None):
            before = len(self.promises)
            self.promises[src] = rest[0]
            if before <= ctx.n // 2 < len(self.promises):
                ctx.broadcast(("accept", ballot, self.chosen(ctx)))
        elif kind == "accept" and ballot >= self.promised:
            self.promised, self.accepted = ballot, (ballot, rest[0])
            ctx.broadcast(("accepted", ballot, rest[0]))
        elif kind == "accepted":
            self.votes.setdefault(ballot, set()).add(src)
            if len(self.votes[ballot]) > ctx.n // 2 and not self.done:
                self.done = True
                ctx.decide(rest[0])


class Stubborn(Paxos):
    """Proposes its own input whatever was promised."""

    def chosen(self, ctx: Ctx) -> Any:
        """Its own."""
        return ctx.input


class Forgetful(Paxos):
    """Keeps what it promised and accepted in memory only."""

    stable = ("round",)


def alone_inside(world: Any, outcome: Any) -> str | None:
    """A judge over the nodes as a run leaves them."""
    inside = [node for node, one in enumerate(outcome.nodes) if getattr(one, "inside", False)]
    return f"nodes {inside} end inside" if len(inside) > 1 else None


def no_prepare_to_two(world: Any, outcome: Any) -> bool:
    """A judge over the trace that objects to an ordinary thing."""
    return any(dst == 2 and msg[0] == "prepare" for _, _, dst, msg in outcome.trace)


def broken(world: Any, outcome: Any) -> str:
    """A judge with a mistake in it."""
    return str(outcome.no_such_thing)


def chatty(world: Any, outcome: Any) -> int:
    """A judge that answers something else."""
    return 7

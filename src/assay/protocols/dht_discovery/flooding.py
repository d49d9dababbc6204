"""Rivals that route nothing: flooding and random walks, and the central registry.

Without structure: records stay with their agents, and a search goes to neighbours and theirs.

Each node links with a few others that random walks from a gateway lead to, and links anew when one of them dies. A
flood asks everybody within some hops; walkers ask one node after the other. Publishing costs nothing, looking up costs
about as many messages as there are links, or fails for what is rare.

Lv, Cao, Cohen, Li and Shenker, Search and Replication in Unstructured Peer-to-Peer Networks, ICS 2002.

The central registry: node 0 keeps every record, all others ask it. One round trip, and one node to lose.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId, Tag
from assay.protocols.nodes.overlay import KEY_BYTES, Overlay, Settings, Then, is_record

DEGREE = 6
WALK = 8
"""Hops of a walk that looks for a new neighbour."""


class Unstructured(Overlay):
    """A node that knows some others, whoever they are."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Overlay.shapes,
        "walk": (str, int, int), "link": (str,), "ping": (str, int), "pong": (str, int),
        "get": (str, bytes, int, int, int, int), "got": (str, int, int, tuple),
    }  # fmt: skip

    def __init__(self, settings: Settings | None = None, reach: int = 6) -> None:
        super().__init__(settings)
        self.reach = reach
        self.links: list[NodeId] = []
        self.open: dict[int, Then] = {}
        self.seen: dict[tuple[NodeId, int], float] = {}

    @abstractmethod
    def spread(self, ctx: Ctx, search: tuple[Any, ...], avoid: NodeId) -> None:
        """Pass a search (key, origin, ticket, hops, left) on."""

    # Links

    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Send walks out to find neighbours."""
        for _ in range(DEGREE // 2):
            ctx.send(gateway, ("walk", ctx.id, WALK))

    def on_walk(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody looks for a neighbour; where the walk ends, it finds one."""
        _, origin, left = msg
        if not self.joined or not 0 <= origin < ctx.n:
            return
        if origin == ctx.id or (left > 0 and self.links):
            if 0 < left <= WALK and self.links:
                ctx.send(self._any(ctx), ("walk", origin, left - 1))
        else:
            self._link(origin)
            ctx.send(origin, ("link",))

    def on_link(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A new neighbour."""
        self._link(src)
        if not self.joined:
            self.enter(ctx)

    def _link(self, node: NodeId) -> None:
        if node not in self.links:
            self.links.append(node)

    def _any(self, ctx: Ctx) -> NodeId:
        return self.links[int(ctx.rng.integers(len(self.links)))]

    def maintain(self, ctx: Ctx) -> None:
        """See whether a neighbour is alive; look for more where they are few."""
        if self.links:
            self.call(ctx, self._any(ctx), "ping", (), ("ping",))
        if len(self.links) < DEGREE:
            start = self._any(ctx) if self.links else int(ctx.rng.integers(min(self.settings.gateways, ctx.n)))
            if start != ctx.id:
                ctx.send(start, ("walk", ctx.id, WALK))
        old = ctx.now - self.settings.deadline
        self.seen = {search: time for search, time in self.seen.items() if time > old}

    def drop(self, ctx: Ctx, node: NodeId) -> None:
        """A neighbour is gone."""
        if node in self.links:
            self.links.remove(node)

    def on_ping(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Alive; whoever asks is a neighbour."""
        _, number = msg
        if self.joined:
            self._link(src)
            ctx.send(src, ("pong", number))

    def on_pong(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The neighbour is alive."""
        _, number = msg
        self.answered(src, number)

    # Searching

    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """A record stays here; a search starts here."""
        if kind == "put":
            self.keep(ctx, key, payload)
            self.resolved(ctx, then, 0, ctx.id, ())
        elif records := self.records(ctx, key):
            self.resolved(ctx, then, 0, ctx.id, records)
        else:
            self.number = ticket = self.number + 1
            self.open[ticket] = then
            self.seen[ctx.id, ticket] = ctx.now
            ctx.timer(deadline - ctx.now, ("give up", ticket))
            self.begin(ctx, (key, ctx.id, ticket, 0, self.reach))

    def begin(self, ctx: Ctx, search: tuple[Any, ...]) -> None:
        """The first step."""
        self.spread(ctx, search, ctx.id)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """A search without an answer has failed."""
        if type(tag) is tuple and tag[0] == "give up":
            then = self.open.pop(tag[1], None)
            if then is not None:
                self.resolved(ctx, then, None, -1, ())
        else:
            super().timeout(ctx, tag)

    def sound(self, ctx: Ctx, search: Message) -> bool:
        """Whether a search that came over the network can be one: what it has travelled is within reach too."""
        _, key, origin, _, hops, _ = search
        return len(key) == KEY_BYTES and 0 <= origin < ctx.n and 0 <= hops <= self.reach

    def on_get(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Answer, or pass the search on."""
        _, key, origin, ticket, hops, left = msg
        if not self.sound(ctx, msg):
            return
        records = self.records(ctx, key)
        if records:
            ctx.send(origin, ("got", ticket, hops, records))
        elif 0 < left <= self.reach:
            self.spread(ctx, (key, origin, ticket, hops, left), src)

    def on_got(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Found; the first answer counts."""
        _, ticket, hops, records = msg
        then = self.open.pop(ticket, None)
        if then is not None:
            self.resolved(ctx, then, hops, src, records)


class Flooding(Unstructured):
    """Asks everybody within reach."""

    def on_get(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Answer, or ask the neighbours; each search once."""
        _, _, origin, ticket, _, _ = msg
        if self.sound(ctx, msg) and (origin, ticket) not in self.seen:
            self.seen[origin, ticket] = ctx.now
            super().on_get(ctx, src, msg)

    def spread(self, ctx: Ctx, search: tuple[Any, ...], avoid: NodeId) -> None:
        """To all neighbours."""
        key, origin, ticket, hops, left = search
        onward = ("get", key, origin, ticket, hops + 1, left - 1)
        for node in self.links:
            if node != avoid:
                ctx.send(node, onward)


class RandomWalk(Unstructured):
    """Asks one node after the other, with several walkers at a time."""

    walkers = 16

    def __init__(self, settings: Settings | None = None, reach: int = 64) -> None:
        super().__init__(settings, reach)

    def begin(self, ctx: Ctx, search: tuple[Any, ...]) -> None:
        """All walkers set out."""
        for _ in range(self.walkers):
            self.spread(ctx, search, ctx.id)

    def spread(self, ctx: Ctx, search: tuple[Any, ...], avoid: NodeId) -> None:
        """To a neighbour that is not where the walker comes from, where there is one."""
        if self.links:
            node = self._any(ctx)
            if node == avoid and len(self.links) > 1:
                node = self._any(ctx)
            key, origin, ticket, hops, left = search
            ctx.send(node, ("get", key, origin, ticket, hops + 1, left - 1))


REGISTRY: NodeId = 0


class Registry(Overlay):
    """A client of the registry, or (node 0) the registry itself."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Overlay.shapes,
        "get": (str, int, bytes), "got": (str, int, tuple), "put": (str, int, bytes, tuple), "done": (str, int),
    }  # fmt: skip

    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Nothing to do: the registry's address is known."""
        self.enter(ctx)

    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """Ask the registry."""
        if ctx.id == REGISTRY:
            if kind == "put":
                self.keep(ctx, key, payload)
            self.resolved(ctx, then, 0, ctx.id, self.records(ctx, key))
        else:
            body = (key, payload) if kind == "put" else (key,)
            self.call(ctx, REGISTRY, kind, body, ("registry", kind, key, payload, then, deadline))

    def on_get(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody looks a name up."""
        _, number, key = msg
        ctx.send(src, ("got", number, self.records(ctx, key)))

    def on_put(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody publishes."""
        _, number, key, record = msg
        if len(key) == KEY_BYTES and is_record(record):
            self.keep(ctx, key, record)
            ctx.send(src, ("done", number))

    def on_got(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The registry answered."""
        asked = self.answered(src, msg[1])
        if asked is not None:
            self.resolved(ctx, asked[4], 1, src, msg[2] if msg[0] == "got" else ())

    on_done = on_got

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """Once more, until the deadline."""
        _, kind, key, payload, wanted, deadline = then
        if ctx.now < deadline:
            self.resolve(ctx, kind, key, payload, wanted, deadline)
        else:
            self.resolved(ctx, wanted, None, -1, ())

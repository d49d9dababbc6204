"""Recursive routing: each node passes a search on to a node nearer to its key, and the last one answers the first.

Every hop is acknowledged. A hop that stays silent is dropped from the tables and the search goes another way, so a
dead node costs one timeout and not the whole search; if the search itself is lost, whoever began it tries again.

Four kinds travel: "get" and "put" for records, "find" (who is responsible for this key?) for tables, "enter" for a
newcomer who looks for its own place. Each has kinds of its own for acknowledgement and answer, so that a meter can tell
the cost of lookups, publishing and maintenance apart.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId, Tag
from assay.protocols.nodes.overlay import KEY_BYTES, Overlay, Settings, Then, is_record

HOPS = 64
"""After so many hops a search is lost."""
_ROUTE = (str, int, bytes, int, int, int, bool, tuple)
_ACK = {"get": "get_ack", "put": "put_ack", "find": "find_ack", "enter": "enter_ack"}
_ANSWER = {"get": "got", "put": "done", "find": "found", "enter": "entered"}


class Routed(Overlay):
    """An overlay with one responsible node (root) for each key, reached hop by hop."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Overlay.shapes,
        **dict.fromkeys(_ACK, _ROUTE),
        **dict.fromkeys(_ACK.values(), (str, int)),
        **dict.fromkeys(_ANSWER.values(), (str, int, int, tuple)),
        "pull": (str, int),
    }

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.tickets: dict[int, tuple[float, str, bytes, Any, Then, float]] = {}
        self.watching = False

    # What a subclass brings

    @abstractmethod
    def next_hop(self, key: int, final: bool) -> tuple[NodeId, bool]:
        """Where to pass a search on, and whether that node must be the root; -1 where this node is it."""

    @abstractmethod
    def neighbours(self) -> list[NodeId]:
        """Who keeps copies of what this node is responsible for."""

    # Beginning and ending a search

    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Look for one's own place, from a gateway on."""
        key = self.me.to_bytes(KEY_BYTES)
        ticket = self._ticket(ctx, "enter", key, (), ("enter",), 0.0)
        self.call(ctx, gateway, "enter", (key, ctx.id, ticket, 1, False, ()), ("knock",))

    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """Route a search from here."""
        ticket = self._ticket(ctx, kind, key, payload, then, deadline)
        self.forward(ctx, kind, key, ctx.id, ticket, 0, False, payload)

    def _ticket(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> int:
        self.number = ticket = self.number + 1
        patience = 4 * self.settings.timeout
        self.tickets[ticket] = (ctx.now + patience, kind, key, payload, then, deadline)
        if not self.watching:
            self.watching = True
            ctx.timer(patience, "tickets")
        return ticket

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Searches that were lost on the way begin again, until their deadline."""
        if tag != "tickets":
            super().timeout(ctx, tag)
            return
        now = ctx.now + 1e-6
        late = []
        for ticket, entry in self.tickets.items():
            if entry[0] > now:
                break
            late.append(ticket)
        for ticket in late:
            _, kind, key, payload, then, deadline = self.tickets.pop(ticket)
            if now < deadline and self.joined:
                self.resolve(ctx, kind, key, payload, then, deadline)
            else:
                self.resolved(ctx, then, None, -1, ())
        self.watching = bool(self.tickets)
        if self.watching:
            ctx.timer(max(next(iter(self.tickets.values()))[0] - ctx.now, 0.0), "tickets")

    def _answer(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        _, ticket, hops, records = msg
        waiting = self.tickets.pop(ticket, None)
        if waiting is not None:
            self.resolved(ctx, waiting[4], hops, src, records)

    on_got = on_done = on_found = on_entered = _answer

    # On the way

    def _hop(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        if not self.joined:
            return  # back from a crash and known to some who do not know that: silence makes them drop it
        kind, number, key, origin, ticket, hops, final, payload = msg
        ctx.send(src, (_ACK[kind], number))
        if len(key) == KEY_BYTES and 0 <= origin < ctx.n and 0 <= hops < HOPS:
            self.forward(ctx, kind, key, origin, ticket, hops, final, payload)

    on_get = on_put = on_find = on_enter = _hop

    def forward(
        self, ctx: Ctx, kind: str, key: bytes, origin: NodeId, ticket: int, hops: int, final: bool, payload: Any
    ) -> None:
        """Pass a search on, or answer it."""
        place = int.from_bytes(key)
        to, last = self.next_hop(place, final)
        if kind == "enter" and to == origin:
            self.drop(ctx, origin)  # the newcomer was here before; what the tables say of it is outdated
            to, last = self.next_hop(place, final)
        if to < 0 or to == origin == ctx.id:
            self._arrived(ctx, kind, key, origin, ticket, hops, payload)
        else:
            onward = (key, origin, ticket, hops + 1, last, payload)
            self.call(ctx, to, kind, onward, ("hop", kind, onward, final))

    def _arrived(self, ctx: Ctx, kind: str, key: bytes, origin: NodeId, ticket: int, hops: int, payload: Any) -> None:
        records: tuple[Any, ...] = ()
        if kind == "get":
            records = self.records(ctx, key)
        elif kind == "put" and is_record(payload):
            self.keep(ctx, key, payload)
            copy = ("copy", key, payload)
            for node in self.neighbours():
                ctx.send(node, copy)
        if origin == ctx.id:
            self._answer(ctx, ctx.id, (_ANSWER[kind], ticket, hops, records))
        else:
            ctx.send(origin, (_ANSWER[kind], ticket, hops, records))

    def _acked(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        self.answered(src, msg[1])

    on_get_ack = on_put_ack = on_find_ack = on_enter_ack = _acked

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """A hop that did not come about is made another way."""
        if then[0] == "hop":
            _, kind, (key, origin, ticket, hops, _, payload), final = then
            self.forward(ctx, kind, key, origin, ticket, hops - 1, final, payload)

    # Handing over

    def on_pull(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A new neighbour takes over part of what is kept here."""
        ctx.send(src, ("copies", msg[1], self.handed(ctx)))

"""A directory of agents kept by the nodes themselves: what every overlay shares, whatever its routing.

Identifiers have 160 bits. A node's is the hash of its address, as in Chord and Pastry, so that an address is all that a
message need carry of a node; a name's (a capability, an agent's DID) is the hash of the name. An agent's record lies
with the nodes that the overlay holds responsible for each of its names. It is published again before it expires, which
is what repairs the copies that left with their nodes.

A subclass brings `join`, `resolve` and `maintain`; the rest is here: asking with a timeout, keeping records, publishing
them, and the load of lookups. Nodes know what messages told them and nothing else: there is no list of all nodes.

>>> key_of("translate").hex()[:8], ident(7) == ident(7), ident(7) < SPACE
('7fd690e2', True, True)

`Routed` adds recursive routing: each node passes a search on to a node nearer to its key, and the last one answers the
first.

Every hop is acknowledged. A hop that stays silent is dropped from the tables and the search goes another way, so a
dead node costs one timeout and not the whole search; if the search itself is lost, whoever began it tries again.

Four kinds travel: "get" and "put" for records, "find" (who is responsible for this key?) for tables, "enter" for a
newcomer who looks for its own place. Each has kinds of its own for acknowledgement and answer, so that a meter can tell
the cost of lookups, publishing and maintenance apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag

BITS = 160
SPACE = 1 << BITS
MASK = SPACE - 1
KEY_BYTES = BITS // 8
DOUBT = 6
"""Periods for which hearsay does not bring a silent node back."""

Record = tuple[str, tuple[str, ...], str, float]
"""(did, capabilities, endpoint, time to live)"""
Then = tuple[Any, ...]
"""What a node wants to do with an answer: plain values, beginning with a word."""
_RECORD = (str, tuple, str, float)
_TEXT, _WHOLE = frozenset({str}), frozenset({int})


@cache
def ident(node: NodeId) -> int:
    """The identifier of a node: the hash of its address."""
    return int.from_bytes(sha256(b"node %d" % node).digest()[:KEY_BYTES])


@cache
def key_of(name: str) -> bytes:
    """The key of a name."""
    return sha256(name.encode()).digest()[:KEY_BYTES]


class Agent(NamedTuple):
    """What a node publishes; a node's input."""

    did: str
    capabilities: tuple[str, ...]
    endpoint: str

    @property
    def names(self) -> tuple[str, ...]:
        """Under what it can be found."""
        return (*self.capabilities, self.did)


@dataclass(frozen=True)
class Load:
    """Lookups of every node: so many a second from `begin` to `end`, of names drawn by their weights."""

    names: tuple[str, ...] = ()
    heights: tuple[float, ...] = ()
    """The running sum of the names' weights."""
    rate: float = 0.0
    begin: float = 0.0
    end: float = 0.0

    def draw(self, dice: float) -> str:
        """A name, from a number below 1.

        >>> Load(("a", "b"), (3.0, 4.0)).draw(0.7)
        'a'
        """
        return self.names[min(bisect(self.heights, dice * self.heights[-1]), len(self.names) - 1)]


@dataclass(frozen=True)
class Settings:
    """What all overlays have in common, so that a comparison compares their routing and nothing else."""

    period: float = 5.0
    """Seconds between two rounds of maintenance."""
    timeout: float = 1.0
    """After which a silent node is taken for dead."""
    deadline: float = 10.0
    """After which a lookup has failed."""
    republish: float = 60.0
    ttl: float = 150.0
    replicas: int = 8
    answers: int = 16
    """Records in an answer, at most."""
    gateways: int = 8
    """Nodes 0, 1, …: the addresses that a newcomer is given."""
    joining: float = 10.0
    """Nodes that are there from the start come one after the other within so many seconds."""
    load: Load = field(default_factory=Load)


def is_record(value: Any) -> bool:
    """Whether it has a record's shape.

    >>> is_record(("did:a", ("translate",), "10.0.0.1:80", 150.0)), is_record(("did:a", 3))
    (True, False)
    """
    return (
        type(value) is tuple
        and tuple(map(type, value)) == _RECORD
        and (not value[1] or set(map(type, value[1])) == _TEXT)
    )


def nodes_in(value: tuple[Any, ...], n: int) -> tuple[NodeId, ...]:
    """The nodes that a message names; none at all where one of them cannot be.

    >>> nodes_in((3, 1), 4), nodes_in((3, 4), 4), nodes_in((True, "x"), 4)
    ((3, 1), (), ())
    """
    if not value or set(map(type, value)) != _WHOLE or min(value) < 0 or max(value) >= n:
        return ()
    return value


def _ignore(node: Overlay, ctx: Ctx, src: NodeId, msg: Message) -> None:
    """For kinds that a base class names and only its subclasses take."""


class Overlay(Node, ABC):
    """A member of a directory. Its input is the agent it publishes, or None."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {"copy": (str, bytes, tuple), "copies": (str, int, tuple)}
    """The types of each kind of message; what does not match is not looked at."""
    actions: ClassVar[dict[str, tuple[tuple[type, ...], Callable[..., None]]]] = {}
    """The shape of each kind, and the method `on_…` that takes it."""

    def __init_subclass__(cls) -> None:
        cls.actions = {kind: (shape, getattr(cls, f"on_{kind}", _ignore)) for kind, shape in cls.shapes.items()}

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.me = 0
        self.joined = False
        self.store: dict[bytes, dict[str, tuple[Record, float]]] = {}
        self.calls: dict[int, tuple[float, NodeId, Then]] = {}
        self.sweeping = False
        self.failed: dict[NodeId, float] = {}
        """Who did not answer, and when: for a while only what they say themselves brings them back."""
        self.number = 0
        self.early: list[tuple[str, bytes, Any, Then, float]] = []
        """Lookups that wait until the node is in, the first to expire first."""

    # What a subclass brings

    @abstractmethod
    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Get in touch through a node that is known to be one; ends in `enter`."""

    @abstractmethod
    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """Find ("get"), or make known ("put"), what belongs to a key; ends in `resolved`."""

    def maintain(self, ctx: Ctx) -> None:
        """What is to be done every period."""

    def drop(self, ctx: Ctx, node: NodeId) -> None:
        """A node did not answer: forget it."""

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """What was asked of a node that did not answer, and was dropped."""

    # Life

    def start(self, ctx: Ctx) -> None:
        """Found the directory (node 0, at the beginning) or wait for one's turn to join it."""
        settings, load = self.settings, self.settings.load
        self.me = ident(ctx.id)
        if self.joined or (ctx.id == 0 and ctx.now < settings.period):
            self.enter(ctx)
        else:
            ctx.timer(settings.joining * ctx.id / ctx.n - ctx.now, "join")
        if load.rate > 0:
            ctx.timer(max(0.0, load.begin - ctx.now) + float(ctx.rng.exponential(1 / load.rate)), "ask")

    def enter(self, ctx: Ctx) -> None:
        """The node is in: from now on it takes part, keeps its tables, and publishes its agent."""
        self.joined = True
        period = self.settings.period
        ctx.timer(period * float(ctx.rng.random()), "period")
        if ctx.input is not None:
            ctx.timer(period * float(ctx.rng.random()), "publish")
        waiting, self.early = self.early, []
        for kind, key, payload, then, deadline in waiting:
            self.resolve(ctx, kind, key, payload, then, deadline)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The node's own clocks."""
        if tag == "calls":
            self._sweep(ctx)
        elif tag == "period":
            ctx.timer(self.settings.period, "period")
            self.maintain(ctx)
        elif tag == "ask":
            self._ask(ctx)
        elif tag == "early":
            self._expire(ctx)
        elif tag == "publish":
            self._publish(ctx)
        elif tag == "join" and not self.joined:
            ctx.timer(4 * self.settings.timeout, "join")
            self._knock(ctx)

    def _knock(self, ctx: Ctx) -> None:
        """Try a gateway; at the beginning one of those that came before."""
        known = min(self.settings.gateways, ctx.n)
        if ctx.now < self.settings.joining:
            known = max(1, min(known, ctx.id))
        gateway = int(ctx.rng.integers(known))
        if gateway != ctx.id:
            self.join(ctx, gateway)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """To the method of its kind, if it has the right shape."""
        if src in self.failed:
            del self.failed[src]
        action = self.actions.get(msg[0])
        if action is not None and tuple(map(type, msg)) == action[0] and 0 <= src < ctx.n:
            action[1](self, ctx, src, msg)

    # Asking with a timeout

    def call(self, ctx: Ctx, to: NodeId, kind: str, body: tuple[Any, ...], then: Then) -> None:
        """Ask a node; its answer carries the number back, silence ends in `unanswered`."""
        self.number = number = self.number + 1
        self.calls[number] = (ctx.now + self.settings.timeout, to, then)
        ctx.send(to, (kind, number) + body)  # noqa: RUF005 - quicker than unpacking
        if not self.sweeping:
            self.sweeping = True
            ctx.timer(self.settings.timeout, "calls")

    def answered(self, src: NodeId, number: int) -> Then | None:
        """What the answer is for; None where nobody asked this node."""
        call = self.calls.get(number)
        if call is None or call[1] != src:
            return None
        del self.calls[number]
        return call[2]

    def _sweep(self, ctx: Ctx) -> None:
        """One clock for all calls: they time out in the order in which they were made."""
        now = ctx.now + 1e-6
        late = []
        for number, (deadline, _, _) in self.calls.items():
            if deadline > now:
                break
            late.append(number)
        for number in late:
            call = self.calls.pop(number, None)
            if call is not None:
                self.failed[call[1]] = now
                self.drop(ctx, call[1])
                self.unanswered(ctx, call[1], call[2])
        self.sweeping = bool(self.calls)
        if self.sweeping:
            ctx.timer(max(next(iter(self.calls.values()))[0] - ctx.now, 0.0), "calls")

    def named(self, ctx: Ctx, value: tuple[Any, ...]) -> tuple[NodeId, ...]:
        """The nodes that a message names, without those that this node found dead lately.

        Others do not know of a death yet; taking their word would bring the dead back as fast as they are dropped.
        """
        nodes = nodes_in(value, ctx.n)
        if self.failed and not self.failed.keys().isdisjoint(nodes):
            doubtful = ctx.now - DOUBT * self.settings.period
            nodes = tuple([node for node in nodes if self.failed.get(node, doubtful) <= doubtful])
        return nodes

    # Records

    def keep(self, ctx: Ctx, key: bytes, record: Record) -> None:
        """Remember a record until it expires; the newest last."""
        kept = self.store.setdefault(key, {})
        kept.pop(record[0], None)
        kept[record[0]] = (record, ctx.now + min(max(record[3], 0.0), self.settings.ttl))

    def records(self, ctx: Ctx, key: bytes) -> tuple[Record, ...]:
        """The newest records of a key that have not expired."""
        kept = self.store.get(key)
        if not kept:
            return ()
        now = ctx.now
        if next(iter(kept.values()))[1] <= now:
            kept = self.store[key] = {did: entry for did, entry in kept.items() if entry[1] > now}
        return tuple([record for record, _ in islice(reversed(kept.values()), self.settings.answers)])

    def on_copy(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Keep a copy for another node."""
        _, key, record = msg
        if len(key) == KEY_BYTES and is_record(record):
            self.keep(ctx, key, record)

    def on_copies(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The records that a neighbour handed over to a newcomer."""
        _, number, entries = msg
        if self.answered(src, number) is None:
            return
        for entry in entries:
            if type(entry) is tuple and tuple(map(type, entry)) == (bytes, tuple):
                self.on_copy(ctx, src, ("copy", *entry))

    def handed(self, ctx: Ctx) -> tuple[tuple[bytes, Record], ...]:
        """All that a newcomer next door may have to answer for, with what is left of its time."""
        now = ctx.now
        return tuple(
            (key, (*record[:3], expiry - now))
            for key, kept in self.store.items()
            for record, expiry in kept.values()
            if expiry > now
        )

    # Publishing and looking up

    def _publish(self, ctx: Ctx) -> None:
        did, capabilities, endpoint = ctx.input
        record = (did, tuple(capabilities), endpoint, self.settings.ttl)
        ctx.timer(self.settings.republish, "publish")
        for name in (*capabilities, did):
            self.resolve(ctx, "put", key_of(name), record, ("publish",), ctx.now + self.settings.deadline)

    def _ask(self, ctx: Ctx) -> None:
        load = self.settings.load
        if ctx.now >= load.end:
            return
        ctx.timer(float(ctx.rng.exponential(1 / load.rate)), "ask")
        self.lookup(ctx, load.draw(float(ctx.rng.random())))

    def lookup(self, ctx: Ctx, name: str) -> None:
        """Look a name up; the operation's result is (hops, DIDs), its status "fail" where nothing was found."""
        operation = ctx.invoke("lookup", name, None)
        deadline = ctx.now + self.settings.deadline
        if self.joined:
            self.resolve(ctx, "get", key_of(name), (), ("lookup", operation), deadline)
        else:
            self.early.append(("get", key_of(name), (), ("lookup", operation), deadline))
            ctx.timer(self.settings.deadline, "early")

    def _expire(self, ctx: Ctx) -> None:
        """A lookup fails at its deadline even where the node never gets in: left open, nobody would count it."""
        now = ctx.now + 1e-6
        while self.early and self.early[0][4] <= now:
            self.resolved(ctx, self.early.pop(0)[3], None, -1, ())

    def resolved(self, ctx: Ctx, then: Then, hops: int | None, holder: NodeId, records: tuple[Any, ...]) -> None:
        """A search ended: after so many hops at this node, or (None) nowhere."""
        if then[0] == "lookup":
            found = tuple([record[0] for record in records if is_record(record)])
            ctx.complete(then[1], (-1 if hops is None else hops, found), "ok" if found else "fail")


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

    def on_ping(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Alive; or somebody measures the way here."""
        _, number = msg
        if self.joined:
            ctx.send(src, ("pong", number))

    # Handing over

    def on_pull(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A new neighbour takes over part of what is kept here."""
        ctx.send(src, ("copies", msg[1], self.handed(ctx)))

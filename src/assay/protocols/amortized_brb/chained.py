"""The chained broadcast, and the chains of digests along which its nodes vouch.

A sender's messages form a chain: the digest of a link covers its message and the digest of the link before. Whoever
vouches for a tip therefore vouches for every link behind it, with one digest. `Votes` counts, link by link, how many
nodes do; a node that moves on adds to the links it passes, and a node that changes sides is counted where it was first.

>>> chain = Links()
>>> first = chain.add(GENESIS, digest(b"one"))
>>> second = chain.add(first, digest(b"two"))
>>> votes = Votes()
>>> votes.move(7, second, chain) == [second, first]
True
>>> votes.count(first), chain.path(GENESIS, second) == [first, second]
(1, True)

`Chained` is many broadcasts of one sender that share their echoes: a node vouches for the tip of a chain, so for all
before it.

The sender's messages form a chain of digests. A node that gets the next message from the sender does not tell
everybody, as Bracha's nodes do, but a fresh random sample of O(log n) nodes; and what it says is two tips: how far it
echoes the chain, and how far it is ready. Since a tip vouches for every link behind it, the votes for an old message
go on growing while newer ones are sent, until they are Bracha's quorums: more than (n + f)/2 echoes or f + 1 readies
make one ready, 2f + 1 readies make one deliver. No message is decided by a sample; samples only spread the votes.

When the sender is quiet, nodes go on telling fresh samples (*flush*). A node that has delivered all it knows of, or
that has seen nothing new for long, tells everybody once (*summary*) and rests; with it, what holds at the end does not
depend on luck. Links and messages that others are ready for and that the sender kept back are asked for (*pull*).

With `optimistic` > 0 a node also delivers what so many of its waves in a row confirmed: at least 2/3 of the votes that
a wave should bring came in, and none of another chain. That takes O(1) rounds, and it *is* a decision by a sample.

>>> from assay.protocols.kernel.world import World
>>> stream = [b"one", b"two", b"three"]
>>> outcome = World(n=16, f=5, node=Chained, inputs=[stream]).run("rounds")
>>> [set(outcome.decided(slot).values()) for slot in (1, 2, 3)], outcome.stopped
([{b'one'}, {b'two'}, {b'three'}], 'quiet')
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any, NamedTuple

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag

GENESIS = b""
"""The tip of the empty chain."""
DIGEST = 32
"""Bytes of a digest."""


def as_bytes(given: bytes | str) -> bytes:
    """What a sender was given to send: text travels as UTF-8.

    >>> as_bytes("hello")
    b'hello'
    """
    return given.encode() if isinstance(given, str) else given


def digest(message: bytes) -> bytes:
    """The digest of a message."""
    return blake2b(message, digest_size=DIGEST).digest()


class Link(NamedTuple):
    """A place in a chain; its name is the digest of all three."""

    place: int
    parent: bytes
    message: bytes
    """The digest of the message at this place."""


class Links:
    """The links a node knows; they form a tree, since a faulty sender may fork."""

    def __init__(self) -> None:
        self.known: dict[bytes, Link] = {GENESIS: Link(0, GENESIS, GENESIS)}

    def __contains__(self, tip: bytes) -> bool:
        return tip in self.known

    def name(self, parent: bytes, message: bytes) -> bytes:
        """The digest of the link that puts this message behind a known one."""
        place = (self.known[parent].place + 1).to_bytes(8, "little")
        return blake2b(parent + place + message, digest_size=DIGEST).digest()

    def add(self, parent: bytes, message: bytes) -> bytes:
        """Puts a message (its digest) behind a known link; the new link's digest."""
        tip = self.name(parent, message)
        self.known[tip] = Link(self.known[parent].place + 1, parent, message)
        return tip

    def index(self, tip: bytes) -> int:
        """How long the chain up to this known tip is."""
        return self.known[tip].place

    def path(self, start: bytes, tip: bytes) -> list[bytes] | None:
        """The links behind `start` up to `tip`, oldest first; None if `tip` does not lie behind `start`."""
        if start not in self.known or tip not in self.known:
            return None
        path, last = [], self.known[start].place
        while self.known[tip].place > last:
            path.append(tip)
            tip = self.known[tip].parent
        return path[::-1] if tip == start else None


class Votes:
    """How far each node vouches, and how many nodes vouch for each link."""

    def __init__(self) -> None:
        self.tips: dict[NodeId, bytes] = {}
        self.counts: dict[bytes, int] = {}

    def count(self, link: bytes) -> int:
        """Nodes that vouch for the link."""
        return self.counts.get(link, 0)

    def move(self, who: NodeId, tip: bytes, links: Links) -> list[bytes]:
        """A node vouches for a known tip: the links that gained a vote by it, newest first."""
        before = self.tips.get(who, GENESIS)
        if tip == before:
            return []
        known, counts = links.known, self.counts
        last = known[before].place
        gained, link = [], tip
        while known[link].place > last:
            gained.append(link)
            link = known[link].parent
        if link != before:  # an old message that was overtaken, or a node that changed sides
            return []
        for link in gained:
            counts[link] = counts.get(link, 0) + 1
        self.tips[who] = tip
        return gained


ASKS = 2
"""Questions about unknown tips in one wave."""
LONGEST = 1 << 16
"""Links in one answer."""


class Chained(Node):
    """A stream of broadcasts. The sender's input is the list of messages; slot i is the i-th message's delivery."""

    def __init__(
        self, sender: NodeId = 0, spread: float = 4.0, optimistic: int = 0, summaries: bool = True, pace: float = 1.0
    ) -> None:  # fmt: skip
        """`spread`: the size of a sample over ln n. `pace`: seconds (rounds) from one wave, or message, to the next."""
        self.sender, self.spread, self.optimistic, self.summaries = sender, spread, optimistic, summaries
        self.pace = pace
        self.links = Links()
        self.bodies: dict[bytes, bytes] = {}
        self.held: dict[int, tuple[bytes, bytes]] = {}
        """From the sender, by place: the first message and parent it named."""
        self.chain: list[bytes] = [GENESIS]
        """The chain this node echoes, by place."""
        self.forked = False
        """The sender contradicted itself: no further link is echoed."""
        self.ready = self.settled = self.done = GENESIS
        """Tips: what this node is ready for, what 2f + 1 are ready for, what it has delivered."""
        self.votes = {"echo": Votes(), "ready": Votes()}
        self.waiting: dict[bytes, set[tuple[str, NodeId]]] = {}
        """Votes for tips this node does not know yet."""
        self.vague: dict[tuple[str, NodeId], bytes] = {}
        """The same by voter: one tip each, so that nobody can fill the memory."""
        self.doubted: set[NodeId] = set()
        """Voters of whose votes one was forgotten for another: which of them was newer cannot be seen."""
        self.asked: set[tuple[NodeId, bytes]] = set()
        self.served: set[tuple[NodeId, bytes]] = set()
        self.missed: set[bytes] = set()
        self.heard: list[int] = []
        self.levels: list[int] = []
        self.split = False
        """Somebody vouches for another chain: no optimism."""
        self.hoped: set[int] = set()
        """What the optimistic path delivered before the quorums did."""
        self.spoke = self.awake = False
        self.idle = self.sent = 0
        self.last: tuple[bytes, bytes, bytes] = (GENESIS, GENESIS, GENESIS)
        self.summed: tuple[bytes, bytes] = (GENESIS, GENESIS)

    def start(self, ctx: Ctx) -> None:
        """The sender begins its stream."""
        if ctx.id == self.sender and ctx.input:
            self._send(ctx)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The sender's messages, votes, questions and answers."""
        if msg[0] == "vouch" and len(msg) == 3:  # nearly everything
            self._vouched(ctx, src, msg[1], msg[2])
            return
        match msg:
            case ("send", int(place), bytes(body), bytes(parent)) if src == self.sender:
                self._receive(ctx, place, body, parent)
            case ("ask", bytes(start), bytes(tip)):
                self._answer(ctx, src, start, tip)
            case ("links", bytes(start), tuple(names)) if len(names) <= LONGEST:
                self._learn(ctx, src, start, names)
            case ("want", bytes(name)) if name in self.bodies and (src, name) not in self.served:
                self.served.add((src, name))
                ctx.send(src, ("body", self.bodies[name]))
            case ("again",):
                ctx.send(src, ("vouch", self.chain[-1], self.ready))
            case ("body", bytes(body)) if (name := digest(body)) in self.missed:
                self.bodies[name] = body
                self._deliver(ctx)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The sender's next message, or the next wave."""
        if tag == "send":
            self._send(ctx)
            return
        self.awake = False
        now = (self.chain[-1], self.ready, self.done)
        self.idle = self.idle + 1 if now == self.last and not self.spoke else 0
        self.last = now
        self._pull(ctx)  # first: one who was woken by a late vote must ask what it is for before it rests again
        if not self.spoke:
            if self._may_rest(ctx):
                self._sum_up(ctx)
                return
            self._vouch(ctx)
        self.spoke = False
        self._wake(ctx)

    # -------------------------------------------------------------------------------------- the sender's messages

    def _send(self, ctx: Ctx) -> None:
        """One message a round: the chain grows as fast as the votes for it travel."""
        body, parent = as_bytes(ctx.input[self.sent]), self.chain[-1]
        self.sent += 1
        ctx.broadcast(("send", self.sent, body, parent), to=ctx.peers)
        self._receive(ctx, self.sent, body, parent)
        if self.sent < len(ctx.input):
            ctx.timer(self.pace, "send")

    def _receive(self, ctx: Ctx, place: int, body: bytes, parent: bytes) -> None:
        if self.held.setdefault(place, (body, parent)) != (body, parent):
            self.forked = True
        before = len(self.chain)
        while not self.forked and (held := self.held.get(len(self.chain))) is not None:
            body, parent = held
            if parent != self.chain[-1]:
                self.forked = True
                break
            name = digest(body)
            self.bodies[name] = body
            self.chain.append(self.links.add(parent, name))
            self._known(ctx, self.chain[-1])
        if len(self.chain) > before:
            self._vote(ctx, "echo", ctx.id, self.chain[-1])
            self._vouch(ctx)
            self.spoke = True
            self._deliver(ctx)

    # ---------------------------------------------------------------------------------------------------- votes

    def _vouched(self, ctx: Ctx, src: NodeId, echo: Any, ready: Any) -> None:
        if self.votes["echo"].tips.get(src) != echo and type(echo) is bytes:
            self._vote(ctx, "echo", src, echo)
        else:
            self._listen(echo)
        if self.votes["ready"].tips.get(src, GENESIS) != ready and type(ready) is bytes:
            self._vote(ctx, "ready", src, ready)

    def _vote(self, ctx: Ctx, kind: str, who: NodeId, tip: bytes) -> None:
        if tip not in self.links:
            if len(tip) == DIGEST:
                self._put_off(kind, who, tip)
                self._wake(ctx)
            return
        votes = self.votes[kind]
        for link in votes.move(who, tip, self.links):
            count = votes.counts[link]
            if count == ((ctx.n + ctx.f) // 2 + 1 if kind == "echo" else ctx.f + 1):
                self._get_ready(ctx, link)
            if kind == "ready" and count == 2 * ctx.f + 1 and self.links.path(self.settled, link):
                self.settled = link
                self._deliver(ctx)
        if kind == "echo" and who != ctx.id:
            self._listen(tip)

    def _put_off(self, kind: str, who: NodeId, tip: bytes) -> None:
        """Remembers the voter's latest unknown tip, and forgets the one before, which an old vote may come after."""
        before = self.vague.get((kind, who))
        if before is not None:
            if before != tip:
                self.doubted.add(who)
            self.waiting[before].discard((kind, who))
            if not self.waiting[before]:
                del self.waiting[before]
        self.vague[kind, who] = tip
        self.waiting.setdefault(tip, set()).add((kind, who))

    def _known(self, ctx: Ctx, link: bytes) -> None:
        """Counts the votes that waited for a link."""
        for kind, who in sorted(self.waiting.pop(link, ())):
            del self.vague[kind, who]
            self._vote(ctx, kind, who, link)

    def _get_ready(self, ctx: Ctx, link: bytes) -> None:
        if self.links.path(self.ready, link):
            self.ready = link
            self._vote(ctx, "ready", ctx.id, link)
            self._wake(ctx)

    def _deliver(self, ctx: Ctx, upto: bytes | None = None) -> None:
        """Everything up to a settled link, in order, as far as the messages are at hand."""
        for link in self.links.path(self.done, self.settled if upto is None else upto) or ():
            name = self.links.known[link].message
            if name not in self.bodies:
                break
            self.done = link
            ctx.decide(self.bodies[name], slot=self.links.index(link))
        self._wake(ctx)

    # ---------------------------------------------------------------------------------------------------- waves

    def _wake(self, ctx: Ctx) -> None:
        if not self.awake:
            self.awake = True
            ctx.timer(self.pace, "wave")

    def _size(self, ctx: Ctx) -> int:
        return min(len(ctx.peers), math.ceil(self.spread * math.log(ctx.n)))

    def _vouch(self, ctx: Ctx) -> None:
        """A wave: both tips to a fresh sample."""
        size = self._size(ctx)
        chosen = ctx.rng.choice(len(ctx.peers), size, replace=False, shuffle=False)
        ctx.broadcast(("vouch", self.chain[-1], self.ready), to=[ctx.peers[place] for place in chosen.tolist()])
        if self.optimistic:
            self._hope(ctx, size)
        self._wake(ctx)

    def _may_rest(self, ctx: Ctx) -> bool:
        """All delivered, or nothing new for twice as long as samples need to reach everybody."""
        if not self.summaries or self.links.index(self.settled) > self.links.index(self.done):
            return False
        if self.chain[-1] == self.ready == self.done and not self.waiting:
            return True
        return self.idle > 8 + 2 * math.log(ctx.n) * ctx.n / self._size(ctx)

    def _sum_up(self, ctx: Ctx) -> None:
        """Both tips to everybody, once."""
        if self.summed != (self.chain[-1], self.ready):
            self.summed = (self.chain[-1], self.ready)
            ctx.broadcast(("vouch", *self.summed), to=ctx.peers)

    # ----------------------------------------------------------------------------------------------------- pull

    def _pull(self, ctx: Ctx) -> None:
        """Asks for links that others vouch for and for messages they are ready for, a wave after they were missed."""
        questions = [(who, tip) for (_, who), tip in self.vague.items() if (who, tip) not in self.asked]
        for who, tip in questions[:ASKS]:
            self.asked.add((who, tip))
            ctx.send(who, ("ask", self.done, tip))
        ctx.broadcast(("again",), to=sorted(self.doubted))
        self.doubted.clear()
        for link in self.links.path(self.done, self.ready) or ():
            name = self.links.known[link].message
            if name in self.bodies:
                continue
            if name in self.missed:
                owners = [who for who, tip in self.votes["echo"].tips.items() if self._behind(link, tip)]
                if owners:
                    ctx.send(owners[int(ctx.rng.integers(len(owners)))], ("want", name))
            self.missed.add(name)

    def _behind(self, link: bytes, tip: bytes) -> bool:
        return self.links.path(link, tip) is not None

    def _answer(self, ctx: Ctx, src: NodeId, start: bytes, tip: bytes) -> None:
        path = self.links.path(start, tip)
        if path and len(path) <= LONGEST and (src, tip) not in self.served:
            self.served.add((src, tip))
            names = tuple(self.links.known[link].message for link in path)
            ctx.send(src, ("links", start, names))

    def _learn(self, ctx: Ctx, src: NodeId, start: bytes, names: tuple[Any, ...]) -> None:
        """Takes links only if they lead to a tip that was asked for; then they are what the voter vouched for."""
        if start not in self.links or not all(isinstance(name, bytes) and len(name) == DIGEST for name in names):
            return
        trial, tip = Links(), start
        trial.known[start] = self.links.known[start]
        for name in names:
            tip = trial.add(tip, name)
        if (src, tip) in self.asked:
            self.links.known.update(trial.known)
            for link in trial.known:
                self._known(ctx, link)

    # ------------------------------------------------------------------------------------------- the optimistic path

    def _listen(self, tip: bytes) -> None:
        if not self.optimistic or tip not in self.links:
            return
        place = self.links.index(tip)
        if place < len(self.chain):
            if self.chain[place] == tip:
                self.heard.append(place)
            else:
                self.split = True

    def _hope(self, ctx: Ctx, size: int) -> None:
        """A wave ended: as far as enough votes reached in each of the last waves, deliver."""
        need = math.ceil(2 / 3 * size)
        heard = sorted(self.heard, reverse=True)
        self.heard = []
        agreed = len(heard) >= need and not any(kind == "echo" for kind, _ in self.vague)
        self.levels = [*self.levels, heard[need - 1] if agreed else 0][-self.optimistic :]
        sure = min(self.levels) if len(self.levels) == self.optimistic else 0
        if sure and not self.split and not self.forked and self.links.path(self.done, self.chain[sure]):
            before = self.links.index(self.done)
            self._deliver(ctx, self.chain[sure])
            self.hoped.update(range(before + 1, self.links.index(self.done) + 1))

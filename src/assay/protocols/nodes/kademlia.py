"""Kademlia: distance is XOR, the searcher itself asks ever closer nodes, and every message teaches a contact.

Contacts lie in buckets by the length of the common prefix, at most k in each, the longest silent first. A full bucket
lets a newcomer in only if its longest-silent contact does not answer a ping, and does not even ask if that contact was
heard from lately: old nodes tend to stay. A lookup keeps alpha questions under way and ends when the closest nodes it
knows have all answered, or, for a record, at the first that has it. As records lie with the `replicas` closest nodes,
so many have to answer.

A newcomer looks itself up, then refreshes every bucket farther away than its closest neighbour. Every period one bucket
is refreshed, the one into which nobody looked for the longest time, if that is longer than `refresh`. Whoever is
closest to a key hands its records to a newcomer who should have them too.

Maymounkov and Mazières, Kademlia: A Peer-to-peer Information System Based on the XOR Metric, IPTPS 2002; "heard from
lately" is BitTorrent's BEP 5.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId
from assay.protocols.nodes.overlay import KEY_BYTES, SPACE, Overlay, Settings, Then, ident, is_record

_ANSWER = {"get": "got", "put": "placed", "find": "found"}
_NEW, _ASKED, _ANSWERED = range(3)


class Search:
    """An iterative lookup under way."""

    __slots__ = (
        "body", "deadline", "flying", "key", "kind", "near", "payload", "state", "target", "then",
    )  # fmt: skip

    def __init__(self, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        self.body = (key,)
        """What every question carries."""
        self.kind, self.key, self.payload, self.then, self.deadline = kind, key, payload, then, deadline
        self.target = int.from_bytes(key)
        self.near: list[tuple[int, NodeId, int]] = []
        """(distance, node, hops to it) of all candidates, the closest first."""
        self.state: dict[NodeId, int] = {}
        self.flying = 0

    def add(self, nodes: Sequence[NodeId], depth: int, most: int) -> None:
        """Candidates that somebody named."""
        near, state, target = self.near, self.state, self.target
        far = near[most - 1][0] if len(near) >= most else SPACE
        for node in nodes:
            if node not in state:
                distance = ident(node) ^ target
                if distance < far:
                    state[node] = _NEW
                    insort(near, (distance, node, depth))


class Bucket(dict[NodeId, float]):
    """Contacts and when they were last heard from, the longest silent first."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: dict[int, NodeId] = {}
        """Whose identifiers they are: sorting these asks for nothing else."""

    def enter(self, node: NodeId, now: float) -> None:
        """A new contact."""
        self[node] = now
        self.places[ident(node)] = node

    def leave(self, node: NodeId) -> None:
        """One contact less."""
        del self[node]
        del self.places[ident(node)]

    def nearest(self, target: int, count: int) -> list[NodeId]:
        """So many of them, the closest to a place first."""
        places = self.places
        return [places[place] for place in sorted(places, key=target.__xor__)[:count]]


class Kademlia(Overlay):
    """A node of a Kademlia network."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Overlay.shapes,
        "get": (str, int, bytes), "put": (str, int, bytes), "find": (str, int, bytes),
        "got": (str, int, tuple, tuple), "placed": (str, int, tuple, tuple), "found": (str, int, tuple, tuple),
        "ping": (str, int), "pong": (str, int),
    }  # fmt: skip

    def __init__(
        self, settings: Settings | None = None, k: int = 20, alpha: int = 3, refresh: float | None = None
    ) -> None:
        super().__init__(settings)
        self.k, self.alpha = k, alpha
        self.refresh = self.settings.republish if refresh is None else refresh
        self.buckets: dict[int, Bucket] = {}
        """By the distance's highest bit."""
        self.filled = 0
        """A bit for each bucket that has contacts."""
        self.looked: dict[int, float] = {}
        self.pinging: set[int] = set()
        self.searches: dict[int, Search] = {}

    def perfect(self, node: NodeId, members: Sequence[NodeId]) -> Kademlia:
        """The tables that a node would have if it knew all members: full buckets."""
        self.me = ident(node)
        for other in members:
            if other != node:
                bucket = self.buckets.setdefault((ident(other) ^ self.me).bit_length() - 1, Bucket())
                if len(bucket) < self.k:
                    bucket.enter(other, 0.0)
        self.filled = sum(1 << place for place in self.buckets)
        self.joined = True
        return self

    # Contacts

    def _heard(self, ctx: Ctx, node: NodeId) -> None:
        """A node spoke: it moves to the end of its bucket, if there is room for it."""
        now = ctx.now
        place = (ident(node) ^ self.me).bit_length() - 1
        bucket = self.buckets.get(place)
        if bucket is not None and node in bucket:
            del bucket[node]
            bucket[node] = now
            return
        if bucket is None:
            if place < 0:
                return  # itself
            bucket = self.buckets[place] = Bucket()
            self.looked.setdefault(place, now)
        if len(bucket) < self.k:
            bucket.enter(node, now)
            self.filled |= 1 << place
            if self.store:
                self._hand_over(ctx, node, place)
        elif place not in self.pinging:
            oldest = next(iter(bucket))
            if now - bucket[oldest] > self.refresh:
                self.pinging.add(place)
                self.call(ctx, oldest, "ping", (), ("evict", place, node))

    def _hand_over(self, ctx: Ctx, node: NodeId, place: int) -> None:
        """Give a new neighbour the records it should have; of all that know it, only the closest to the key does."""
        near, inside = 0, self.filled & ((2 << place) - 1)
        while inside:
            top = inside.bit_length() - 1
            near += len(self.buckets[top])
            if near > 2 * self.settings.replicas + 1:
                return  # too far away to be among the closest to anything that is kept here
            inside ^= 1 << top
        now = ctx.now
        for key, kept in self.store.items():
            target = int.from_bytes(key)
            if self._is_closest(target, node) and node in self.closest(target, self.settings.replicas):
                for record, expiry in kept.values():
                    if expiry > now:
                        ctx.send(node, ("copy", key, (*record[:3], expiry - now)))

    def _is_closest(self, target: int, but: NodeId) -> bool:
        """Whether no contact but one is closer to a place than this node.

        A contact is closer exactly if the highest bit in which it differs from this node is one in which the target
        differs too.
        """
        closer = (target ^ self.me) & self.filled
        if closer & (closer - 1):
            return False  # contacts in two buckets
        return not closer or self.buckets[closer.bit_length() - 1].keys() == {but}

    def drop(self, ctx: Ctx, node: NodeId) -> None:
        """Forget a node."""
        place = (ident(node) ^ self.me).bit_length() - 1
        bucket = self.buckets.get(place)
        if bucket and node in bucket:
            bucket.leave(node)
            if not bucket:
                self.filled ^= 1 << place

    def closest(self, target: int, count: int) -> list[NodeId]:
        """The contacts closest to a place, in any order.

        All of a bucket are closer to it than all of another: first come the buckets whose bit is one in which the
        target differs from this node, from the highest down, then the others, from the lowest up. Only the bucket of
        which some are left over need be sorted.

        >>> node = Kademlia().perfect(0, range(100))
        >>> target = ident(1234)
        >>> known = [other for bucket in node.buckets.values() for other in bucket]
        >>> set(node.closest(target, 8)) == set(sorted(known, key=lambda other: ident(other) ^ target)[:8])
        True
        """
        buckets, filled = self.buckets, self.filled
        found: list[NodeId] = []
        left = (target ^ self.me) & filled
        farther = left ^ filled
        while left and count:
            place = left.bit_length() - 1
            left ^= 1 << place
            bucket = buckets[place]
            if len(bucket) > count:
                return found + bucket.nearest(target, count)
            found += bucket
            count -= len(bucket)
        while farther and count:
            lowest = farther & -farther
            farther ^= lowest
            bucket = buckets[lowest.bit_length() - 1]
            if len(bucket) > count:
                return found + bucket.nearest(target, count)
            found += bucket
            count -= len(bucket)
        return found

    def on_ping(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Alive."""
        _, number = msg
        ctx.send(src, ("pong", number))
        self._heard(ctx, src)

    def on_pong(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The old contact stays; the newcomer is out of luck."""
        _, number = msg
        then = self.answered(src, number)
        if then is not None:
            self._heard(ctx, src)
            self.pinging.discard(then[1])

    # Lookups

    def resolve(self, ctx: Ctx, kind: str, key: bytes, payload: Any, then: Then, deadline: float) -> None:
        """Begin a lookup with the closest contacts."""
        if kind == "get" and (records := self.records(ctx, key)):
            self.resolved(ctx, then, 0, ctx.id, records)
            return
        self._search(ctx, Search(kind, key, payload, then, deadline))

    def _search(self, ctx: Ctx, search: Search) -> None:
        self.number = number = self.number + 1
        self.searches[number] = search
        search.state[ctx.id] = _ANSWERED  # nobody asks itself, whoever may name it
        if search.target != self.me:
            self.looked[(search.target ^ self.me).bit_length() - 1] = ctx.now
        search.add(self.closest(search.target, self.settings.replicas), 1, 3 * self.settings.replicas)
        self._advance(ctx, number, search)

    def _advance(self, ctx: Ctx, number: int, search: Search) -> None:
        """Ask the closest that have not been asked, or end where all of them have answered."""
        state, alpha, done = search.state, self.alpha, True
        for _, node, depth in search.near[: self.settings.replicas]:
            at = state[node]
            if at == _ANSWERED:
                continue
            done = False
            if search.flying >= alpha:
                break
            if at == _NEW:
                state[node] = _ASKED
                search.flying += 1
                self.call(ctx, node, search.kind, search.body, ("search", number, depth))
        if done or ctx.now > search.deadline > 0:
            del self.searches[number]
            self._end(ctx, search)

    def _end(self, ctx: Ctx, search: Search) -> None:
        """Nobody who was asked has a record; one to publish goes to the closest nodes."""
        state = search.state
        answered = [entry for entry in search.near if state[entry[1]] == _ANSWERED][: self.settings.replicas]
        if search.kind == "put":
            self._place(ctx, search, [node for _, node, _ in answered])
        _, holder, hops = answered[0] if answered else (0, -1, None)
        self.resolved(ctx, search.then, hops, holder, ())

    def _place(self, ctx: Ctx, search: Search, closest: list[NodeId]) -> None:
        """A record goes to the closest nodes, of which this one may be one."""
        most, own = self.settings.replicas, self.me ^ search.target
        if len(closest) < most or own < ident(closest[-1]) ^ search.target:
            self.keep(ctx, search.key, search.payload)
            closest = closest[: most - 1]
        copy = ("copy", search.key, search.payload)
        for node in closest:
            ctx.send(node, copy)

    def _asked(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The contacts closest to a key; to somebody who looks for records, those, if there are any."""
        kind, number, key = msg
        if len(key) != KEY_BYTES or not (self.joined or self.buckets):
            return
        records = self.records(ctx, key) if kind == "get" else ()
        near = () if records else tuple(self.closest(int.from_bytes(key), self.settings.replicas))
        ctx.send(src, (_ANSWER[kind], number, near, records))
        self._heard(ctx, src)

    on_get = on_put = on_find = _asked

    def _told(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """An answer: the records, or closer nodes."""
        _, number, nodes, records = msg
        then = self.answered(src, number)
        if then is None:
            return
        self._heard(ctx, src)
        search = self.searches.get(then[1])
        if search is None:
            return
        search.flying -= 1
        search.state[src] = _ANSWERED
        if search.kind == "get" and any(map(is_record, records)):
            del self.searches[then[1]]
            self.resolved(ctx, search.then, then[2], src, records)
            return
        state = search.state
        fresh = tuple([node for node in nodes if node not in state])
        if fresh:
            search.add(self.named(ctx, fresh), then[2] + 1, 3 * self.settings.replicas)
        self._advance(ctx, then[1], search)

    on_got = on_placed = on_found = _told

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """A candidate is dead: the lookup goes on without it. A contact is dead: the newcomer takes its place."""
        if then[0] == "evict":
            self.pinging.discard(then[1])
            self._heard(ctx, then[2])
        elif then[0] == "search" and (search := self.searches.get(then[1])) is not None:
            search.flying -= 1
            search.near = [entry for entry in search.near if entry[1] != to]
            self._advance(ctx, then[1], search)

    # Joining and maintenance

    def join(self, ctx: Ctx, gateway: NodeId) -> None:
        """Look oneself up, from a gateway on."""
        self._heard(ctx, gateway)
        self._search(ctx, Search("find", self.me.to_bytes(KEY_BYTES), (), ("enter",), 0.0))

    def resolved(self, ctx: Ctx, then: Then, hops: int | None, holder: NodeId, records: tuple[Any, ...]) -> None:
        """After the own neighbourhood, every bucket beyond it."""
        if then[0] != "enter":
            super().resolved(ctx, then, hops, holder, records)
        elif hops is not None and not self.joined:
            self.enter(ctx)
            for place in range(min(self.buckets) + 1, 160):
                self._refresh(ctx, place)

    def maintain(self, ctx: Ctx) -> None:
        """Refresh the bucket that has been left alone for the longest time, if for too long."""
        if self.looked:
            place = min(self.looked, key=self.looked.__getitem__)
            if ctx.now - self.looked[place] > self.refresh:
                self._refresh(ctx, place)

    def _refresh(self, ctx: Ctx, place: int) -> None:
        """Look a random identifier of a bucket up."""
        self.looked[place] = ctx.now
        dice = int.from_bytes(ctx.rng.bytes(KEY_BYTES)) & ((1 << place) - 1)
        target = self.me ^ (1 << place) ^ dice
        self._search(ctx, Search("find", target.to_bytes(KEY_BYTES), (), ("refresh",), 0.0))

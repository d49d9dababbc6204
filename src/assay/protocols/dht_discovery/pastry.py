"""Pastry: route by prefix, one digit a hop, with a leaf set of numerical neighbours for the last one.

A key belongs to the node whose identifier is numerically closest, around the ring. The routing table has a row for each
length of common prefix and a column for each next digit (b = 4 bits); of all nodes that fit an entry, the one that
answered fastest is kept. The leaf set holds the L/2 next nodes on either side.

A newcomer routes to its own identifier. Every node on the way sends it the rows it can use; the root's leaf set is
nearly its own. It greets its leaves, who answer with theirs, until nobody new turns up, and announces itself to the
nodes of its table. Every period a node exchanges leaf sets with its right-hand neighbour and with one leaf at random,
asks one node of its table for the row they share, and measures one node of that row that might be nearer than the one
it has. As in MSPastry each node watches its right-hand neighbour, and not every leaf every other one; whoever finds its
neighbour dead tells all leaves.

Rowstron and Druschel, Pastry: Scalable, decentralized object location and routing for large-scale peer-to-peer systems,
Middleware 2001. Castro, Costa and Rowstron, Performance and dependability of structured peer-to-peer overlays,
DSN 2004 (MSPastry).

>>> shared(0xABC << 148, 0xABD << 148), digit(0xABC << 148, 2)
(2, 12)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, ClassVar

from assay.protocols.interface import Ctx, Message, NodeId
from assay.protocols.nodes.overlay import BITS, MASK, Routed, Settings, Then, ident

B = 4
LEAVES = 16
_SIDE = LEAVES // 2


def shared(a: int, b: int) -> int:
    """How many digits two identifiers have in common at the front."""
    return (BITS - (a ^ b).bit_length()) // B


def digit(place: int, row: int) -> int:
    """The digit behind a prefix of this length."""
    return place >> (BITS - B * (row + 1)) & ((1 << B) - 1)


class Pastry(Routed):
    """A node of a Pastry ring."""

    shapes: ClassVar[dict[str, tuple[type, ...]]] = {
        **Routed.shapes,
        "rows": (str, tuple), "hello": (str, int), "leaves": (str, int, tuple), "here": (str,),
        "row": (str, int, int), "entries": (str, int, tuple), "ping": (str, int), "pong": (str, int),
        "gone": (str, int),
    }  # fmt: skip

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.right: list[tuple[int, NodeId]] = []
        """Leaves clockwise, by distance."""
        self.left: list[tuple[int, NodeId]] = []
        self.leaves: set[NodeId] = set()
        """The nodes of both sides."""
        self.table: dict[int, dict[int, NodeId]] = {}
        self.delay: dict[NodeId, float] = {}
        """Of the nodes of the table that have been measured: seconds until the answer."""
        self.greeted: set[NodeId] = set()

    def perfect(self, node: NodeId, members: Sequence[NodeId]) -> Pastry:
        """The tables that a node would have if it knew all members."""
        self.me = ident(node)
        for other in members:
            if other != node:
                self._meet(other)
        self.joined = True
        return self

    # Tables

    def _meet(self, node: NodeId) -> bool:
        """Let a node into the leaf set and into an empty place of the table; whether it became a leaf."""
        place = ident(node)
        row = shared(self.me, place)
        self.table.setdefault(row, {}).setdefault(digit(place, row), node)
        right, left = self.right, self.left
        after, before = (place - self.me) & MASK, (self.me - place) & MASK
        new = False
        if (len(right) < _SIDE or after < right[-1][0]) and (after, node) not in right:
            insort(right, (after, node))
            del right[_SIDE:]
            new = True
        if (len(left) < _SIDE or before < left[-1][0]) and (before, node) not in left:
            insort(left, (before, node))
            del left[_SIDE:]
            new = True
        if new:
            self.leaves = {other for _, other in (*right, *left)}
        return new

    def drop(self, ctx: Ctx, node: NodeId) -> None:
        """Forget a node; where it was a leaf, the outermost leaf on that side knows who follows."""
        place = ident(node)
        row = shared(self.me, place)
        entries = self.table.get(row)
        if entries and entries.get(digit(place, row)) == node:
            del entries[digit(place, row)]
        self.delay.pop(node, None)
        self.greeted.discard(node)
        for side, distance in ((self.right, (place - self.me) & MASK), (self.left, (self.me - place) & MASK)):
            if (distance, node) in side:
                side.remove((distance, node))
                self.leaves.discard(node)
                if side and self.joined:
                    self.call(ctx, side[-1][1], "hello", (), ("leaves",))

    def next_hop(self, key: int, final: bool) -> tuple[NodeId, bool]:
        """The closest leaf, if the key lies among them; else a node that shares one more digit, or at least is closer.

        >>> node = Pastry().perfect(0, range(5))
        >>> [node.next_hop(ident(other), False)[0] for other in range(5)]
        [-1, 1, 2, 3, 4]
        """
        me = self.me
        after, before = (key - me) & MASK, (me - key) & MASK
        right, left = self.right, self.left
        if len(right) < _SIDE or len(left) < _SIDE or after <= right[-1][0] or before <= left[-1][0]:
            return self._closest_leaf(after, before), False
        row = (BITS - (me ^ key).bit_length()) // B
        entries = self.table.get(row)
        if entries is not None:
            entry = entries.get(key >> (BITS - B * (row + 1)) & ((1 << B) - 1))
            if entry is not None:
                return entry, False
        return self._closer(key, row, min(after, before)), False

    def _closest_leaf(self, after: int, before: int) -> NodeId:
        """The leaf numerically closest to a key that lies so far after (before) this node; -1 for this node itself."""
        best, who = min(after, before), -1
        for side, distance in ((self.right, after), (self.left, before)):
            place = bisect_left(side, (distance, -1))
            for offset, node in side[max(place - 1, 0) : place + 1]:
                gap = abs(offset - distance)
                gap = min(gap, MASK + 1 - gap)
                if gap < best or (gap == best and who >= 0 and node < who):
                    best, who = gap, node
        return who

    def _closer(self, key: int, row: int, gap: int) -> NodeId:
        """The rare case: anybody known with as long a prefix who is numerically closer than this node."""
        known = [node for _, node in (*self.right, *self.left)]
        known += [node for level, entries in self.table.items() if level >= row for node in entries.values()]
        best, who = gap, -1
        for node in known:
            place = ident(node)
            distance = min((place - key) & MASK, (key - place) & MASK)
            if distance < best and shared(place, key) >= row:
                best, who = distance, node
        return who

    def neighbours(self) -> list[NodeId]:
        """The closest leaves on both sides, in turn."""
        around = [node for pair in zip(self.right, self.left, strict=False) for _, node in pair]
        return list(dict.fromkeys(around))[: self.settings.replicas - 1]

    # Joining

    def forward(
        self, ctx: Ctx, kind: str, key: bytes, origin: NodeId, ticket: int, hops: int, final: bool, payload: Any
    ) -> None:
        """A newcomer that comes by gets the rows it can use."""
        if kind == "enter" and origin != ctx.id:
            common = shared(self.me, int.from_bytes(key))
            rows = [node for row, entries in self.table.items() if row <= common for node in entries.values()]
            ctx.send(origin, ("rows", (ctx.id, *(node for node in rows if node != origin))))
        super().forward(ctx, kind, key, origin, ticket, hops, final, payload)

    def on_rows(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Part of somebody's table."""
        _, nodes = msg
        for node in self.named(ctx, nodes):
            if node != ctx.id:
                self._meet(node)

    def resolved(self, ctx: Ctx, then: Then, hops: int | None, holder: NodeId, records: tuple[Any, ...]) -> None:
        """The root of one's own identifier is the first leaf to greet."""
        if then[0] != "enter":
            super().resolved(ctx, then, hops, holder, records)
        elif hops is not None and not self.joined and holder != ctx.id:
            self._meet(holder)
            self.call(ctx, holder, "pull", (), ("pull",))
            self._greet(ctx)
            self.enter(ctx)
            for entries in self.table.values():
                for node in entries.values():
                    if node not in self.leaves:
                        ctx.send(node, ("here",))

    def _greet(self, ctx: Ctx) -> None:
        """Say hello to leaves that have not been greeted yet."""
        for _, node in (*self.right, *self.left):
            if node not in self.greeted:
                self.greeted.add(node)
                self.call(ctx, node, "hello", (), ("leaves",))

    def on_hello(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A neighbour exchanges leaf sets."""
        _, number = msg
        if self.joined:
            if src not in self.leaves:
                self._meet(src)
            ctx.send(src, ("leaves", number, tuple(self.leaves)))

    def on_here(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A newcomer, for the table."""
        self._meet(src)

    def on_leaves(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Another leaf set: take in who is near."""
        _, number, nodes = msg
        if self.answered(src, number) is None:
            return
        new = src not in self.leaves and self._meet(src)
        others = tuple([node for node in nodes if node not in self.leaves])
        for node in self._near(self.named(ctx, others)):
            if node != ctx.id and self._is_near(node):
                new = self._meet(node) or new
        if new:
            self._greet(ctx)

    def _near(self, nodes: Sequence[NodeId]) -> list[NodeId]:
        """Those that are no leaves and for which the leaf set has room."""
        leaves, me, right, left = self.leaves, self.me, self.right, self.left
        others = [node for node in nodes if node not in leaves]
        if len(right) < _SIDE or len(left) < _SIDE:
            return others
        first, last = right[-1][0], MASK + 1 - left[-1][0]
        return [node for node in others if not first <= (ident(node) - me) & MASK <= last]

    def _is_near(self, node: NodeId) -> bool:
        """Whether the leaf set has room for a node."""
        place, right, left = ident(node), self.right, self.left
        return (
            len(right) < _SIDE or (place - self.me) & MASK < right[-1][0]
            or len(left) < _SIDE or (self.me - place) & MASK < left[-1][0]
        )  # fmt: skip

    # Maintenance

    def maintain(self, ctx: Ctx) -> None:
        """Exchange leaf sets with the neighbour and one leaf, and a row with one node of the table."""
        rng = ctx.rng
        if self.right:
            others = (*self.right[1:], *self.left)
            self.call(ctx, self.right[0][1], "hello", (), ("watch",))
            if others:
                self.call(ctx, others[int(rng.integers(len(others)))][1], "hello", (), ("leaves",))
        rows = [row for row, entries in self.table.items() if entries]
        if rows:
            row = rows[int(rng.integers(len(rows)))]
            nodes = list(self.table[row].values())
            self.call(ctx, nodes[int(rng.integers(len(nodes)))], "row", (row,), ("row", row, ctx.now))

    def unanswered(self, ctx: Ctx, to: NodeId, then: Then) -> None:
        """The neighbour that one watches is dead: all leaves should see for themselves."""
        if then[0] == "watch":
            for node in self.leaves:
                ctx.send(node, ("gone", to))
        else:
            super().unanswered(ctx, to, then)

    def on_gone(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody says that a node is dead; a leaf is asked before it is dropped."""
        _, node = msg
        if node in self.leaves:
            self.call(ctx, node, "ping", (), ("check",))

    def on_row(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody asks for a row."""
        _, number, row = msg
        if self.joined:
            ctx.send(src, ("entries", number, tuple(self.table.get(row, {}).values())))

    def on_entries(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Fill what is empty; of those that compete with a known node, measure one."""
        _, number, nodes = msg
        then = self.answered(src, number)
        if then is None or then[0] != "row":
            return
        self.delay[src] = ctx.now - then[2]
        me, rivals = self.me, []
        for node in self.named(ctx, nodes):
            place = ident(node)
            if place == me:
                continue
            row = shared(me, place)
            entries, column = self.table.setdefault(row, {}), digit(place, row)
            known = entries.get(column)
            if known is None:
                entries[column] = node
            elif known != node and node not in self.delay:
                rivals.append(node)
        if rivals:
            rival = rivals[int(ctx.rng.integers(len(rivals)))]
            self.call(ctx, rival, "ping", (), ("near", ctx.now))

    def on_pong(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """The nearer of two nodes for one place of the table stays; one that was never measured gives way."""
        _, number = msg
        then = self.answered(src, number)
        if then is not None and then[0] == "near":
            row = shared(self.me, ident(src))
            entries, column = self.table.setdefault(row, {}), digit(ident(src), row)
            self.delay[src] = delay = ctx.now - then[1]
            if column not in entries or delay < self.delay.get(entries[column], 1e9):
                entries[column] = src

"""Agreement on one-way networks with signatures: exact in rounds, approximate in asynchrony; and the usual trimming.

All nodes know the network (a digraph of :mod:`assay.protocols.digraph_auth.digraphs`) and f. The
traitor that matters here is :class:`assay.protocols.faults.two_faced.TwoFaced`: it plays one honest node towards some
and another towards the rest, and forges nobody's signature.

The approximate protocol, in rounds p = 1, 2, …: everybody floods its signed value; everybody floods a signed
acknowledgement of the first value it hears of each node. A value is *certified* once all of reach_w(F) have
acknowledged it, for some node w and some set F of at most f nodes: if any two such sets share more than f nodes, they
share a correct one, which acknowledges once, so nobody has two certified values in one round, and what is certified
for one is so for everybody it reaches. When u has certified values of a whole
source component it floods a signed report of whom it has; once it has all that every node of some reach_u(F) reported,
it drops the f lowest and the f highest, and takes the middle of the rest. Two nodes share a correct reporter, so their
remainders overlap, and the range of the correct values at least halves in every round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from assay.protocols.digraph_auth.digraphs import Digraph, members, reach, sets, source
from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel import wire


class SignedFlooding(Node):
    """Exact agreement on a bit: flood signed inputs along all paths for n rounds, then explain what was heard.

    A set F of at most f nodes explains it if, with F faulty and nobody else, everything that should have come along
    paths without F did come, and no node outside F signed two inputs. The smallest explanation counts; the majority of
    its source component is the decision. Two correct nodes may find different explanations of one traitor, so this
    agrees mostly, not always, even where agreement is possible.
    """

    def __init__(self, graph: Digraph) -> None:
        self.graph = graph
        self.heard: dict[tuple[NodeId, ...], set[int]] = defaultdict(set)
        """The inputs that came along each path; the path ends before this node."""

    def start(self, ctx: Ctx) -> None:
        """Sign the input and send it on its way."""
        bit = int(ctx.input or 0)
        self.heard[ctx.id,].add(bit)
        self._pass(ctx, (ctx.id,), bit, (ctx.sign(_said((ctx.id,), bit)),))
        ctx.timer(len(self.graph) + 1, "decide")

    def _pass(self, ctx: Ctx, path: tuple[NodeId, ...], bit: int, marks: tuple[bytes, ...]) -> None:
        ctx.broadcast(("chain", path, bit, marks), to=ctx.peers)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A chain counts if it comes in its round, along a real path, with every signature."""
        if len(msg) != 4 or msg[0] != "chain":
            return
        _, path, bit, marks = msg
        if not (isinstance(path, tuple) and isinstance(marks, tuple) and bit in (0, 1) and len(path) == len(marks)):
            return
        if len(path) != ctx.now or path[-1:] != (src,) or ctx.id in path or not self._real(path):
            return
        if not all(ctx.verify(path[k], _said(path[: k + 1], bit), marks[k]) for k in range(len(path))):
            return
        self.heard[path].add(bit)
        longer = (*path, ctx.id)
        self._pass(ctx, longer, bit, (*marks, ctx.sign(_said(longer, bit))))

    def _real(self, path: tuple[Any, ...]) -> bool:
        n = len(self.graph)
        if not all(isinstance(node, int) and 0 <= node < n for node in path) or len(set(path)) < len(path):
            return False
        return all(self.graph[a] >> b & 1 for a, b in pairwise(path))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Time to decide."""
        for failed in sets(len(self.graph), ctx.f):
            if not failed >> ctx.id & 1 and (values := self._explained(ctx.id, failed)) is not None:
                core = [values[node] for node in members(source(self.graph, failed)) if node in values]
                if core:
                    ctx.decide(int(2 * sum(core) > len(core)))
                    return
        ctx.decide(0)

    def _explained(self, own: NodeId, failed: int) -> dict[NodeId, int] | None:
        """Everybody's input, if these and only these are faulty; None if that cannot be."""
        values: dict[NodeId, int] = {}
        for path, bits in self.heard.items():
            unlike = len(bits) > 1 or not bits <= {values.setdefault(path[0], min(bits))}
            if unlike and not failed >> path[0] & 1:
                return None
        for path in _paths(self.graph, own):
            if not any(failed >> node & 1 for node in path) and path not in self.heard:
                return None
        return values


def _said(path: Iterable[NodeId], bit: int) -> bytes:
    return wire.encode(("input", *path, bit))


def _paths(graph: Digraph, end: NodeId) -> list[tuple[NodeId, ...]]:
    """All simple paths to a node, without it."""
    found: list[tuple[NodeId, ...]] = []
    stack: list[tuple[NodeId, ...]] = [(end,)]
    while stack:
        path = stack.pop()
        for node in range(len(graph)):
            if graph[node] >> path[0] & 1 and node not in path:
                longer = (node, *path)
                stack.append(longer)
                found.append(longer[:-1])
    return found


class SignedApproximate(Node):
    """Approximate agreement on a number in asynchrony; `rounds` halve the range so many times."""

    def __init__(self, graph: Digraph, rounds: int = 5) -> None:
        self.graph, self.rounds = graph, rounds
        self.round, self.value, self.over = 0, 0.0, False
        self.seen: set[tuple[Any, ...]] = set()
        self.acknowledged: dict[tuple[int, NodeId], float] = {}
        self.marks: dict[tuple[int, NodeId, float], int] = defaultdict(int)
        """Who acknowledged a value of a node in a round, as a mask."""
        self.certified: dict[int, dict[NodeId, float]] = defaultdict(dict)
        """By round; the first of several, should there be any."""
        self.reports: dict[int, dict[NodeId, int]] = defaultdict(dict)
        self.reported = 0
        self.spans: list[float] = []
        """The own value at the start of every round."""

    def start(self, ctx: Ctx) -> None:
        """The first round."""
        self.value = float(ctx.input or 0.0)
        self.f = ctx.f
        faults = [mask for mask in sets(len(self.graph), ctx.f) if not mask >> ctx.id & 1]
        self.quorums = {mask: reach(self.graph, ctx.id, mask) for mask in faults}
        self._next(ctx)

    def _next(self, ctx: Ctx) -> None:
        self.round += 1
        self.spans.append(self.value)
        if self.round > self.rounds:
            self.over = True
            ctx.decide(self.value)
            return
        self._say(ctx, ("value", self.round, ctx.id, self.value))
        self._look(ctx)

    def _say(self, ctx: Ctx, item: Message) -> None:
        """Signs an item of one's own, floods it and takes note of it."""
        self._take(ctx, item, ctx.sign(wire.encode(item)))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Items are flooded: what is new and rightly signed is noted and passed on. They go on after the decision."""
        if len(msg) != 3 or msg[0] != "item" or not isinstance(msg[1], tuple) or not isinstance(msg[2], bytes):
            return
        item, mark = msg[1], msg[2]
        if item in self.seen or not _well_formed(item, len(self.graph)):
            return
        if ctx.verify(item[2], wire.encode(item), mark):
            self._take(ctx, item, mark, src)
            if item[0] != "value" and item[1] == self.round:
                self._look(ctx)

    def _take(self, ctx: Ctx, item: Message, mark: bytes, src: NodeId = -1) -> None:
        """Notes an item and passes it on, except to the node it came from."""
        self.seen.add(item)
        ctx.broadcast(("item", item, mark), to=[peer for peer in ctx.peers if peer != src])
        kind, number, who, *rest = item
        if kind == "value":
            if (number, who) not in self.acknowledged:
                self.acknowledged[number, who] = rest[0]
                self._say(ctx, ("ack", number, ctx.id, who, rest[0]))
        elif kind == "ack":
            self.marks[number, rest[0], rest[1]] |= 1 << who
            mask = self.marks[number, rest[0], rest[1]]
            if any(quorum & ~mask == 0 for quorum in _quorums(self.graph, self.f)):
                self.certified[number].setdefault(rest[0], rest[1])
        else:
            self.reports[number].setdefault(who, rest[0])

    def _look(self, ctx: Ctx) -> None:
        """Goes on as far as what was heard allows."""
        while not self.over:
            certified = self.certified[self.round]
            have = sum(1 << node for node in certified)
            if self.reported < self.round and self._core(have):
                self.reported = self.round
                self._say(ctx, ("report", self.round, ctx.id, have))
            if self.reported < self.round or not self._witnessed(have):
                return
            self.value = _middle(sorted(certified.values()), ctx.f)
            self._next(ctx)

    def _core(self, have: int) -> bool:
        """Whether these contain the source component of what would be left without some f nodes."""
        cores = (source(self.graph, mask) for mask in self.quorums)
        return any(core and core & ~have == 0 for core in cores)

    def _witnessed(self, have: int) -> bool:
        """Whether all of some quorum reported nothing that is missing here."""
        fine = sum(1 << who for who, mask in self.reports[self.round].items() if mask & ~have == 0)
        return any(quorum & ~fine == 0 for quorum in self.quorums.values())


@cache
def _quorums(graph: Digraph, f: int) -> frozenset[int]:
    """All sets reach_w(F), without those that contain another one."""
    n = len(graph)
    found = {reach(graph, node, mask) for node in range(n) for mask in sets(n, f) if not mask >> node & 1}
    return frozenset(one for one in found if not any(other & ~one == 0 and other != one for other in found))


def _well_formed(item: Message, n: int) -> bool:
    shapes = {"value": (float,), "ack": (int, float), "report": (int,)}
    if len(item) < 4 or not isinstance(item[0], str) or item[0] not in shapes:
        return False
    kind, number, who, *rest = item
    if not (isinstance(number, int) and isinstance(who, int) and 0 < number < 1000 and 0 <= who < n):
        return False
    if len(rest) != len(shapes[kind]) or not all(map(isinstance, rest, shapes[kind])):
        return False
    numbers = [value for value in rest if isinstance(value, float)]
    if not all(map(math.isfinite, numbers)):
        return False
    return not (kind == "report" and not 0 <= rest[0] < 1 << n) and not (kind == "ack" and not 0 <= rest[0] < n)


def _middle(values: list[float], f: int) -> float:
    """The middle of what is left without the f lowest and the f highest."""
    kept = values[f : len(values) - f] or values
    return (kept[0] + kept[-1]) / 2


class TrimmedMean(Node):
    """W-MSR: each round drop up to f values above one's own and up to f below, take the mean. No signatures.

    LeBlanc, Zhang, Koutsoukos and Sundaram, Resilient Asymptotic Consensus in Robust Networks, 2013.
    """

    def __init__(self, rounds: int = 5) -> None:
        self.rounds, self.value = rounds, 0.0

    def start(self, ctx: Ctx) -> None:
        """Say the input."""
        self.value = float(ctx.input or 0.0)
        self._say(ctx)

    def _say(self, ctx: Ctx) -> None:
        ctx.broadcast(("mine", self.value), to=ctx.peers)
        ctx.timer(1, "round")

    def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
        """What the in-neighbours said, one value each."""
        said = {src: msg[1] for src, msg in inbox if len(msg) == 2 and isinstance(msg[1], float)}
        heard = sorted(value for value in said.values() if math.isfinite(value))
        below = [value for value in heard if value < self.value][ctx.f :]
        above = [value for value in heard if value > self.value]
        kept = [*below, *above[: max(0, len(above) - ctx.f)], *(v for v in heard if v == self.value), self.value]
        self.value = sum(kept) / len(kept)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """The next round, or the end. A timer rings before the round's messages, so the mean is the last round's."""
        self.rounds -= 1
        if self.rounds < 0:
            ctx.decide(self.value)
        else:
            self._say(ctx)

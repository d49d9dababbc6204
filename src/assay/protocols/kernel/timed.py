"""Simulated time in whole microseconds: every message takes its latency, and time jumps to what comes next."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from assay.protocols.interface import Message, NodeId, Tag
from assay.protocols.kernel.net import latencies, sampler
from assay.protocols.kernel.run import Delivery, Outcome, Run, SimCtx

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

Event = tuple[int, int, NodeId, NodeId, Any, int]
_TIMER, _CHANGE = -1, -2
SECOND = 1_000_000


def run(
    world: World, *, until: Callable[[Outcome], bool] | None = None, limit: float = 3600.0, metered: bool = True,
    traced: bool = False,
) -> Outcome:  # fmt: skip
    """Run in simulated time until `until`, until nothing is under way, or for so many seconds."""
    return Timed(world, metered=metered, traced=traced).go(until, limit)


class TimedCtx(SimCtx):
    """A node's context in simulated time. `now` is written before each step of the node, and only read in it."""

    __slots__ = ("now",)

    now: float

    def __init__(self, run: Run, node: NodeId) -> None:
        super().__init__(run, node)
        self.now = 0.0


class Timed(Run):
    """A world in simulated time. An event is (time, number, destination, source, message, causal depth).

    Messages under way and what is set for later lie apart: a few messages are soon through their heap, while each of
    thousands of nodes has clocks that are looked at every few seconds.
    """

    context = TimedCtx
    ctxs: list[TimedCtx]  # type: ignore[assignment]

    def __init__(self, world: World, *, metered: bool = True, traced: bool = False) -> None:
        super().__init__(world, metered=metered, traced=traced)
        self.time = 0
        self.number = 0
        self.heap: list[Event] = []
        """Messages under way."""
        self.clocks: list[Event] = []
        """Timers, and nodes that come and go."""
        plain = world.net.plain
        self.latency = latencies(world.net, world.seed) if plain else None
        self.copies = [] if plain else [sampler(world.net, world.seed, node) for node in range(self.total)]
        self.count = self.outcome.meter.count
        self.free: dict[tuple[NodeId, NodeId], int] = {}
        self.up = [True] * self.total
        for _, node, up in reversed(world.churn):
            self.up[node] = not up
        for moment, node, up in world.churn:
            self._push(self.clocks, round(moment * SECOND), node, _CHANGE, up, 0)

    @property
    def now(self) -> float:  # type: ignore[override]
        """Seconds since the start."""
        return self.time / SECOND

    def _push(self, heap: list[Event], time: int, dst: NodeId, src: NodeId, body: Any, depth: int) -> None:
        self.number += 1
        heappush(heap, (time, self.number, dst, src, body, depth))

    def post(self, ctx: SimCtx, to: NodeId, msg: Message) -> None:
        """Arrives after its latency."""
        src = ctx.id
        if to == src:
            self.local.append((ctx, msg))
            return
        if self.allowed is not None or not 0 <= to < self.total:
            self.check(src, to)
        if self.metered:
            self.count(self.time, src, to, msg)
        if self.latency is not None:
            self.number = number = self.number + 1
            heappush(self.heap, (self.time + self.latency(src, to), number, to, src, msg, ctx.depth + 1))
            return
        for delay in self.copies[src](to):
            self._push(self.heap, self._arrival(src, to, msg, delay), to, src, msg, ctx.depth + 1)

    def _arrival(self, src: NodeId, to: NodeId, msg: Message, delay: int) -> int:
        """When a copy arrives on a link that has a rate or an order."""
        from assay.protocols.kernel.wire import encode, frame_bits

        net, link = self.world.net, (src, to)
        begun = self.time
        if net.bandwidth is not None:
            begun = max(begun, self.free.get(link, 0)) + round(frame_bits(encode(msg)) / 8 / net.bandwidth * SECOND)
            if not net.fifo:
                self.free[link] = begun
        arrival = begun + delay
        if net.fifo:
            arrival = max(arrival, self.free.get(link, 0))
            self.free[link] = arrival
        return arrival

    def alarm(self, ctx: SimCtx, delay: float, tag: Tag) -> None:
        """Fires after so many seconds, at least a microsecond."""
        self._push(self.clocks, self.time + max(1, round(delay * SECOND)), ctx.id, _TIMER, (ctx.life, tag), ctx.depth)

    def go(self, until: Callable[[Outcome], bool] | None, limit: float) -> Outcome:
        """Event after event."""
        for ctx in self.ctxs:
            if self.up[ctx.id]:
                self.nodes[ctx.id].start(ctx)
                self.settle()
        last = round(limit * SECOND)
        heap, clocks, nodes, ctxs, up, local = self.heap, self.clocks, self.nodes, self.ctxs, self.up, self.local
        meter, traced = self.outcome.meter, self.traced
        while heap or clocks:
            if self.changed and self.over(until):
                return self.end("until")
            sooner = heap if not clocks or (heap and heap[0] < clocks[0]) else clocks
            time, _, dst, src, body, depth = heappop(sooner)
            if time > last:
                self.time = last
                return self.end("limit")
            self.time = time
            ctx = ctxs[dst]
            ctx.now = time / SECOND
            if src < 0:
                self._special(ctx, src, body)
            elif not up[dst]:
                meter.dropped += 1
                continue
            else:
                meter.deliveries += 1
                if depth > ctx.depth:
                    ctx.depth = depth
                    if depth > meter.depth:
                        meter.depth = depth
                if traced:
                    self.outcome.trace.append(Delivery(self.now, src, dst, body))
                nodes[dst].recv(ctx, src, body)
            if local:
                self.settle()
        return self.end("until" if self.changed and self.over(until) else "quiet")

    def _special(self, ctx: SimCtx, src: NodeId, body: Any) -> None:
        """A timer fires, or a node comes or goes."""
        if src == _TIMER:
            life, tag = body
            if self.up[ctx.id] and ctx.life == life:
                self.nodes[ctx.id].timeout(ctx, tag)
            return
        self.up[ctx.id] = body
        if body:
            ctx.life += 1
            self.nodes[ctx.id] = self.world.make(ctx.id)
            self.nodes[ctx.id].start(ctx)

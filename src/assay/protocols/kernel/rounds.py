"""Synchronous rounds: what is sent in one round arrives in the next, or some rounds later if the network is slow.

Inboxes are sorted by sender. Faulty nodes act last in a round and may look at what the correct ones have sent in it
(a rushing adversary). Rounds in which nothing is due and nobody wants to act are jumped over.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from assay.protocols.interface import Message, NodeId, Tag
from assay.protocols.kernel.net import Net, Sampler, sampler
from assay.protocols.kernel.run import Delivery, Outcome, Run, SimCtx
from assay.sim.streams import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

Inboxes = list[list[tuple[NodeId, Message]]]


def run(
    world: World, *, until: Callable[[Outcome], bool] | None = None, limit: float = 10_000, metered: bool = True,
    traced: bool = False,
) -> Outcome:  # fmt: skip
    """Run in rounds until `until`, until nothing is under way, or for so many rounds."""
    return Rounds(world, metered=metered, traced=traced).go(until, limit)


class Rounds(Run):
    """A world in rounds."""

    def __init__(self, world: World, *, metered: bool = True, traced: bool = False) -> None:
        super().__init__(world, metered=metered, traced=traced)
        self.round = 0
        self.coming: Inboxes = [[] for _ in range(self.total)]
        self.waiting = 0  # messages in `coming`
        self.alarms: dict[int, list[tuple[SimCtx, int, Tag]]] = defaultdict(list)
        self.changes = _by_round(world.churn)
        self.up = [True] * self.total
        for _, node, up in reversed(world.churn):
            self.up[node] = not up
        self.channels = None if world.net == Net() else Channels(world, self.total)
        self.faulty = [node for node in range(self.total) if node in world.faults]
        self.peeked: list[tuple[NodeId, NodeId, Message]] | None = [] if self.faulty else None

    def post(self, ctx: SimCtx, to: NodeId, msg: Message) -> None:
        """Arrives in the next round, or when the network likes."""
        src = ctx.id
        if self.allowed is not None or not 0 <= to < self.total:
            self.check(src, to)
        if self.metered and to != src:
            self.outcome.meter.count(self.round, src, to, msg)
        if self.peeked is not None:
            self.peeked.append((src, to, msg))
        if self.channels is not None and to != src:
            self.channels.put(self.round, src, to, msg)
        else:
            self.coming[to].append((src, msg))
            self.waiting += 1

    def alarm(self, ctx: SimCtx, delay: float, tag: Tag) -> None:
        """Fires after so many rounds, at least one."""
        self.alarms[self.round + max(1, math.ceil(delay))].append((ctx, ctx.life, tag))

    def go(self, until: Callable[[Outcome], bool] | None, limit: float) -> Outcome:
        """Round after round."""
        meter = self.outcome.meter
        for ctx, node in zip(self.ctxs, self.nodes, strict=True):
            if self.up[ctx.id]:
                node.start(ctx)
        restless = any(node.every_round for node in self.nodes)
        while True:
            if self.changed and self.over(until):
                return self.end("until")
            upcoming = self.round + 1 if restless or self.waiting else self._next()
            if upcoming is None:
                return self.end("quiet")
            if upcoming > limit:
                return self.end("limit")
            self.round = upcoming
            self.now = float(upcoming)
            self._step()
            meter.rounds = upcoming

    def _next(self) -> int | None:
        """The next round in which something is due."""
        due = [min(table) for table in (self.alarms, self.changes) if table]
        if self.channels is not None and (first := self.channels.first()) is not None:
            due.append(max(first, self.round + 1))
        return min(due, default=None)

    def _step(self) -> None:
        """One round: who comes and goes, then timers, then messages; the correct nodes first."""
        inboxes, self.coming, self.waiting = self.coming, [[] for _ in range(self.total)], 0
        if self.channels is not None:
            self.channels.take(self.round, inboxes)
        for node, up in self.changes.pop(self.round, ()):
            self._change(node, up)
        for ctx, life, tag in self.alarms.pop(self.round, ()):
            if self.up[ctx.id] and ctx.life == life:
                self.nodes[ctx.id].timeout(ctx, tag)
        if self.peeked is None:
            self._act(range(self.total), inboxes)
            return
        honest = [node for node in range(self.total) if node not in self.world.faults]
        self.peeked = []
        self._act(honest, inboxes)
        seen, self.peeked = self.peeked, []
        for node in self.faulty:
            self.nodes[node].fault.on_peek(self.ctxs[node], seen)  # type: ignore[attr-defined]
        self._act(self.faulty, inboxes)
        for inbox in self.coming:
            inbox.sort(key=_sender)

    def _act(self, who: range | list[NodeId], inboxes: Inboxes) -> None:
        nodes, ctxs, up, meter = self.nodes, self.ctxs, self.up, self.outcome.meter
        for node in who:
            inbox = inboxes[node]
            if not up[node]:
                meter.dropped += len(inbox)
                continue
            if inbox:
                if self.traced:
                    self.outcome.trace += [Delivery(self.now, src, node, msg) for src, msg in inbox]
                meter.deliveries += len(inbox)
                nodes[node].tick(ctxs[node], inbox)
            elif nodes[node].every_round:
                nodes[node].tick(ctxs[node], inbox)

    def _change(self, node: NodeId, up: bool) -> None:
        self.up[node] = up
        if up:
            self.ctxs[node].life += 1
            self.nodes[node] = self.world.make(node)
            self.nodes[node].start(self.ctxs[node])


def _sender(pair: tuple[NodeId, Message]) -> NodeId:
    return pair[0]


def _by_round(churn: object) -> dict[int, list[tuple[NodeId, bool]]]:
    changes: dict[int, list[tuple[NodeId, bool]]] = defaultdict(list)
    for time, node, up in churn:  # type: ignore[attr-defined]
        changes[max(1, math.ceil(time))].append((node, up))
    return changes


class Channels:
    """Links that keep messages for some rounds, lose, double or shuffle them, and let only so many through a round."""

    def __init__(self, world: World, total: int) -> None:
        self.net, self.seed = world.net, world.seed
        self.copies: list[Sampler] = [sampler(world.net, world.seed, node, unit=1.0) for node in range(total)]
        self.queues: dict[tuple[NodeId, NodeId], list[tuple[int, Message]]] = {}
        self.shuffling = [stream(world.seed, "reorder", node) for node in range(total)] if world.net.reorder else []

    def put(self, now: int, src: NodeId, dst: NodeId, msg: Message) -> None:
        """A message enters a link."""
        queue = self.queues.setdefault((src, dst), [])
        room = math.inf if self.net.room is None else self.net.room
        for delay in self.copies[src](dst):
            if len(queue) < room:
                queue.append((now + delay, msg))
        if self.shuffling and self.shuffling[src].random() < self.net.reorder:
            order = self.shuffling[src].permutation(len(queue)).tolist()
            queue[:] = [queue[place] for place in order]
        if not queue:
            del self.queues[src, dst]

    def first(self) -> int | None:
        """The round in which the next message is due."""
        return min((due for queue in self.queues.values() for due, _ in queue), default=None)

    def take(self, now: int, inboxes: Inboxes) -> None:
        """Puts what is due into the inboxes, by sender; what a link cannot deliver this round waits."""
        room = self.net.per_round or math.inf
        for link in sorted(self.queues):
            src, dst = link
            kept: list[tuple[int, Message]] = []
            taken = 0
            for entry in self.queues[link]:
                if entry[0] <= now and taken < room and not (kept and self.net.fifo):
                    inboxes[dst].append((src, entry[1]))
                    taken += 1
                else:
                    kept.append(entry)
            if kept:
                self.queues[link] = kept
            else:
                del self.queues[link]
        for inbox in inboxes:
            inbox.sort(key=_sender)

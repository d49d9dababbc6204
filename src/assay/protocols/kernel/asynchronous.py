"""Asynchrony: a scheduler picks which message arrives next. It sees everything and may be malicious.

There is no time: `now` counts deliveries, and a timer is an event like any other, which the scheduler fires when it
likes. A run is determined by the seed and the picks, so it can be replayed, cut short and shrunk. Where the world's
network is `fifo`, what one node sends to another arrives in the order of sending: the scheduler may pick only the
first of each link.

>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.broadcast import Bracha
>>> world = World(n=4, f=1, node=Bracha, inputs=["hello"])
>>> outcome = world.run("async", scheduler=Random(seed=3))
>>> sorted(outcome.decided().values()), outcome.stopped
(['hello', 'hello', 'hello', 'hello'], 'quiet')
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.protocols.interface import Message, NodeId, Tag
from assay.protocols.kernel.run import Delivery, Outcome, Run, SimCtx
from assay.sim.streams import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World


class Event(NamedTuple):
    """Something that may happen next: a message arrives, or (src is -1) a timer fires."""

    number: int
    """In the order of sending."""
    src: NodeId
    dst: NodeId
    msg: Message
    """The message, or the timer's tag in a tuple."""
    depth: int

    @property
    def identity(self) -> tuple[NodeId, NodeId, Message]:
        """What it is, whatever number it got."""
        return self.src, self.dst, self.msg


class Scheduler:
    """Who picks. The first one sent, unless a subclass knows something worse."""

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """The place in `pending` of what happens next; -1 ends the run, though something is under way."""
        return min(range(len(pending)), key=lambda place: pending[place].number)


class Fifo(Scheduler):
    """The first one sent, but timers only when there is nothing else."""

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Messages first."""
        return min(range(len(pending)), key=lambda place: (pending[place].src < 0, pending[place].number))


class Random(Scheduler):
    """Uniformly at random; a timer has a message's chance times `timers`."""

    def __init__(self, seed: int = 0, timers: float = 0.1) -> None:
        self.rng = stream(seed, "scheduler")
        self.timers = timers
        self._words: list[float] = []

    def word(self) -> float:
        """A number from 0 to 1."""
        if not self._words:
            self._words = self.rng.random(512).tolist()
        return self._words.pop()

    def among(self, pending: Sequence[Event], view: Asynchronous, wanted: Callable[[Event], bool]) -> int:
        """One of the wanted at random; anything, where there is none. Mostly a few draws find one."""
        for _ in range(8):
            place = int(self.word() * len(pending))
            if wanted(pending[place]):
                return place
        places = [place for place, event in enumerate(pending) if wanted(event)]
        return places[int(self.word() * len(places))] if places else Random.pick(self, pending, view)

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Anything; a timer that is drawn is mostly put back while there are messages."""
        for _ in range(64):
            place = int(self.word() * len(pending))
            if pending[place].src >= 0 or self.word() < self.timers:
                return place
        return place


class DelayVictim(Random):
    """What concerns the victims waits until nothing else is left."""

    def __init__(self, victims: Collection[NodeId], seed: int = 0) -> None:
        super().__init__(seed)
        self.victims = frozenset(victims)

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """A message among the others at random, if there is one."""
        victims = self.victims
        return self.among(
            pending, view, lambda event: event.src >= 0 and event.src not in victims and event.dst not in victims
        )


class SplitBrain(Random):
    """Two halves that hear each other only when nothing moves inside either."""

    def __init__(self, half: Collection[NodeId], seed: int = 0) -> None:
        super().__init__(seed)
        self.half = frozenset(half)

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Inside a half first."""
        half = self.half
        return self.among(pending, view, lambda event: event.src >= 0 and (event.src in half) == (event.dst in half))


class QuorumStarver(Random):
    """Gives to the node that has got most, so that the others stay below their quorums as long as possible."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.got: dict[NodeId, int] = {}

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """The best-fed receiver's next message; timers last."""
        best = max(
            range(len(pending)),
            key=lambda place: (pending[place].src >= 0, self.got.get(pending[place].dst, 0), -pending[place].number),
        )
        self.got[pending[best].dst] = self.got.get(pending[best].dst, 0) + 1
        return best


class Partitioned(Scheduler):
    """Groups of nodes that hear nothing of each other from one delivery on, until another; then what waited comes.

    Who is in no group hears everybody. Where nothing but messages between groups is left, a partition that ends ends
    now (deliveries are the only clock there is), and one that never ends ends the run.
    """

    def __init__(
        self, inner: Scheduler, groups: Sequence[Collection[NodeId]], start: float = 0, stop: float = math.inf
    ) -> None:
        self.inner, self.start, self.stop = inner, start, stop
        self.group = {node: place for place, nodes in enumerate(groups) for node in nodes}

    def cut(self, event: Event) -> bool:
        """Whether it goes from one group to another."""
        one, other = self.group.get(event.src), self.group.get(event.dst)
        return one is not None and other is not None and one != other

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """What the scheduler inside picks of what may pass."""
        if not self.start <= view.steps < self.stop:
            return self.inner.pick(pending, view)
        places = [place for place, event in enumerate(pending) if not self.cut(event)]
        if not places:
            self.stop = view.steps if self.stop < math.inf else self.stop
            return self.inner.pick(pending, view) if self.stop < math.inf else -1
        picked = self.inner.pick([pending[place] for place in places], view)
        return places[picked] if picked >= 0 else picked


class Replay(Scheduler):
    """Repeats a list of events by what they are; those that are not under way are left out, and then it ends."""

    def __init__(self, events: Sequence[tuple[NodeId, NodeId, Message]]) -> None:
        self.rest = list(events)[::-1]
        self.done: list[tuple[NodeId, NodeId, Message]] = []

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """The next of the list that is under way."""
        while self.rest:
            wanted = self.rest.pop()
            for place, event in enumerate(pending):
                if event.identity == wanted:
                    self.done.append(wanted)
                    return place
        return -1


def run(
    world: World, *, scheduler: Scheduler | None = None, until: Callable[[Outcome], bool] | None = None,
    limit: float = 1_000_000, metered: bool = True, traced: bool = False,
) -> Outcome:  # fmt: skip
    """Run under the scheduler (`Random` with the world's seed) until `until`, to the end, or for so many deliveries."""
    under_way = Asynchronous(world, metered=metered, traced=traced)
    return under_way.go(scheduler or Random(world.seed), until, limit)


class Asynchronous(Run):
    """A world under a scheduler. `pending` is what may happen next; `deliver` makes one of it happen."""

    def __init__(self, world: World, *, metered: bool = True, traced: bool = False) -> None:
        if world.churn:
            raise ValueError("churn needs time; run in rounds or timed, or use Crash faults")
        super().__init__(world, metered=metered, traced=traced)
        self.steps = self.number = 0
        self.pending: list[Event] = []
        self.behind: dict[tuple[NodeId, NodeId], deque[Event]] | None = {} if world.net.fifo else None
        """In a network that keeps the order: of each link with a message under way, those that must wait for it."""

    @property
    def now(self) -> float:  # type: ignore[override]
        """Deliveries so far."""
        return float(self.steps)

    def post(self, ctx: SimCtx, to: NodeId, msg: Message) -> None:
        """Becomes pending."""
        src = ctx.id
        if to == src:
            self.local.append((ctx, msg))
            return
        if self.allowed is not None or not 0 <= to < self.total:
            self.check(src, to)
        if self.metered:
            self.outcome.meter.count(self.steps, src, to, msg)
        self.number = number = self.number + 1
        event = Event(number, src, to, msg, ctx.depth + 1)
        if self.behind is None:
            self.pending.append(event)
        else:
            self._queue(event)

    def _queue(self, event: Event) -> None:
        assert self.behind is not None
        link = event.src, event.dst
        if link in self.behind:
            self.behind[link].append(event)
        else:
            self.behind[link] = deque()
            self.pending.append(event)

    def _advance(self, link: tuple[NodeId, NodeId]) -> None:
        """The link's next message may arrive."""
        assert self.behind is not None
        if self.behind[link]:
            self.pending.append(self.behind[link].popleft())
        else:
            del self.behind[link]

    def inject(self, src: NodeId, to: NodeId, msg: Message) -> None:
        """A message that nobody's code sent: what a Byzantine node might say."""
        self.number += 1
        event = Event(self.number, src, to, msg, 1)
        if self.behind is None:
            self.pending.append(event)
        else:
            self._queue(event)

    def alarm(self, ctx: SimCtx, delay: float, tag: Tag) -> None:
        """May fire from now on."""
        self.number += 1
        self.pending.append(Event(self.number, -1, ctx.id, (tag,), ctx.depth))

    def deliver(self, place: int) -> Event:
        """Makes the event at this place of `pending` happen."""
        pending = self.pending
        event = pending[place]
        pending[place] = pending[-1]
        pending.pop()
        self.steps += 1
        _, src, dst, msg, depth = event
        if self.behind is not None and src >= 0:
            self._advance((src, dst))
        ctx, meter = self.ctxs[dst], self.outcome.meter
        if self.metered:
            meter.note(event.number)
        if depth > ctx.depth:
            ctx.depth = depth
            meter.depth = max(meter.depth, depth)
        if self.traced:
            self.outcome.trace.append(Delivery(self.now, src, dst, msg))
        if src < 0:
            self.nodes[dst].timeout(ctx, msg[0])
        else:
            meter.deliveries += 1
            self.nodes[dst].recv(ctx, src, msg)
        if self.local:
            self.settle()
        return event

    def go(self, scheduler: Scheduler, until: Callable[[Outcome], bool] | None, limit: float) -> Outcome:
        """Pick after pick."""
        self.begin()
        while self.pending:
            if self.changed and self.over(until):
                return self.end("until")
            if self.steps >= limit:
                return self.end("limit")
            place = scheduler.pick(self.pending, self)
            if place < 0:
                return self.end("scheduler")
            self.deliver(place)
        return self.end("until" if self.changed and self.over(until) else "quiet")

    # ---------------------------------------------------------------- for those who try more than one continuation

    def save(self) -> bytes:
        """The whole state, to come back to."""
        outcome = self.outcome
        ctxs = [(ctx.depth, ctx._rng) for ctx in self.ctxs]
        way = self.pending, self.behind
        kept: Any = (self.nodes, ctxs, way, self.steps, self.number, outcome.log, outcome.operations)
        return pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)

    def load(self, saved: bytes) -> None:
        """Back to a saved state; the meter runs on."""
        outcome = self.outcome
        self.nodes, ctxs, way, self.steps, self.number, outcome.log, outcome.operations = pickle.loads(saved)
        self.pending, self.behind = way
        outcome.nodes = self.nodes
        for ctx, (depth, rng) in zip(self.ctxs, ctxs, strict=True):
            ctx.depth, ctx._rng = depth, rng
        for decided in outcome.decisions.values():
            decided.clear()
        for entry in outcome.log:
            outcome.decisions[entry.node].setdefault(entry.slot, entry.value)

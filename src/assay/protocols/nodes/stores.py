"""A replicated register store whose three promises are knobs, and the sessions that use it.

A replica takes writes, sends them to the others and answers reads from what it shows. Its :class:`Design` says

- `wait`: what must be shown before a write is (closure): *nothing*, its *writer*'s earlier writes, or all its *causes*;
- `order`: which of several writes to a key counts as the last: the last to *arrive*, the highest *wall* clock, the
  highest *lamport* clock, or the last in the order of a *leader*, through whom all writes then go;
- `deadline`: how long an answer may wait for these promises; when it is over, the answer is what is there;
- `returns`: the *last* value, all concurrent ones (*multi*), all ever written (*merge*), or every key (*snapshot*).

The named stores are designs (:data:`PRESETS`). A replica decides what it shows, place by place, so that
`Outcome.conflicts` tells whether all show beginnings of one sequence. Sessions stay at home or roam, and carry what
they have seen with them; their calls and returns make the history that the judges read.

>>> from assay.protocols.kernel.world import World
>>> replicas = [Replica(PRESETS["causal+"]) for _ in range(3)]
>>> sessions = [Session(home, (("write", "x"), ("read", "x"))) for home in range(3)]
>>> outcome = World(3, replicas, clients=sessions).run("timed", limit=1.0)
>>> sorted(operation.f for operation in outcome.operations), {operation.status for operation in outcome.operations}
(['read', 'read', 'read', 'write', 'write', 'write'], {'ok'})
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag
from assay.sim.random import stream

WAITS = ("nothing", "writer", "causes")
ORDERS = ("arrival", "wall", "lamport", "leader")
RETURNS = ("last", "multi", "merge", "snapshot")
WriteId = tuple[NodeId, int]
"""The replica that took the write, and how many it had taken by then."""
Clock = tuple[int, ...]
"""Of every member: how many of its writes are meant."""


@dataclass(frozen=True)
class Design:
    """A store's promises."""

    wait: str = "nothing"
    order: str = "arrival"
    deadline: float = math.inf
    returns: str = "last"
    reads_ordered: bool = False
    """With a leader: reads too go through it, which makes them linearizable."""

    def __post_init__(self) -> None:
        for name, known in (("wait", WAITS), ("order", ORDERS), ("returns", RETURNS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} '{getattr(self, name)}'; one of {', '.join(known)} expected")
        if self.reads_ordered and self.order != "leader":
            raise ValueError("reads can be ordered only where a leader orders; order 'leader' expected")


PRESETS: dict[str, Design] = {
    "eventual": Design(order="wall", deadline=0.0),
    "pram": Design(wait="writer"),
    "causal": Design(wait="causes"),
    "causal+": Design(wait="causes", order="lamport"),
    "sequential": Design(wait="causes", order="leader"),
    "linearizable": Design(wait="causes", order="leader", reads_ordered=True),
}


@dataclass(frozen=True)
class Write:
    """A write as a replica knows it: what it was told, which may be less than there was."""

    id: WriteId
    key: Any
    value: Any
    deps: Clock | None
    """What its writer had seen; None where that was not kept."""
    lamport: int
    wall: float

    def follows(self, other: Write) -> bool:
        """Whether its writer had seen the other one, as far as that was kept."""
        return self.deps is not None and other.id[1] <= self.deps[other.id[0]]


@dataclass
class Request:
    """What a session asked and has not been told yet."""

    client: NodeId
    number: int
    f: str
    key: Any
    value: Any
    context: Clock


class Replica(Node):
    """One copy. `members` are the ids of all copies, and places in clocks; `skew` is how wrong its clock goes."""

    def __init__(
        self, design: Design, *, skew: float = 0.0, members: Sequence[NodeId] | None = None, repair: float = 0.0,
        relay: bool = False,
    ) -> None:  # fmt: skip
        """With `repair`, the replica asks another one every so many seconds for what it missed.

        With `relay` it passes on what it hears: on links that keep their order, causes then never come after effects.
        """
        self.design, self.skew, self.repair, self.relay = design, skew, repair, relay
        self.members: tuple[NodeId, ...] = tuple(members) if members is not None else ()
        self.place = 0
        self.lamport = self.taken = self.applied = 0
        self.known: dict[WriteId, Write] = {}
        self.shown: list[Write] = []
        self.counts: list[int] = []
        self.hidden: dict[WriteId, Write] = {}
        self.last: dict[Any, Write] = {}
        self.siblings: dict[Any, list[Write]] = {}
        self.requests: dict[tuple[NodeId, int], Request] = {}
        self.log: list[tuple[Any, ...]] = []
        self.early: dict[int, tuple[Any, ...]] = {}
        self.executed: set[tuple[NodeId, int]] = set()

    def start(self, ctx: Ctx) -> None:
        """Learn who the others are."""
        self.members = self.members or tuple(range(ctx.n))
        self.place = self.members.index(ctx.id)
        self.counts = [0] * len(self.members)
        if self.repair:
            ctx.timer(self.repair * (1 + ctx.rng.random()), ("repair",))

    @property
    def _leader(self) -> NodeId:
        return self.members[0]

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """What has another shape is ignored."""
        match msg:
            case ("ask", int(number), ("read" | "write") as f, key, value, context) if self._is_clock(context):
                self._ask(ctx, Request(src, number, f, key, value, context))
            case ("put", (int(), int()) as name, key, value, deps, int(lamport), float(wall)) if src in self.members:
                if 0 <= name[0] < len(self.members) and (deps is None or self._is_clock(deps)):
                    self._learn(ctx, Write(name, key, value, deps, lamport, wall))
            case ("forward", *entry) if ctx.id == self._leader and self._is_entry(entry):
                self._sequence(ctx, tuple(entry))
            case ("log", int() | None as place, *entry) if src == self._leader and self._is_entry(entry):
                self._append(ctx, place, tuple(entry))
            case ("have", clock, int(applied)) if src in self.members and self._is_clock(clock):
                self._catch_up(ctx, src, clock, applied)
            case ("tail", int(start)) if start >= 0:
                items = tuple((write.id[0], write.key, write.value) for write in self.shown[start : start + 16])
                ctx.send(src, ("tail", start, items))

    def _is_clock(self, value: Any) -> bool:
        whole = isinstance(value, tuple) and len(value) == len(self.members)
        return whole and all(isinstance(count, int) for count in value)

    def _is_entry(self, entry: Sequence[Any]) -> bool:
        match entry:
            case (int(place), int(), int(), str(), _, _, context):
                return 0 <= place < len(self.members) and self._is_clock(context)
        return False

    # --------------------------------------------------------------------------------------- what sessions ask

    def _ask(self, ctx: Ctx, request: Request) -> None:
        """Answer at once if nothing is missing; else when it comes, or when the deadline is over."""
        self.requests[request.client, request.number] = request
        ordered = self.design.order == "leader" and (request.f == "write" or self.design.reads_ordered)
        if ordered:
            entry = (self.place, request.client, request.number, request.f, request.key, request.value, request.context)
            ctx.send(self._leader, ("forward", *entry))
        else:
            self._try(ctx, request)
        if (request.client, request.number) in self.requests and self.design.deadline < math.inf:
            ctx.timer(self.design.deadline, ("deadline", request.client, request.number))

    def _try(self, ctx: Ctx, request: Request) -> None:
        """Serve a request that goes through nobody else, unless its session has seen more than is shown here."""
        ordered = self.design.order == "leader" and (request.f == "write" or self.design.reads_ordered)
        if not ordered and (self.design.wait == "nothing" or self._covers(request.context)):
            self._serve(ctx, request)

    def _covers(self, clock: Clock) -> bool:
        if self.design.wait == "writer":  # a session's own replica is the writer: it need not wait for others
            return clock[self.place] <= self.counts[self.place]
        return all(have >= wanted for have, wanted in zip(self.counts, clock, strict=True))

    def _serve(self, ctx: Ctx, request: Request) -> None:
        """Answer now, with what is here."""
        if self.requests.pop((request.client, request.number), None) is None:
            return
        result = None
        if request.f == "write":
            self._take(ctx, request)
        else:
            result = self.answer(request.key)
        ctx.send(request.client, ("answer", request.number, result, tuple(self.counts)))

    def _take(self, ctx: Ctx, request: Request) -> None:
        """A new write begins here."""
        deps = tuple(max(mine, theirs) for mine, theirs in zip(self.counts, request.context, strict=True))
        self.taken += 1
        self.lamport += 1
        wall = ctx.now + self.skew
        write = Write((self.place, self.taken), request.key, request.value, deps, self.lamport, wall)
        self.known[write.id] = write
        self._tell(ctx, write)
        self._show(ctx, write)

    def answer(self, key: Any) -> Any:
        """What a read of the key returns."""
        match self.design.returns:
            case "multi":
                return tuple(sorted((write.value for write in self.siblings.get(key, ())), key=repr))
            case "merge":
                return tuple(sorted({write.value for write in self.shown if write.key == key}, key=repr))
            case "snapshot":
                return tuple(sorted(((one, write.value) for one, write in self.last.items()), key=repr))
        return self.last[key].value if key in self.last else None

    # ------------------------------------------------------------------------------------ what other copies say

    def _tell(self, ctx: Ctx, write: Write) -> None:
        message = ("put", write.id, write.key, write.value, write.deps, write.lamport, write.wall)
        ctx.broadcast(message, [other for other in self.members if other != ctx.id])

    def _learn(self, ctx: Ctx, write: Write) -> None:
        """Show what may be shown now."""
        if write.id in self.known:
            return
        self.known[write.id] = write
        self.lamport = max(self.lamport, write.lamport)
        if self.relay:
            self._tell(ctx, write)
        self.hidden[write.id] = write
        ready: list[Write] | None = None
        while ready is None or ready:
            ready = [one for one in self.hidden.values() if self._ready(one)]
            for one in ready:
                del self.hidden[one.id]
                self._show(ctx, one)

    def _ready(self, write: Write) -> bool:
        if self.design.wait == "nothing":
            return True
        writer, number = write.id
        if self.design.wait == "writer":
            return self.counts[writer] >= number - 1
        if write.deps is None:  # its causes are not known any more, so nobody can say that they are all here
            return False
        return all(have >= wanted for have, wanted in zip(self.counts, write.deps, strict=True))

    def _show(self, ctx: Ctx, write: Write) -> None:
        """From now on readers see it."""
        ctx.decide(write.id, slot=len(self.shown))
        self.shown.append(write)
        writer = write.id[0]
        self.counts[writer] = max(self.counts[writer], write.id[1])
        before = self.last.get(write.key)
        if before is None or self._stamp(write) >= self._stamp(before):
            self.last[write.key] = write
        rest = [one for one in self.siblings.get(write.key, []) if not write.follows(one)]
        if not any(one.follows(write) for one in rest):
            rest.append(write)
        self.siblings[write.key] = rest
        for request in list(self.requests.values()):
            self._try(ctx, request)

    def _stamp(self, write: Write) -> tuple[float, int]:
        match self.design.order:
            case "wall":
                return write.wall, write.id[0]
            case "lamport":
                return float(write.lamport), write.id[0]
        return 0.0, 0  # all alike: the later one shown is the last

    # --------------------------------------------------------------------------------------------- the leader

    def _sequence(self, ctx: Ctx, entry: tuple[Any, ...]) -> None:
        """The leader gives an entry its place."""
        self.log.append(entry)
        ctx.broadcast(("log", len(self.log), *entry), self.members)

    def _append(self, ctx: Ctx, place: int | None, entry: tuple[Any, ...]) -> None:
        """Entries are shown in their places; one whose place was not kept, when it comes."""
        if place is None:
            self._execute(ctx, entry)
            return
        if place > self.applied:
            self.early[place] = entry
        while self.applied + 1 in self.early:
            self.applied += 1
            self._execute(ctx, self.early.pop(self.applied))

    def _execute(self, ctx: Ctx, entry: tuple[Any, ...]) -> None:
        origin, client, number, f, key, value, context = entry
        if (client, number) in self.executed:
            return
        self.executed.add((client, number))
        if f == "write":
            name = (origin, self.counts[origin] + 1)
            self._show(ctx, Write(name, key, value, context, self.applied, ctx.now))
        if origin == self.place and (request := self.requests.pop((client, number), None)):
            result = None if f == "write" else self.answer(key)
            ctx.send(request.client, ("answer", number, result, tuple(self.counts)))

    # ----------------------------------------------------------------------------------------- time and repair

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """A deadline is over, or it is time to ask what was missed."""
        match tag:
            case ("deadline", int(client), int(number)) if (client, number) in self.requests:
                self._serve(ctx, self.requests[client, number])
            case ("repair",):
                others = [other for other in self.members if other != ctx.id]
                asked = self._leader if self.design.order == "leader" else others[int(ctx.rng.integers(len(others)))]
                ctx.send(asked, ("have", self._contiguous(), self.applied))
                ctx.timer(self.repair * (1 + ctx.rng.random()), tag)

    def _contiguous(self) -> Clock:
        """Of every member, how many of its first writes are known without a gap."""
        counts = [0] * len(self.members)
        for writer in range(len(self.members)):
            while (writer, counts[writer] + 1) in self.known:
                counts[writer] += 1
        return tuple(counts)

    def _catch_up(self, ctx: Ctx, src: NodeId, clock: Clock, applied: int) -> None:
        for place, entry in enumerate(self.log[max(applied, 0) :], max(applied, 0) + 1):
            ctx.send(src, ("log", place, *entry))
        for write in list(self.known.values()):
            if write.id[1] > clock[write.id[0]]:
                message = ("put", write.id, write.key, write.value, write.deps, write.lamport, write.wall)
                ctx.send(src, message)


# ------------------------------------------------------------------------------------------------------- sessions


class Session(Node):
    """Asks one operation after the other, at home or (with `roam`) anywhere, and carries what it has seen with it.

    Every written value is different. After its script the session waits for `settle` seconds and reads all keys at
    home: what it gets then shows whether the copies agree.
    """

    def __init__(
        self, home: NodeId, script: Sequence[tuple[str, Any]], *, think: float = 0.0, roam: Sequence[NodeId] = (),
        settle: float = math.inf, members: int = 0, carries: bool = True,
    ) -> None:  # fmt: skip
        self.home, self.script, self.think = home, tuple(script), think
        self.roam, self.settle, self.carries = tuple(roam), settle, carries
        self.members = members
        self.seen: list[int] = []
        self.number = 0
        self.operation = -1

    def start(self, ctx: Ctx) -> None:
        """The first operation."""
        self.seen = [0] * (self.members or ctx.n)
        self._pause(ctx)

    def _pause(self, ctx: Ctx) -> None:
        if self.number < len(self.script):
            ctx.timer(float(ctx.rng.exponential(self.think)) if self.think else 0.0, ("next", self.number))
        elif self.number == len(self.script) and self.settle < math.inf:
            keys = sorted({key for _, key in self.script}, key=repr)
            self.script += tuple(("read", key) for key in keys)
            self.roam, wait, self.settle = (), self.settle, math.inf
            ctx.timer(wait, ("next", self.number))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Ask the next one."""
        if tag != ("next", self.number):
            return
        f, key = self.script[self.number]
        value = ctx.id * 1_000_000 + self.number + 1 if f == "write" else None
        self.number += 1
        self.operation = ctx.invoke(f, key, value)
        at = self.roam[int(ctx.rng.integers(len(self.roam)))] if self.roam else self.home
        context = tuple(self.seen) if self.carries else (0,) * len(self.seen)
        ctx.send(at, ("ask", self.number, f, key, value, context))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """An answer."""
        match msg:
            case ("answer", int(number), result, tuple() as counts) if number == self.number and self.operation >= 0:
                if len(counts) == len(self.seen) and all(isinstance(count, int) for count in counts):
                    self.seen = [max(old, new) for old, new in zip(self.seen, counts, strict=True)]
                ctx.complete(self.operation, result)
                self.operation = -1
                self._pause(ctx)


def script(seed: int, who: int, operations: int, keys: int, writes: float = 0.5) -> tuple[tuple[str, str], ...]:
    """Reads and writes at random, as a session's script.

    >>> script(0, 0, 3, keys=2)
    (('write', 'k0'), ('write', 'k0'), ('write', 'k1'))
    """
    random = stream(seed, "script", who)
    kinds = random.random(operations) < writes
    chosen = random.integers(0, keys, operations)
    return tuple(("write" if kind else "read", f"k{key}") for kind, key in zip(kinds, chosen, strict=True))


class Bridge(Node):
    """Moves what one store shows into another, in the order shown: each write to the copy of the same place.

    It writes one after the other and carries what it has seen, as a careful session does.
    """

    def __init__(self, source: NodeId, targets: Sequence[NodeId], poll: float = 0.01) -> None:
        self.source, self.targets, self.poll = source, tuple(targets), poll
        self.copied = 0
        self.waiting: list[tuple[int, Any, Any]] = []
        self.seen: list[int] = []

    def start(self, ctx: Ctx) -> None:
        """Begin at the beginning."""
        self.seen = [0] * len(self.targets)
        ctx.timer(self.poll, ("poll",))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Ask for more."""
        ctx.send(self.source, ("tail", self.copied))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """New writes, or an answer to the last one written."""
        match msg:
            case ("tail", int(start), tuple() as items) if start == self.copied and not self.waiting:
                self.waiting = list(items)
                self._write(ctx)
            case ("answer", int(number), _, tuple() as counts) if number == self.copied + 1 and self.waiting:
                self.seen = [max(old, new) for old, new in zip(self.seen, counts, strict=True)]
                self.copied += 1
                self.waiting.pop(0)
                self._write(ctx)

    def _write(self, ctx: Ctx) -> None:
        if self.waiting:
            place, key, value = self.waiting[0]
            ctx.send(self.targets[place], ("ask", self.copied + 1, "write", key, value, tuple(self.seen)))
        else:
            ctx.timer(self.poll, ("poll",))


# ------------------------------------------------------------------------------------- what is done to the store


@dataclass
class Split(Fault):
    """From `since` to `until` nothing passes between a node outside the group and one inside."""

    group: Collection[NodeId]
    since: float = 0.0
    until: float = math.inf

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """Lost at the border."""
        parted = (ctx.id in self.group) != (to in self.group) and self.since <= ctx.now < self.until
        return () if parted and to < ctx.n else ((to, msg),)


@dataclass
class Burst(Fault):
    """From `since` to `until` this share of the writes that it tells the others is lost."""

    share: float
    since: float = 0.0
    until: float = math.inf

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """Lost at random."""
        lossy = msg[0] == "put" and self.since <= ctx.now < self.until
        return () if lossy and ctx.rng.random() < self.share else ((to, msg),)


@dataclass
class Forget(Fault):
    """What is sent has lost its past: dependencies, logical clocks and places in an order are blank."""

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """Blanked."""
        match msg:
            case ("put", name, key, value, _, _, wall):
                return ((to, ("put", name, key, value, None, 0, wall)),)
            case ("log", _, *entry):
                return ((to, ("log", None, *entry)),)
        return ((to, msg),)

"""Every schedule, up to a bound: depth-first search over what may happen next, for worlds of three or four nodes.

A Byzantine node is an *arsenal*: all messages of a finite alphabet that it might ever send, to whom it might send them,
are under way from the start, and each may arrive at any time or never. That covers whatever it could do with them.

>>> from assay.protocols.faults import Chaos
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.broadcast import Bracha
>>> world = World(n=4, f=1, node=Bracha, faults={0: Chaos()})
>>> lies = [("send", "a"), ("send", "b"), ("echo", "a"), ("echo", "b"), ("ready", "a"), ("ready", "b")]
>>> found = explore(world, lambda world, outcome: "split" if outcome.conflicts else None, arsenal(world, lies))
>>> found.complete, found.violation
(True, None)

Three things keep the number of states small, and none of them loses a decision that some schedule leads to:

- Deliveries to different nodes commute. Of their orders one is enough (sleep sets: Godefroid, Partial-order methods for
  the verification of concurrent systems, 1996), and a state that was seen is not explored again unless with transitions
  that slept the first time.
- A delivery that sends nothing and decides nothing is *silent*: nobody else can tell when it happened. So it waits
  until it matters: a step of the search is some silent deliveries to a node and then one that is not, and every one of
  the silent ones is needed: without it, the last would have done something else.
- What a node does is a function of its state and of what arrives. It is computed once and remembered.

There is no time: `now` is always 0. Timers fire when the search likes, each node's at most `timers` times. Histories of
clients are not recorded: their order is exactly what the search does not distinguish.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.signatures import Ideal
from assay.sim.random import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

Identity = tuple[NodeId, NodeId, Message]
"""From, to, message; from -1 where a timer fires."""
Judge = Callable[["World", Outcome], str | None]
"""Says in a sentence what went wrong in a run; None if nothing did."""
SILENT = 5_000  # sequences of silent deliveries to one node that are looked at, at most


@dataclass(frozen=True)
class Explored:
    """What the search has seen."""

    states: int
    transitions: int
    complete: bool
    """Whether every schedule was covered, within the bound on timers and the alphabet of the arsenal."""
    violation: tuple[Identity, ...] | None
    """Deliveries that lead to it, in order."""
    why: str
    """The judge's sentence, or which bound ended the search."""
    seconds: float
    decisions: int
    """Different sets of decisions that were reached, where anything was decided: 0 says that nothing was judged."""


def arsenal(world: World, messages: Iterable[Message]) -> list[Identity]:
    """Each of these messages, from each faulty node to each other one."""
    others = [node for node in range(world.n + len(world.clients)) if node not in world.faults]
    return [(src, dst, msg) for msg in messages for src in sorted(world.faults) for dst in others]


def explore(
    world: World, judge: Judge, arsenal: Sequence[Identity] = (), *, timers: int = 0, depth: int | None = None,
    states: int = 1_000_000, seconds: float = 60.0, only: Callable[[Identity], bool] | None = None,
) -> Explored:  # fmt: skip
    """Search all schedules of the world for one that the judge objects to.

    With an arsenal, faulty nodes are nothing but their arsenal; without, they run as they are. `depth` bounds the steps
    of a schedule, and what `only` does not like never arrives: later rounds of a protocol without end, say.
    """
    return _Search(world, judge, arsenal, timers, only).run(depth, states, seconds)


# ------------------------------------------------------------------------------------------------- one node, one step


class _Ctx(Ctx):
    """A node's context in the search: it collects what the node does."""

    __slots__ = ("decided", "f", "id", "input", "invoked", "local", "n", "peers", "scheme", "seed", "sent", "words")

    def __init__(self, world: World, scheme: Ideal, node: NodeId, peers: Sequence[NodeId]) -> None:
        self.id, self.n, self.f, self.peers, self.scheme, self.seed = node, world.n, world.f, peers, scheme, world.seed
        self.input = world.inputs[node] if world.inputs is not None and node < len(world.inputs) else None
        self.words: np.random.Generator | None = None
        self.decided: list[tuple[Hashable, Any]] = []
        self.invoked = 0
        self.sent: list[Identity] = []
        self.local: deque[Message] = deque()

    @property
    def now(self) -> float:
        return 0.0

    @property
    def rng(self) -> np.random.Generator:
        if self.words is None:
            self.words = stream(self.seed, "node", self.id)
        return self.words

    def send(self, to: NodeId, msg: Message) -> None:
        if to == self.id:
            self.local.append(msg)
        else:
            self.sent.append((self.id, to, msg))

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        for other in (*self.peers, self.id) if to is None else to:
            self.send(other, msg)

    def timer(self, delay: float, tag: Tag) -> None:
        self.sent.append((-1, self.id, (tag,)))

    def decide(self, value: Any, slot: Hashable = 0) -> None:
        if (slot, value) not in self.decided:
            self.decided.append((slot, value))

    def invoke(self, f: str, key: Any, value: Any) -> int:
        self.invoked += 1
        return self.invoked - 1

    def complete(self, operation: int, result: Any, status: str = "ok") -> None:
        pass

    def sign(self, data: bytes) -> bytes:
        return self.scheme.sign(self.id, data)

    def verify(self, who: NodeId, data: bytes, signature: bytes) -> bool:
        return self.scheme.verify(who, data, signature)


class _Local(NamedTuple):
    """One state of one node."""

    blob: bytes
    decided: tuple[tuple[Hashable, Any], ...]
    fired: int
    """Timers so far."""


class _Step(NamedTuple):
    """What a delivery does: the node's next state, and the numbers of the events it sends."""

    after: int
    sent: tuple[int, ...]
    silent: bool


class _Nodes:
    """All states of all nodes that were met, the events between them, and what each event does to each state."""

    def __init__(self, world: World, timers: int) -> None:
        self.world, self.timers = world, timers
        total = world.n + len(world.clients)
        ways, everybody = world.neighbours(), tuple(range(world.n))
        scheme = Ideal(world.seed)
        self.ctxs = []
        for node in range(total):
            others = everybody if node >= world.n else everybody[:node] + everybody[node + 1 :]
            peers = ways[node] if ways is not None and node < world.n else others
            self.ctxs.append(_Ctx(world, scheme, node, peers))
        self.locals: list[_Local] = []
        self.numbers: dict[bytes, int] = {}
        self.events: list[Identity] = []
        self.names: dict[Identity, int] = {}
        self.steps: dict[tuple[int, int], _Step] = {}

    def event(self, identity: Identity) -> int:
        """The number of an event; one that says the same is the same."""
        number = self.names.get(identity)
        if number is None:
            number = self.names[identity] = len(self.events)
            self.events.append(identity)
        return number

    def keep(self, node: Node, ctx: _Ctx, fired: int) -> int:
        """The number of a node's state."""
        said = canonical((ctx.id, node, ctx.words, ctx.decided, ctx.invoked, fired)).encode()
        key = blake2b(said, digest_size=16).digest()
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.locals)
            blob = pickle.dumps((node, ctx.words, ctx.invoked), pickle.HIGHEST_PROTOCOL)
            self.locals.append(_Local(blob, tuple(ctx.decided), fired))
        return number

    def begin(self, who: NodeId, node: Node) -> _Step:
        """A node starts."""
        ctx = self.ctxs[who]
        node.start(ctx)
        return self._done(node, ctx, 0)

    def step(self, local: int, event: int) -> _Step:
        """What this event does to this state."""
        known = self.steps.get((local, event))
        if known is None:
            known = self.steps[local, event] = self._compute(local, event)
        return known

    def _compute(self, local: int, event: int) -> _Step:
        src, dst, msg = self.events[event]
        before = self.locals[local]
        ctx = self.ctxs[dst]
        node, ctx.words, ctx.invoked = pickle.loads(before.blob)
        ctx.decided = list(before.decided)
        if src >= 0:
            node.recv(ctx, src, msg)
            return self._done(node, ctx, before.fired, before)
        if before.fired >= self.timers:
            return _Step(local, (), True)
        node.timeout(ctx, msg[0])
        after = self._done(node, ctx, before.fired, before)
        if after == _Step(local, (), True):
            return after  # a timer that nobody waits for does not count
        return after._replace(after=self.keep(node, ctx, before.fired + 1))

    def _done(self, node: Node, ctx: _Ctx, fired: int, before: _Local | None = None) -> _Step:
        """Delivers what the node sent itself, and takes down the rest."""
        while ctx.local:
            node.recv(ctx, ctx.id, ctx.local.popleft())
        sent = tuple(sorted(self.event(identity) for identity in ctx.sent))
        ctx.sent.clear()
        silent = not sent and before is not None and before.decided == tuple(ctx.decided)
        return _Step(self.keep(node, ctx, fired), sent, silent)


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def canonical(value: Any) -> str:
    """A text that is equal for states that are equal, in whatever order sets and dictionaries were filled.

    >>> canonical({2: {"b", "a"}, 1: [0]}) == canonical({1: [0], 2: {"a", "b"}})
    True
    >>> canonical([1]) == canonical([True])
    False
    """
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is tuple or kind is list or kind is deque:
        return f"{kind.__name__}({','.join([canonical(item) for item in value])})"
    if isinstance(value, (set, frozenset)):
        return f"set({','.join(sorted([canonical(item) for item in value]))})"
    if isinstance(value, dict):
        items = sorted([f"{canonical(key)}:{canonical(item)}" for key, item in value.items()])
        return f"{kind.__name__}({','.join(items)})"
    if isinstance(value, np.random.Generator):
        return canonical(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return f"array({value.shape},{value.dtype},{value.tobytes()!r})"
    if hasattr(value, "__dict__") and not callable(value):
        return f"{kind.__module__}.{kind.__qualname__}({canonical(vars(value))})"
    return f"{kind.__qualname__}({pickle.dumps(value)!r})"


# -------------------------------------------------------------------------------------------------------- the search

Move = tuple[NodeId, tuple[int, ...]]
"""A step of the search: deliveries to one node, the last of which is not silent."""
Bag = tuple[int, ...]
"""Events under way, sorted; the same one may be there more than once."""
State = tuple[tuple[int, ...], Bag]


def _without(bag: Bag, events: Iterable[int]) -> Bag:
    left = list(bag)
    for event in events:
        left.remove(event)
    return tuple(left)


Option = tuple[Move, int, Bag]
"""A move, the node's next state, and what it sends."""


class _Frame:
    """A state on the path, and what is still to be tried from it."""

    __slots__ = ("move", "rest", "sleep", "state")

    def __init__(self, state: State, move: Move | None, rest: Iterator[Option], sleep: set[Move]) -> None:
        self.state, self.move, self.rest, self.sleep = state, move, rest, sleep


class _Search:
    def __init__(
        self, world: World, judge: Judge, arsenal: Sequence[Identity], timers: int,
        only: Callable[[Identity], bool] | None,
    ) -> None:  # fmt: skip
        self.world, self.judge, self.only = world, judge, only
        self.nodes = _Nodes(world, timers)
        self.absent = frozenset(world.faults) if arsenal else frozenset()
        self.arsenal = arsenal
        self.seen: dict[State, tuple[frozenset[Move], int]] = {}
        self.options: dict[tuple[int, Bag], list[tuple[tuple[int, ...], int, Bag]]] = {}
        self.judged: dict[tuple[Any, ...], str | None] = {}
        self.transitions = 0
        self.bound = ""
        self.deadline = 0.0

    def first(self) -> State:
        """All nodes started, everything under way."""
        locals_: list[int] = []
        pending = [self.nodes.event(identity) for identity in self.arsenal]
        for who in range(self.world.n + len(self.world.clients)):
            if who in self.absent:
                locals_.append(-1)
                continue
            begun = self.nodes.begin(who, self.world.make(who))
            locals_.append(begun.after)
            pending += begun.sent
        return tuple(locals_), self._bag(pending)

    def _bag(self, events: Iterable[int]) -> Bag:
        """What may ever be delivered, sorted."""
        names = self.nodes.events
        return tuple(sorted(
            event for event in events
            if names[event][1] not in self.absent and (self.only is None or self.only(names[event]))
        ))  # fmt: skip

    def moves(self, state: State) -> Iterator[Option]:
        """Every step from here: the move, the node's next state, what it sends."""
        mine: dict[NodeId, list[int]] = {}
        for event in state[1]:
            mine.setdefault(self.nodes.events[event][1], []).append(event)
        for node, bag in sorted(mine.items()):
            key = (state[0][node], tuple(bag))
            if key not in self.options:
                self.options[key] = self._options(*key)
            for taken, after, sent in self.options[key]:
                yield (node, taken), after, sent

    def _options(self, local: int, bag: Bag) -> list[tuple[tuple[int, ...], int, Bag]]:
        """Silent deliveries, each of them needed, and one that is not silent."""
        found: list[tuple[tuple[int, ...], int, Bag]] = []
        step = self.nodes.step
        stack: list[tuple[tuple[int, ...], int, int, Bag]] = [((), local, -1, bag)]
        looked = 0
        while stack:
            taken, now, before, left = stack.pop()
            looked += 1
            if looked > SILENT or (looked % 64 == 0 and time.perf_counter() > self.deadline):
                self.bound = f"more than {looked - 1} sequences of silent deliveries to one node"
                break
            for event in dict.fromkeys(left):
                after = step(now, event)
                if after.after == now and after.silent:
                    continue
                if taken and event < taken[-1] and after.silent and self._commute(before, taken[-1], event):
                    continue  # the other order is looked at
                longer = (*taken, event)
                if after.silent:
                    stack.append((longer, after.after, now, _without(left, (event,))))
                elif all(self._needed(local, longer, place, after) for place in range(len(taken))):
                    found.append((longer, after.after, self._bag(after.sent)))
        return found

    def _commute(self, local: int, one: int, other: int) -> bool:
        """Whether two silent deliveries may be swapped."""
        step = self.nodes.step
        first = step(local, other)
        second = step(first.after, one)
        return first.silent and second.silent and second.after == step(step(local, one).after, other).after

    def _needed(self, local: int, taken: tuple[int, ...], place: int, last: _Step) -> bool:
        """Whether the delivery at this place cannot just as well come after the last one."""
        step, now = self.nodes.step, local
        for at, event in enumerate(taken[:-1]):
            if at != place:
                done = step(now, event)
                if not done.silent:
                    return True
                now = done.after
        ends = step(now, taken[-1])
        late = step(ends.after, taken[place])
        return ends.silent or ends.sent != last.sent or not late.silent or late.after != last.after or self._decides(
            ends.after) != self._decides(last.after)  # fmt: skip

    def _decides(self, local: int) -> tuple[Any, ...]:
        return self.nodes.locals[local].decided

    def objection(self, state: State) -> str | None:
        """What the judge says of the decisions in a state."""
        decided = tuple(self._decides(local) if local >= 0 else () for local in state[0])
        if decided not in self.judged:
            correct = tuple(node for node in range(self.world.n) if node not in self.world.faults)
            decisions = {node: {} for node in range(len(decided))}  # type: dict[NodeId, dict[Hashable, Any]]
            log = [Decision(0.0, node, slot, value) for node, taken in enumerate(decided) for slot, value in taken]
            for entry in log:
                decisions[entry.node].setdefault(entry.slot, entry.value)
            outcome = Outcome(self.world.n, correct, Meter(len(decided)), decisions, log, stopped="scheduler")
            self.judged[decided] = self.judge(self.world, outcome)
        return self.judged[decided]

    def run(self, depth: int | None, states: int, seconds: float) -> Explored:
        """Depth first."""
        begun = time.perf_counter()
        self.deadline = begun + seconds
        path = [self._enter(self.first(), None, set(), 0)]
        why = self.objection(path[0].state)  # type: ignore[union-attr]
        while path and why is None:
            frame = path[-1]
            assert frame is not None
            entry = next(frame.rest, None)
            if entry is None:
                path.pop()
                continue
            move, after, sent = entry
            if move in frame.sleep:
                continue
            self.transitions += 1
            state = _apply(frame.state, move, after, sent)
            asleep = {other for other in frame.sleep if other[0] != move[0]}
            frame.sleep.add(move)
            if depth is not None and len(path) >= depth:
                self.bound = f"schedules of more than {depth} steps"
                why = self.objection(state)
                if why is not None:
                    path.append(_Frame(state, move, iter(()), set()))
            elif (reached := self._enter(state, move, asleep, len(path) if depth is not None else 0)) is not None:
                path.append(reached)
                why = self.objection(state)
            if len(self.seen) >= states or (self.transitions % 64 == 0 and time.perf_counter() > self.deadline):
                self.bound = f"{len(self.seen)} states in {time.perf_counter() - begun:.0f} s"
                break
        trace = tuple(
            self.nodes.events[event] for frame in path if frame and frame.move for event in frame.move[1]
        )  # fmt: skip
        return Explored(
            len(self.seen), self.transitions, not self.bound and why is None, trace if why is not None else None,
            why or self.bound, time.perf_counter() - begun,
            sum(any(decided) for decided in self.judged),
        )  # fmt: skip

    def _enter(self, state: State, move: Move | None, sleep: set[Move], steps: int) -> _Frame | None:
        """A state is reached: what is to be tried from it that was not tried before."""
        known = self.seen.get(state)
        if known is None or steps < known[1]:
            self.seen[state] = (frozenset(sleep), steps)
            return _Frame(state, move, self.moves(state), sleep)
        missed = known[0] - sleep
        if not missed:
            return None
        self.seen[state] = (known[0] & sleep, known[1])
        rest = [entry for entry in self.moves(state) if entry[0] in missed]
        return _Frame(state, move, iter(rest), sleep)


def _apply(state: State, move: Move, after: int, sent: Bag) -> State:
    node, taken = move
    locals_ = (*state[0][:node], after, *state[0][node + 1 :])
    return locals_, tuple(sorted((*_without(state[1], taken), *sent)))

"""What a protocol is made of: nodes that react to messages, and the context through which they act.

A node is written once. The kernel runs it in simulated rounds, in simulated time or under an adversarial
scheduler, :mod:`assay.protocols.tcp` over real sockets; nothing in the node says which. It holds plain state, acts
only through its :class:`Ctx`, and takes time and randomness from there too.

A message is a tuple of plain values (None, bool, int, float, str, bytes, tuples of these) that begins with its kind.

>>> class Flood(Node):
...     seen = False
...     def start(self, ctx):
...         if ctx.id == 0:
...             ctx.broadcast(("news", 7))
...     def recv(self, ctx, src, msg):
...         if not self.seen:
...             self.seen = True
...             ctx.decide(msg[1])
...             ctx.broadcast(msg)
>>> from assay.protocols.kernel.world import World
>>> outcome = World(n=8, node=Flood, topology="ring").run("rounds")
>>> outcome.decisions[4], outcome.meter.rounds, outcome.meter.messages
({0: 7}, 5, 18)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

NodeId = int
Message = tuple[Any, ...]
Tag = Any
"""What a timer says when it fires: plain values, as in a message."""


class Ctx(ABC):
    """All that a node may see and do, in any mode."""

    __slots__ = ()

    id: NodeId
    n: int
    """Nodes that take part; clients come on top."""
    f: int
    """Faults that the protocol is asked to bear."""
    peers: Sequence[NodeId]
    """Whom this node may send to, without itself."""
    input: Any
    """What the node was given to start with: its vote, its value, its commands."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the start; in rounds, the number of the round; under an adversary, deliveries so far."""

    @property
    @abstractmethod
    def rng(self) -> np.random.Generator:
        """This node's own randomness: depends on the seed and the node, never on the order of deliveries."""

    @abstractmethod
    def send(self, to: NodeId, msg: Message) -> None:
        """Send to one node. What a node sends itself arrives right after the present step (next round, in rounds)."""

    @abstractmethod
    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        """Send to all peers and to itself, or to those named."""

    @abstractmethod
    def timer(self, delay: float, tag: Tag) -> None:
        """Call `timeout` with this tag after so many seconds (rounds, in rounds)."""

    @abstractmethod
    def decide(self, value: Any, slot: Hashable = 0) -> None:
        """Put out a value for good: a decision, a delivery, a committed entry. Once a slot."""

    @abstractmethod
    def invoke(self, f: str, key: Any, value: Any) -> int:
        """A client's operation begins; its number is for `complete`."""

    @abstractmethod
    def complete(self, operation: int, result: Any, status: str = "ok") -> None:
        """A client's operation returned."""

    @abstractmethod
    def sign(self, data: bytes) -> bytes:
        """This node's signature, 64 bytes."""

    @abstractmethod
    def verify(self, who: NodeId, data: bytes, signature: bytes) -> bool:
        """Whether this is that node's signature of the data."""


class Node:
    """A state machine. Override what you need; the attributes named in `stable` survive a crash and recovery."""

    stable: tuple[str, ...] = ()
    every_round = False
    """Whether `tick` is to be called in rounds that bring no message; time jumps over such rounds if nobody asks."""

    def start(self, ctx: Ctx) -> None:
        """Called once, before anything arrives, and again after a recovery."""

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A message arrived."""

    def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
        """In rounds, all messages of a round at once, by sender; else one at a time."""
        for src, msg in inbox:
            self.recv(ctx, src, msg)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """A timer fired."""


class Fault:
    """What comes between a node and the world. The node's code is not touched; each hook lets through what it likes."""

    def on_start(self, ctx: Ctx) -> None:
        """Before the node starts; `ctx` is the network's own, past the fault."""

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """What really goes out."""
        return ((to, msg),)

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """What the node really gets to see."""
        return ((src, msg),)

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """The node's next step: call it, or do not."""
        step()

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """A timer set with the tag ``("fault", tag)``; an answer "recover" or "forget" makes the node start over."""

    def on_peek(self, ctx: Ctx, traffic: Sequence[tuple[NodeId, NodeId, Message]]) -> None:
        """In rounds: what the correct nodes send in this round (from, to, message), before this node acts."""


class Through(Ctx):
    """A context that passes everything on to another one; the base of those that change something on the way."""

    __slots__ = ("under",)

    def __init__(self, under: Ctx) -> None:
        self.under = under

    @property
    def id(self) -> NodeId:  # type: ignore[override]
        """Of the node."""
        return self.under.id

    @property
    def n(self) -> int:  # type: ignore[override]
        """Nodes that take part."""
        return self.under.n

    @property
    def f(self) -> int:  # type: ignore[override]
        """Faults to bear."""
        return self.under.f

    @property
    def peers(self) -> Sequence[NodeId]:  # type: ignore[override]
        """Whom it may send to."""
        return self.under.peers

    @property
    def input(self) -> Any:
        """What the node was given."""
        return self.under.input

    @property
    def now(self) -> float:
        """Seconds, or rounds, or deliveries."""
        return self.under.now

    @property
    def rng(self) -> np.random.Generator:
        """The node's randomness."""
        return self.under.rng

    def send(self, to: NodeId, msg: Message) -> None:
        """Send to one node."""
        self.under.send(to, msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        """Send to all peers and itself, or to those named."""
        self.under.broadcast(msg, to)

    def timer(self, delay: float, tag: Tag) -> None:
        """Set a timer."""
        self.under.timer(delay, tag)

    def decide(self, value: Any, slot: Hashable = 0) -> None:
        """Put out a value."""
        self.under.decide(value, slot)

    def invoke(self, f: str, key: Any, value: Any) -> int:
        """Begin an operation."""
        return self.under.invoke(f, key, value)

    def complete(self, operation: int, result: Any, status: str = "ok") -> None:
        """End an operation."""
        self.under.complete(operation, result, status)

    def sign(self, data: bytes) -> bytes:
        """Sign."""
        return self.under.sign(data)

    def verify(self, who: NodeId, data: bytes, signature: bytes) -> bool:
        """Verify."""
        return self.under.verify(who, data, signature)


class Parent(Node):
    """A node made of sub-protocols. Each child has a name and a message space of its own, and reports by deciding.

    Override `child` to make children when they are first named, `message` for the parent's own messages, `alarm` for
    its own timers, and `decided` for what its children put out.
    """

    def __init__(self) -> None:
        self.children: dict[Any, Node] = {}

    def child(self, ctx: Ctx, name: Any) -> Node | None:
        """The child of this name, which has just been heard of for the first time; None if there is no such child."""
        return None

    def message(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """One of the parent's own messages."""

    def alarm(self, ctx: Ctx, tag: Tag) -> None:
        """One of the parent's own timers."""

    def decided(self, ctx: Ctx, name: Any, value: Any, slot: Hashable) -> None:
        """A child put out a value."""

    def sub(self, ctx: Ctx, name: Any) -> tuple[Node, Ctx] | None:
        """The child of this name, started if it is new, and its context."""
        inner = _Inner(ctx, self, name)
        found = self.children.get(name)
        if found is None:
            found = self.child(ctx, name)
            if found is None:
                return None
            self.children[name] = found
            found.start(inner)
        return found, inner

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Hands the children's messages to them."""
        if msg[0] != "/":
            self.message(ctx, src, msg)
        elif len(msg) == 3 and isinstance(msg[2], tuple) and msg[2] and (found := self.sub(ctx, msg[1])):
            child, inner = found
            child.recv(inner, src, msg[2])

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Hands the children's timers to them."""
        if not (isinstance(tag, tuple) and tag and tag[0] == "/"):
            self.alarm(ctx, tag)
        elif found := self.sub(ctx, tag[1]):
            child, inner = found
            child.timeout(inner, tag[2])


class _Inner(Through):
    """A child's view: its messages and timers carry its name, its decisions go to the parent."""

    __slots__ = ("name", "parent")

    def __init__(self, under: Ctx, parent: Parent, name: Any) -> None:
        self.under, self.parent, self.name = under, parent, name  # made for every message: no call for it

    def send(self, to: NodeId, msg: Message) -> None:
        self.under.send(to, ("/", self.name, msg))

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        self.under.broadcast(("/", self.name, msg), to)

    def timer(self, delay: float, tag: Tag) -> None:
        self.under.timer(delay, ("/", self.name, tag))

    def decide(self, value: Any, slot: Hashable = 0) -> None:
        self.parent.decided(self.under, self.name, value, slot)

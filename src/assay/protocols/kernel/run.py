"""What the three ways to run a world share: contexts, loopback, decisions, histories, the order to stop.

`blame` says in one line what a node's code did wrong: the error, and the last place in it that is the node's own.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.signatures import Ideal, Scheme
from assay.sim.streams import stream
from assay.workloads.histories import Operation

if TYPE_CHECKING:
    import numpy as np

    from assay.protocols.kernel.world import World


ENDLESS = 100_000
"""Messages to itself to which one step of a node may lead; time does not pass while they are delivered."""


def endless(node: NodeId) -> ValueError:
    """The complaint about a node that answers itself for ever."""
    return ValueError(f"node {node} sends itself one message after the other, more than {ENDLESS} in one step")


class Decision(NamedTuple):
    """A node put out a value for a slot."""

    time: float
    node: NodeId
    slot: Hashable
    value: Any


class Delivery(NamedTuple):
    """A message arrived; src is -1 where a timer fired."""

    time: float
    src: NodeId
    dst: NodeId
    msg: Message


@dataclass
class Outcome:
    """How a run went."""

    n: int
    correct: tuple[NodeId, ...]
    """Nodes without a fault; clients are not among them."""
    meter: Meter
    decisions: dict[NodeId, dict[Hashable, Any]]
    """Of each node, by slot: the first value it put out."""
    log: list[Decision] = field(default_factory=list)
    """All of them, in order."""
    operations: list[Operation] = field(default_factory=list)
    """What clients asked and got."""
    trace: list[Delivery] = field(default_factory=list)
    """All deliveries, where asked for."""
    time: float = 0.0
    stopped: str = ""
    """Why the run ended: "until", "quiet" (nothing under way any more), "limit", or the "scheduler" would not go on."""
    refused: list[str] = field(default_factory=list)
    """Over sockets: why connections were cut off."""
    nodes: list[Node] = field(default_factory=list)
    """The nodes as they were at the end; empty after a run over sockets."""

    @property
    def digest(self) -> str:
        """The run's identity: equal for equal seeds, in every process."""
        return self.meter.digest

    def decided(self, slot: Hashable = 0) -> dict[NodeId, Any]:
        """What the correct nodes decided for a slot.

        >>> Outcome(2, (0, 1), Meter(2), {0: {0: "a"}, 1: {}}).decided()
        {0: 'a'}
        """
        return {node: self.decisions[node][slot] for node in self.correct if slot in self.decisions[node]}

    @property
    def conflicts(self) -> list[Decision]:
        """Decisions of correct nodes that contradict an earlier one, their own or another's, for the same slot."""
        first: dict[Hashable, Any] = {}
        correct = set(self.correct)
        taken = [entry for entry in self.log if entry.node in correct]
        try:
            return [entry for entry in taken if contradict(first.setdefault(entry.slot, entry.value), entry.value)]
        except ValueError as error:  # an array, say, which is neither equal nor unequal
            raise ValueError(f"decisions cannot be compared: {error}; plain values expected") from None


def contradict(one: Any, other: Any) -> bool:
    """Whether two decisions differ; NaN, alone or inside, agrees with NaN, though it equals nothing.

    >>> contradict((1, math.nan), (1, float("nan"))), contradict(1, 2)
    (False, True)
    """
    return bool(one != other) and repr(one) != repr(other)


def all_decided(outcome: Outcome) -> bool:
    """Every correct node put out something; the usual `until`."""
    return all(outcome.decisions[node] for node in outcome.correct)


class SimCtx(Ctx):
    """A node's context in a simulation."""

    __slots__ = ("_peers", "_rng", "depth", "f", "id", "input", "life", "n", "run")

    def __init__(self, run: Run, node: NodeId) -> None:
        self.run, self.id = run, node
        world = run.world
        self.n, self.f = world.n, world.f
        self.input = world.inputs[node] if world.inputs is not None and node < len(world.inputs) else None
        self.depth = 0
        self.life = 0  # how often it has come up: timers of an earlier life do not fire
        self._peers: Sequence[NodeId] | None = None
        self._rng: np.random.Generator | None = None

    @property
    def peers(self) -> Sequence[NodeId]:  # type: ignore[override]
        """Whom it may send to; listed once it asks, as most of thousands never do."""
        if self._peers is None:
            self._peers = self.run.peers(self.id)
        return self._peers

    @property
    def now(self) -> float:
        """Seconds, rounds or deliveries."""
        return self.run.now

    @property
    def rng(self) -> np.random.Generator:
        """The node's randomness."""
        if self._rng is None:
            self._rng = stream(self.run.world.seed, "node", self.id)
        return self._rng

    def send(self, to: NodeId, msg: Message) -> None:
        """Send to one node."""
        self.run.post(self, to, msg)

    def broadcast(self, msg: Message, to: Iterable[NodeId] | None = None) -> None:
        """Send to all peers and itself, or to those named."""
        post = self.run.post
        if to is None:
            for other in self.peers:
                post(self, other, msg)
            post(self, self.id, msg)
        else:
            for other in to:
                post(self, other, msg)

    def timer(self, delay: float, tag: Tag) -> None:
        """Set a timer."""
        self.run.alarm(self, delay, tag)

    def decide(self, value: Any, slot: Hashable = 0) -> None:
        """Put out a value."""
        run = self.run
        run.outcome.log.append(Decision(run.now, self.id, slot, value))
        run.outcome.decisions[self.id].setdefault(slot, value)
        run.changed = True

    def invoke(self, f: str, key: Any, value: Any) -> int:
        """Begin an operation."""
        operations = self.run.outcome.operations
        operations.append(Operation(self.id, f, key, value, None, self.run.now, math.inf, "info"))
        return len(operations) - 1

    def complete(self, operation: int, result: Any, status: str = "ok") -> None:
        """End an operation."""
        operations = self.run.outcome.operations
        done = operations[operation]._replace(result=result, complete=self.run.now, status=status)
        operations[operation] = done
        self.run.changed = True

    def sign(self, data: bytes) -> bytes:
        """Sign."""
        self.run.outcome.meter.signatures += 1
        return self.run.scheme.sign(self.id, data)

    def verify(self, who: NodeId, data: bytes, signature: bytes) -> bool:
        """Verify."""
        self.run.outcome.meter.checks += 1
        return self.run.scheme.verify(who, data, signature)


class Run(ABC):
    """A world under way. Subclasses say when a message arrives."""

    now: float = 0.0
    context: type[SimCtx] = SimCtx

    def __init__(self, world: World, *, metered: bool = True, traced: bool = False) -> None:
        self.world = world
        self.total = world.n + len(world.clients)
        self.nodes = world.make_nodes()
        self.scheme: Scheme = Ideal(world.seed)
        meter = Meter(self.total)
        correct = tuple(node for node in range(world.n) if node not in world.faults)
        decisions: dict[NodeId, dict[Hashable, Any]] = {node: {} for node in range(self.total)}
        self.outcome = Outcome(world.n, correct, meter, decisions, nodes=self.nodes)
        self.metered, self.traced = metered, traced
        self.ways = world.neighbours()
        clients = tuple(range(world.n, self.total))
        self.everybody = everybody = tuple(range(world.n))
        self.ctxs = [self.context(self, node) for node in range(self.total)]
        self.allowed = None
        if self.ways is not None:
            self.allowed = [frozenset((*row, node, *clients)) for node, row in enumerate(self.ways)]
            self.allowed += [frozenset((*everybody, client)) for client in clients]
        self.changed = False
        self.local: deque[tuple[SimCtx, Message]] = deque()

    def peers(self, node: NodeId) -> Sequence[NodeId]:
        """Whom a node may send to; a client, everybody."""
        if node >= self.world.n:
            return self.everybody
        return self.ways[node] if self.ways is not None else self.everybody[:node] + self.everybody[node + 1 :]

    @abstractmethod
    def post(self, ctx: SimCtx, to: NodeId, msg: Message) -> None:
        """A node sends."""

    @abstractmethod
    def alarm(self, ctx: SimCtx, delay: float, tag: Tag) -> None:
        """A node sets a timer."""

    def check(self, src: NodeId, to: NodeId) -> None:
        """Refuses a message to somebody who is not there or cannot be reached."""
        if not 0 <= to < self.total:
            raise ValueError(f"node {src} sends to {to}, but there are nodes 0 to {self.total - 1} only")
        if self.allowed is not None and to not in self.allowed[src]:
            raise ValueError(f"node {src} sends to {to}, which is no neighbour of it")

    def settle(self) -> None:
        """Delivers what nodes sent themselves, until nothing is left."""
        local, nodes = self.local, self.nodes
        for _ in range(ENDLESS):
            if not local:
                return
            ctx, msg = local.popleft()
            nodes[ctx.id].recv(ctx, ctx.id, msg)
        raise endless(ctx.id)

    def begin(self) -> None:
        """Starts every node, in order."""
        for ctx, node in zip(self.ctxs, self.nodes, strict=True):
            node.start(ctx)
            self.settle()

    def over(self, until: Callable[[Outcome], bool] | None) -> bool:
        """Whether the run may stop; asked only after something was put out."""
        self.changed = False
        return until is not None and until(self.outcome)

    def end(self, reason: str) -> Outcome:
        """The outcome, with the reason for the end."""
        self.outcome.time, self.outcome.stopped = self.now, reason
        return self.outcome


_ROOM = Path(__file__).parent.parent
_FRAMEWORK = (*(str(_ROOM / folder) for folder in ("kernel", "tcp", "faults")), str(_ROOM / "interface.py"))


def place(error: BaseException) -> str | None:
    """File and line of the node's step that led to the error; None where no node was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = (after for before, after in pairwise(frames) if _ours(before) and not _ours(after))
    step = next(steps, None)
    if step is None:
        return None
    own = [frame for frame in frames if frame.filename == step.filename]  # what it calls is seldom to blame
    return f"{own[-1].filename}:{own[-1].lineno}"


def _ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_FRAMEWORK)


def blame(error: BaseException) -> str:
    """The error and its place.

    >>> blame(KeyError("what now"))
    "KeyError: 'what now'"
    """
    said = " ".join(str(error).split())
    where = place(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}" + (f" ({where})" if where else "")
